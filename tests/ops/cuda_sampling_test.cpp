// Softmax, sampling and argmax on a GPU: each build against the spec reference and the kernel on the CPU, and the
// device-side assert that an invalid probability is.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "gpu_twin.h"
#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;

TEST_CASE("softmax, sampling and argmax on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(32);
  for (const Dtype dtype : kActivations)
    for (const int64_t vocabulary : {1, 3, 300, 5000, 154880})
      for (const int64_t rows : {0, 1, 3})
        for (const double top_p : {1.0, 0.95, 1e-12}) {
          const Tensor logits = random.values(dtype, {rows, vocabulary}, 3);
          Tensor probs(Dtype::kF32, {rows, vocabulary});
          poison(probs);
          OpHarness op(ops::Softmax::kName);
          op.add(logits).add(probs).attributes().set("temperature", 0.8).set("top_p", top_p);
          INFO(vocabulary << " " << rows << " " << top_p);
          require_gpu_agreement(*device, op, ops::Softmax::kName, "softmax", {{ops::Softmax::kProbs, &probs}});

          REQUIRE(!op.run("softmax"));
          Tensor uniform(Dtype::kF32, {rows});
          for (int64_t r = 0; r < rows; ++r) uniform.view().store(r, static_cast<float>(random.below(1000)) / 1000);
          Tensor tokens(Dtype::kI32, {rows});
          for (const char* kernel : {"pytorch", "flashinfer"}) {
            poison(tokens);
            OpHarness sample(ops::Sample::kName);
            sample.add(probs).add(uniform).add(tokens);
            require_gpu_agreement(*device, sample, ops::Sample::kName, kernel, {{ops::Sample::kTokens, &tokens}});
          }
          poison(tokens);
          OpHarness argmax(ops::Argmax::kName);
          argmax.add(logits).add(tokens);
          require_gpu_agreement(*device, argmax, ops::Argmax::kName, "argmax", {{ops::Argmax::kTokens, &tokens}});
        }
}

TEST_CASE("rows that are not numbers, ties and draws past the mass on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  constexpr int64_t kVocabulary = 154880;
  Random random(33);
  Tensor logits = random.values(Dtype::kBF16, {6, kVocabulary}, 2);
  logits.view().store(77, kNan);
  logits.view().store(kVocabulary + 100000, INFINITY);
  for (int64_t c = 0; c < kVocabulary; ++c) {
    logits.view().store(2 * kVocabulary + c, -INFINITY);
    logits.view().store(3 * kVocabulary + c, 1.5f);  // ties: the lower ids stay
    logits.view().store(4 * kVocabulary + c, c == 5 ? -1.0f : -INFINITY);
  }
  for (const double top_p : {1.0, 0.5}) {
    Tensor probs(Dtype::kF32, {6, kVocabulary});
    poison(probs);
    OpHarness op(ops::Softmax::kName);
    op.add(logits).add(probs).attributes().set("temperature", 1.0).set("top_p", top_p);
    Tensor twin(probs);
    op.replace(ops::Softmax::kProbs, twin);
    REQUIRE(!op.run("softmax"));
    op.replace(ops::Softmax::kProbs, probs);
    for (const GpuBuild build : kEveryGpuBuild) {
      Tensor got(probs);
      run_on_gpu(*device, op, ops::Softmax::kName, "softmax", build, {{ops::Softmax::kProbs, &got}});
      INFO(build_name(build) << " " << top_p);
      CHECK(difference(values_of(got, nullptr), values_of(twin, nullptr),
                       tolerance_for(ops::Softmax::kName, Dtype::kF32)) == "");
    }
  }
  Tensor tokens(Dtype::kI32, {6});
  OpHarness argmax(ops::Argmax::kName);
  argmax.add(logits).add(tokens);
  for (int64_t c = 0; c < kVocabulary; ++c) logits.view().store(2 * kVocabulary + c, kNan);
  require_gpu_agreement(*device, argmax, ops::Argmax::kName, "argmax", {{ops::Argmax::kTokens, &tokens}});

  Tensor probs(Dtype::kF32, {2, 1000});
  for (int64_t i = 0; i < 2000; ++i) probs.view().store(i, i < 1000 ? 0.0005f : 0.001f);
  Tensor uniform(Dtype::kF32, {2});
  uniform.view().store(0, 0.9f);
  uniform.view().store(1, 0.0f);
  Tensor drawn(Dtype::kI32, {2});
  OpHarness sample(ops::Sample::kName);
  sample.add(probs).add(uniform).add(drawn);
  require_gpu_agreement(*device, sample, ops::Sample::kName, "flashinfer", {{ops::Sample::kTokens, &drawn}});
}

// A process of its own for a fault that ends it: the case below, run by the next one.

// A process of its own for a fault that ends it: the case below, run by the next one.
TEST_CASE("a NaN probability ends the process", "[.device-assert]") {
  const auto device = gpu();
  const Tensor probs = [] {
    Tensor tensor(Dtype::kF32, {1, 300});
    for (int64_t i = 0; i < 300; ++i) tensor.view().store(i, i == 211 ? kNan : 0.003f);
    return tensor;
  }();
  const Tensor uniform = scalar(0.5f);
  const Tensor token(Dtype::kI32, {1});
  OpHarness op(ops::Sample::kName);
  op.add(probs).add(uniform).add(token);
  const bool plain = std::getenv("FAULTLINE_TEST_PLAIN") != nullptr;
  GpuCall call(*device, op.call());
  REQUIRE(!find_kernel(ops::Sample::kName, "pytorch")->run(call.call(plain ? GpuBuild::kPlain : GpuBuild::kFast)));
  const auto fault = device->wait();
  REQUIRE(fault);
  CHECK(fault->verdict == "device-assert");
}

TEST_CASE("an invalid probability asserts in the pytorch kernel alone; its checked build records it", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  for (const char* environment : {"", "FAULTLINE_TEST_PLAIN=1 "}) {
    const std::string command =
        std::string(environment) + "/proc/" + std::to_string(getpid()) + "/exe '[.device-assert]' 2>&1";
    std::FILE* pipe = popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string output;
    std::array<char, 256> line{};
    while (std::fgets(line.data(), line.size(), pipe) != nullptr) output += line.data();
    INFO(output);
    CHECK(pclose(pipe) == 0);
    CHECK(output.find("probability tensor contains either `inf`, `nan` or element < 0") != std::string::npos);
  }
  const auto device = gpu();
  for (const float bad : {kNan, INFINITY, -0.1f}) {
    Tensor probs(Dtype::kF32, {2, 300});
    for (int64_t i = 0; i < 600; ++i) probs.view().store(i, i == 300 + 211 ? bad : 1.0f / 300);
    Tensor uniform(Dtype::kF32, {2});
    uniform.view().store(0, 0.25f);
    uniform.view().store(1, 0.25f);
    Tensor tokens(Dtype::kI32, {2});
    OpHarness op(ops::Sample::kName);
    op.add(probs).add(uniform).add(tokens);
    const GpuRun run =
        run_on_gpu(*device, op, ops::Sample::kName, "pytorch", GpuBuild::kChecked, {{ops::Sample::kTokens, &tokens}});
    CHECK(run.log.count == 1);
    CHECK(run.log.first[0].is_write == kernels::kFailedAssertion);
    CHECK(run.log.first[0].operand == ops::Sample::kProbs);
    CHECK(run.log.first[0].index == 300 + 211);
    for (const GpuBuild build : kEveryGpuBuild) {
      const GpuRun silent =
          run_on_gpu(*device, op, ops::Sample::kName, "flashinfer", build, {{ops::Sample::kTokens, &tokens}});
      CHECK(silent.log.count == 0);
    }
  }
}
