// From a signature to a culprit, or to the honest answer that none was proven (DESIGN, "From failure to cause", 3 to
// 7).
//
//   1. The failing probe runs again op by op: eager, serialized, checked build, every op against its spec reference.
//      The first op that breaks its contract on sound inputs is the suspect; it is run again on those inputs
//      (reproduces).
//   2. With a reference in the suspect's place the whole case runs again: is the signature gone (necessary)?
//   3. Where step 1 comes out clean, the fault depends on chance, timing, graph or state. The case runs unchanged until
//      its failure rate is known; from then on nothing is called gone on fewer clean runs than that rate asks for. Then
//      one thing is relaxed at a time, down to one edge between two ops (ordering) or one buffer of the graph's
//      (metadata).
// A culprit is named only when the failure reproduces and the suspect is necessary. docs/flaky-faults.md has the
// numbers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/repeat_statistics.h"
#include "bisect/screen.h"
#include "report/findings.h"

namespace faultline {

// One signature of one pass over the grid, with the case that stands for it.
struct Suspicion {
  std::string signature;
  std::string plant;
  std::vector<std::string> configurations;
  Failure failure;        // of the representative
  WorkerTask task;        // the representative's screening task
  RunCount screened;      // the representative's runs, and those that showed this signature
  bool repeated = false;  // repeats were asked for: a single clean run convicts nobody
};

// Runs tasks and gives one result each, in order (Session::run).
using RunTasks =
    std::function<Result<std::vector<TaskResult>>(const std::vector<WorkerTask>& tasks, const std::string& label)>;

// Searches all suspicions side by side. One Localized each, in order; `culprit` is empty where nothing was proven. A
// run that is interrupted or out of time leaves the rest unproven, and says so. Capsules go to capsules/ in
// `run_directory` (empty: none is written).
Result<std::vector<Localized>> convict(const std::vector<Suspicion>& suspicions, const RunTasks& run,
                                       const std::string& run_directory);
Result<std::vector<Localized>> convict(const std::vector<Suspicion>& suspicions, Session& session,
                                       const std::string& run_directory);

}  // namespace faultline
