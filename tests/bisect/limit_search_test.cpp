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

// A model whose logits hang on which kernels ran: each rounds a little otherwise than its reference, and those of the
// kinds in `faulty` are far off.
struct Model {
  std::vector<int64_t> faulty;  // kinds of op, 0 … kOpsALayer - 1
  float noise = 1e-4f;
  int runs = 0;
  bool interrupted = false;

  Result<TaskResult> run(const WorkerTask& task) {
    ++runs;
    TaskResult result;
    result.verdict = interrupted ? "skipped" : "pass";
    if (interrupted) return result;
    result.launches = kCalls;
    float off = 0;
    const int64_t limit = task.options.spec_from < 0 ? kCalls : task.options.spec_from;
    for (int64_t call = 0; call < limit; ++call) {
      result.last_kernel_op = op_of(call);
      off += noise;
      if (std::find(faulty.begin(), faulty.end(), call % kOpsALayer) != faulty.end()) off += 0.5f;
    }
    for (size_t i = 0; i < kSampledLogits; ++i) result.outputs.push_back(bits(1.0f + off * static_cast<float>(i % 2)));
    return result;
  }

  std::optional<PartingPoint> search() {
    WorkerTask screened;
    screened.probes.prefill_lengths = {8};
    const auto found =
        find_parting_point(screened, 0, [&](const WorkerTask& task, const std::string&) { return run(task); });
    REQUIRE(found);
    return *found;
  }
};

TaskResult with_outputs(const std::vector<float>& values) {
  TaskResult result;
  result.verdict = "pass";
  for (const float value : values) result.outputs.push_back(bits(value));
  return result;
}

}  // namespace

TEST_CASE("the first kernel that computes something else is found in about log2 of the kernel calls") {
  for (const int64_t kind : {int64_t{0}, int64_t{7}, kOpsALayer - 1}) {
    Model model{{kind}};
    const auto point = model.search();
    REQUIRE(point);
    CHECK(point->op == op_of(kind));  // the first layer's
    CHECK(point->call == kind + 1);
    CHECK(point->calls == kCalls);
    CHECK(point->runs == model.runs);
    CHECK(model.runs <= static_cast<int>(std::ceil(std::log2(kCalls))) + 2);
  }
}

TEST_CASE("of two kernels the first is where the logits part") {
  Model model{{9, 3}};
  REQUIRE(model.search());
  CHECK(model.search()->op == op_of(3));
}

TEST_CASE("logits that only rounding moves part nowhere, in two runs") {
  Model model{{}};
  CHECK_FALSE(model.search());
  CHECK(model.runs == 2);
}

TEST_CASE("a search for the parting point that is cut short names nothing") {
  Model model{{3}};
  model.interrupted = true;
  CHECK_FALSE(model.search());
}

TEST_CASE("what the checked build found is what outputs led to") {
  Failure failure;
  failure.violation.build = "unchecked";
  CHECK_FALSE(found_by_outputs(failure));
  failure.violation.build = "checked";
  CHECK(found_by_outputs(failure));
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
