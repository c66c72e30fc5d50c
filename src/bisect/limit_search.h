// Bisection without a check (docs/search.md): a run that no check looked at, or none of its level saw anything in, may
// still end in wrong logits. Its logits are compared with those of the same run on spec references; where they differ,
// the place is found by running the first N kernels and the rest on their references, and halving.
//
// A difference alone proves nothing: rounding tips a choice of experts or keys over, and the logits of a sound run move
// as far as those of a broken one. So an op is at fault only when it also breaks its contract, run op by op.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bisect/convict.h"
#include "bisect/screen.h"

namespace faultline {

// Logits further apart than this, as a share of their size (root mean square over a pass), are worth a look.
inline constexpr double kOutputTolerance = 0.1;

// How far the logits of two runs of the same probes are apart: the largest share over the passes; infinite where one is
// not finite or the runs are not of the same passes. `probe`: where that is.
struct OutputDistance {
  double share = 0;
  int64_t probe = -1;
};
OutputDistance output_distance(const TaskResult& run, const TaskResult& reference, const WorkerTask& task);

using RunOne = std::function<Result<TaskResult>(const WorkerTask& task, const std::string& label)>;

// `compare_outputs`: of screened rows that passed, those whose logits are not the references' are run op by op. What
// breaks a contract there makes the row a `mismatch`; where nothing does, it stays a pass, with a note. Two runs a row,
// and a third where the logits differ.
Status compare_outputs(std::vector<ScreenRow>& rows, Session& session, const std::string& label);

// Whether compare_outputs() found it: screening never uses the checked build.
bool found_by_outputs(const Failure& failure);

// Where a run's logits part from the references': the kernel call after which they are other ones, counted from 1, the
// calls after it running on their references. About log2(calls) runs and two.
struct PartingPoint {
  std::string op;
  int64_t call = 0;
  int64_t calls = 0;
  int64_t runs = 0;
};
// Nothing: they do not part (any more), or a run of the search was not done.
Result<std::optional<PartingPoint>> find_parting_point(const WorkerTask& screened, int64_t probe, const RunOne& run);

// convict(); what compare_outputs() found is convicted under `checks: reference`, with the parting point among the
// evidence.
Result<std::vector<Localized>> convict_all(std::vector<Suspicion> suspicions, Session& session,
                                           const std::string& run_directory);

}  // namespace faultline
