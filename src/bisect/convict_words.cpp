#include "bisect/convict_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace faultline {

std::string counted_runs(int64_t runs) {
  return fmt::format("{} run{}", runs, runs == 1 ? "" : "s");
}

std::string came_to(const RunCount& count) {
  return fmt::format("{} of {} {}", count.failures, counted_runs(count.runs), count.runs == 1 ? "fails" : "fail");
}

bool is_checkpoint_tensor(const std::string& name) {
  return name.starts_with("model.") || name.starts_with("lm_head");
}

std::string explanation_of(const Violation& v, const std::string& culprit) {
  const std::string place = fmt::format("[{}]", fmt::join(v.index, ", "));
  if (culprit == "layout")
    return fmt::format("{} is {}; {} reads it. Writer and reader disagree on the layout.", v.tensor, v.detail, v.op);
  if (culprit == "weights")
    return fmt::format("The checkpoint tensor {} cannot be multiplied with: {}",
                       is_checkpoint_tensor(v.bad_input) ? v.bad_input : v.tensor, v.detail);
  if (culprit == "metadata")
    return fmt::format("The batch's indices are wrong before any kernel uses them: {} at {}: {}", v.tensor, place,
                       v.detail);
  if (culprit == "setting")
    return fmt::format("{} does what the resolved settings say, and that is not the model: {}", v.op, v.detail);
  const std::string kernel = v.provenance == "own" ? fmt::format("our own kernel {}", v.kernel) : v.kernel;
  if (v.tensor.empty())  // a death: there is no element to name
    return fmt::format("{} ({}) ends the run{}: {}", v.op, kernel, v.inputs_clean == "yes" ? " on sound inputs" : "",
                       v.detail);
  return fmt::format("{} ({}) breaks its contract on sound inputs: {} in {} at {}: {}", v.op, kernel, v.kind, v.tensor,
                     place, v.detail);
}

}  // namespace faultline
