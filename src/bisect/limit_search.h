// Bisection without a check (docs/search.md): a run whose every op kept its contract, or was not looked at, may still
// end in wrong logits. Its logits are compared with those of the same run on spec references; where they differ, the
// op is found by running the first N kernels and the rest on their references, and halving.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bisect/convict.h"
#include "bisect/screen.h"

namespace faultline {

// Logits further apart than this, as a share of their size (root mean square over a pass), are another result, if they
// are also kOverRounding times further apart than the references are from themselves after a nudge of their last bits:
// a choice of experts or keys that rounding tips over is no fault, and grows with the model's depth.
inline constexpr double kOutputTolerance = 0.1;
inline constexpr double kOverRounding = 3;

// How far the logits of two runs of the same probes are apart: the largest share over the passes; infinite where one is
// not finite or the runs are not of the same passes. `probe`: where that is.
struct OutputDistance {
  double share = 0;
  int64_t probe = -1;
};
OutputDistance output_distance(const TaskResult& run, const TaskResult& reference, const WorkerTask& task);

using RunOne = std::function<Result<TaskResult>(const WorkerTask& task, const std::string& label)>;

// `compare_outputs`: of screened rows that passed, those whose logits are not the references' become a `mismatch`.
Status compare_outputs(std::vector<ScreenRow>& rows, Session& session, const std::string& label);

// Whether the failure was found by compare_outputs(), so that no op is known that broke a contract.
bool found_by_outputs(const Failure& failure);

// The first kernel whose result makes the logits differ, convicted when it does so alone (every other op on its
// reference), when they agree with its own reference in its place, and when, run op by op, it breaks its contract.
// About log2(kernel calls) runs and six.
Result<Localized> search_limit(const Suspicion& suspicion, const RunOne& run);

// convict(), with suspicions that compare_outputs() raised given to search_limit().
Result<std::vector<Localized>> convict_all(const std::vector<Suspicion>& suspicions, Session& session,
                                           const std::string& run_directory);

}  // namespace faultline
