#include <algorithm>
#include <cmath>
#include <set>

#include "device_model.h"
#include "engine/forward.h"
#include "golden.h"
#include "gpu_testing.h"

using namespace faultline;

namespace {

constexpr float kGoldenTolerance = 2e-4f;  // absolute, on logits of order one: float32 sums in another order

EngineConfig reference_config() {
  EngineConfig config;
  config.reference_kernels = true;
  config.checks = CheckLevel::kFull;
  config.kv_format = Format::kKvF32;
  config.prefill_reads = config.decode_reads = Format::kKvF32;
  config.transformers_numerics = true;
  return config;
}

void require_close(const std::vector<float>& out, const std::vector<float>& reference) {
  REQUIRE(out.size() == reference.size());
  float worst = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const float error = std::abs(out[i] - reference[i]);
    if (!(error <= worst)) worst = error;
  }
  REQUIRE(worst <= kGoldenTolerance);
}

struct Prompts {
  std::vector<std::vector<int32_t>> ids;
  int64_t decode = 0;
};

Prompts prompts_of(const Golden& golden) {
  Prompts prompts;
  for (int i = 0; golden.has("prompt" + std::to_string(i) + ".input_ids"); ++i) {
    prompts.ids.push_back(golden.integers("prompt" + std::to_string(i) + ".input_ids"));
    prompts.decode = golden.tensors.at("prompt" + std::to_string(i) + ".decode.tokens").dim(0);
  }
  return prompts;
}

void require_golden(const Golden& golden, int prompt, const ForwardResult& result) {
  const std::string name = "prompt" + std::to_string(prompt) + ".";
  require_close(result.prefill_logits, golden.floats(name + "prefill.logits"));
  require_close(result.prefill_hidden, golden.floats(name + "prefill.hidden"));
  REQUIRE(result.decode_tokens == golden.integers(name + "decode.tokens"));
  require_close(result.decode_logits, golden.floats(name + "decode.logits"));
  for (const auto& [layer, topk] : result.topk) {
    const auto expected = golden.integers(name + "prefill.topk.layer" + std::to_string(layer));
    REQUIRE(expected.size() == topk.size());
    const size_t rows = result.input_ids.size();
    const size_t width = topk.size() / rows;
    for (size_t row = 0; row < rows; ++row) {
      std::set<int32_t> ours, theirs;
      for (size_t j = 0; j < width; ++j) {
        const int32_t a = topk[row * width + j];
        const int32_t b = expected[row * width + j];
        if (a >= 0) ours.insert(a);
        if (b >= 0 && b <= static_cast<int32_t>(row)) theirs.insert(b);
      }
      REQUIRE(ours == theirs);
    }
  }
}

std::vector<ForwardResult> forward(DeviceModel& model, const EngineConfig& config,
                                   const std::vector<std::vector<int32_t>>& prompts, int64_t decode) {
  auto results = run_forward(model.weights(), config, prompts, decode, &model.mirror());
  if (!results) FAIL(results.error().message);
  return std::move(*results);
}

void test_goldens(const std::string& variant, const std::string& device) {
  const Golden golden = load_golden(variant);
  DeviceModel model(golden_folder(variant), device);
  const Prompts prompts = prompts_of(golden);

  SECTION("each prompt alone") {
    for (size_t i = 0; i < prompts.ids.size(); ++i) {
      CAPTURE(i);
      const auto results = forward(model, reference_config(), {prompts.ids[i]}, prompts.decode);
      require_golden(golden, static_cast<int>(i), results.front());
    }
  }
  SECTION("all prompts in one ragged batch give what they give alone") {
    const auto results = forward(model, reference_config(), prompts.ids, prompts.decode);
    for (size_t i = 0; i < prompts.ids.size(); ++i) {
      CAPTURE(i);
      require_golden(golden, static_cast<int>(i), results[i]);
    }
  }
  SECTION("chunked prefill gives what a whole one gives") {
    EngineConfig config = reference_config();
    config.chunk = 13;
    const auto results = forward(model, config, {prompts.ids.back()}, prompts.decode);
    require_golden(golden, static_cast<int>(prompts.ids.size()) - 1, results.front());
  }
  SECTION("recorded decode with padded batches gives the same") {
    EngineConfig config = reference_config();
    config.cuda_graph = true;
    const std::vector<std::vector<int32_t>> three(prompts.ids.begin(), prompts.ids.begin() + 3);
    const auto results = forward(model, config, three, prompts.decode);
    for (size_t i = 0; i < three.size(); ++i) require_golden(golden, static_cast<int>(i), results[i]);
  }
}

}  // namespace

TEST_CASE("reference kernels on an f32 cache give the logits, hidden states and top-k sets of transformers") {
  const std::string variant = GENERATE("tiny", "slim", "shared-index", "wide");
  CAPTURE(variant);
  test_goldens(variant, "cpu");
}

TEST_CASE("the same on a GPU, with the references that run there", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const std::string variant = GENERATE("tiny", "slim", "shared-index", "wide");
  CAPTURE(variant);
  test_goldens(variant, "cuda:0");
}
