#include "bisect/limit_search.h"

#include <bit>
#include <cmath>
#include <limits>

#include "bisect/probes.h"
#include "testing.h"

namespace faultline {
namespace {

constexpr int64_t kOpsALayer = 20;
constexpr int64_t kLayers = 5;
constexpr int64_t kCalls = kOpsALayer * kLayers;

std::string op_of(int64_t call) {
  return fmt::format("layers.{}.op{}", call / kOpsALayer, call % kOpsALayer);
}

int64_t bits(float value) {
  return std::bit_cast<uint32_t>(value);
}

// A model whose logits hang on which kernels ran: each rounds a little otherwise than its reference, and ops of the
// kinds in `faulty` are far off.
struct Model {
  std::vector<int64_t> faulty;  // kinds of op, 0 … kOpsALayer - 1
  float noise = 1e-4f;          // of each kernel's own rounding
  float rounding = 1e-3f;       // what a nudge of last bits comes to
  bool breaks_contract = true;
  int runs = 0;
  bool interrupted = false;

  Result<TaskResult> run(const WorkerTask& task) {
    ++runs;
    TaskResult result;
    if (interrupted) {
      result.verdict = "skipped";
      return result;
    }
    result.verdict = "pass";
    result.launches = kCalls;
    if (task.options.op_by_op) {
      if (faulty.empty() || !breaks_contract) return result;
      result.verdict = "mismatch";
      result.violation.emplace();
      result.violation->op = op_of(faulty.front());
      result.violation->kind = "mismatch";
      result.violation->detail = "too far from its spec";
      return result;
    }
    float off = 0;
    for (int64_t call = 0; call < kCalls; ++call) {
      const RunOptions& o = task.options;
      const std::string pattern = fmt::format("op{}", call % kOpsALayer);
      const bool named = !o.spec_ops.empty() && o.spec_ops.front() == pattern;
      if ((o.spec_from >= 0 && call >= o.spec_from) || (!o.spec_ops.empty() && named != o.spec_others)) continue;
      result.last_kernel_op = op_of(call);
      result.last_kernel = "own";
      off += noise;
      if (std::find(faulty.begin(), faulty.end(), call % kOpsALayer) != faulty.end()) off += 0.5f;
    }
    if (task.options.repeat > 0) off += rounding;
    for (size_t i = 0; i < kSampledLogits; ++i) result.outputs.push_back(bits(1.0f + off * static_cast<float>(i % 2)));
    return result;
  }
};

Suspicion suspicion() {
  Suspicion result;
  result.signature = "mismatch outside of any op";
  result.configurations = {"c001"};
  result.task.probes.prefill_lengths = {8};
  result.failure.violation.kind = "mismatch";
  result.failure.violation.tensor = "logits";
  result.failure.probe = 0;
  return result;
}

Localized search_in(Model& model) {
  const auto found =
      search_limit(suspicion(), [&](const WorkerTask& task, const std::string&) { return model.run(task); });
  REQUIRE(found);
  return *found;
}

TaskResult with_outputs(const std::vector<float>& values) {
  TaskResult result;
  result.verdict = "pass";
  for (const float value : values) result.outputs.push_back(bits(value));
  return result;
}

}  // namespace

TEST_CASE("one op that computes something else is found in about log2 of the kernel calls, and proven") {
  for (const int64_t kind : {int64_t{0}, int64_t{7}, kOpsALayer - 1}) {
    Model model{{kind}};
    const Localized found = search_in(model);
    CHECK(found.culprit == "kernel");
    CHECK(found.op == op_of(kind));  // the first layer's
    CHECK(found.kernel == "own");
    CHECK(found.reproduces == "yes");
    CHECK(found.necessary == "yes");
    CHECK(model.runs <= static_cast<int>(std::ceil(std::log2(kCalls))) + 6);
  }
}

TEST_CASE("kernels that only round otherwise convict nobody") {
  Model model{{}};
  const Localized found = search_in(model);
  CHECK(found.culprit.empty());
  CHECK(model.runs == 6);  // the probe alone, then all of them: as it is, on references, and nudged
}

TEST_CASE("what a nudge of last bits does as well is rounding's doing") {
  Model model{{3}};
  model.rounding = 1.0f;
  CHECK(search_in(model).culprit.empty());
}

TEST_CASE("an op that keeps its contract is named, not convicted") {
  Model model{{3}};
  model.breaks_contract = false;
  const Localized found = search_in(model);
  CHECK(found.culprit.empty());
  CHECK(found.explanation.find("layers.0.op3") != std::string::npos);
}

TEST_CASE("rounding that adds up beyond the tolerance convicts nobody: no op does it alone") {
  Model model{{}, 0.01f, 0.5f};
  CHECK(search_in(model).culprit.empty());
}

TEST_CASE("two ops at fault are not one: nobody is convicted, and the first is named in words") {
  Model model{{3, 9}};
  const Localized found = search_in(model);
  CHECK(found.culprit.empty());
  CHECK(found.reproduces == "yes");
  CHECK(found.necessary == "no");
  CHECK(found.explanation.find("layers.0.op3") != std::string::npos);
}

TEST_CASE("a search that is cut short says so") {
  Model model{{3}};
  model.interrupted = true;
  CHECK(search_in(model).explanation.find("cut short") != std::string::npos);
}

TEST_CASE("logits are compared a pass at a time; NaN, death and other passes are infinitely far") {
  WorkerTask task;
  task.probes.prefill_lengths = {3, 5};
  std::vector<float> reference(2 * kSampledLogits, 2.0f);
  std::vector<float> run = reference;
  CHECK(output_distance(with_outputs(run), with_outputs(reference), task).share == 0);
  run.back() += 1.0f;
  const OutputDistance last = output_distance(with_outputs(run), with_outputs(reference), task);
  CHECK(last.share == Approx(0.5 / std::sqrt(static_cast<double>(kSampledLogits))));
  CHECK(last.probe == 1);
  for (size_t i = kSampledLogits; i < run.size(); ++i) run[i] = 0;
  CHECK(output_distance(with_outputs(run), with_outputs(reference), task).probe == 1);
  run[0] = std::numeric_limits<float>::quiet_NaN();
  const OutputDistance nan = output_distance(with_outputs(run), with_outputs(reference), task);
  CHECK(std::isinf(nan.share));
  CHECK(nan.probe == 0);
  CHECK(std::isinf(output_distance(with_outputs({}), with_outputs({}), task).share));
  TaskResult dead = with_outputs(reference);
  dead.verdict = "crash";
  CHECK(std::isinf(output_distance(dead, with_outputs(reference), task).share));
}

}  // namespace faultline
