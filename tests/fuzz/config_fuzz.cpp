// config.json and quantization metadata of arbitrary bytes: what is accepted has sizes that the rest of the program can
// rely on.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/config.h"
#include "model/expected.h"
#include "model/quant_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace faultline;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto quantization = parse_quant_config(text, "config.json", text, "hf_quant_config.json");
  if (quantization && *quantization) is_ignored(**quantization, "model.layers.0.self_attn.q_a_proj");
  const auto config = parse_model_config(text, "config.json");
  if (!config) {
    FAULTLINE_CHECK(!config.error().message.empty());
    return 0;
  }
  const auto layers = static_cast<size_t>(config->num_hidden_layers);
  FAULTLINE_CHECK(config->layer_is_moe.size() == layers && config->layer_has_indexer.size() == layers);
  FAULTLINE_CHECK(config->layer_has_indexer[0]);
  FAULTLINE_CHECK(config->rope_theta > 0 && config->qk_head_dim() > 0 &&
                  config->num_experts_per_tok <= config->n_routed_experts);
  constexpr int64_t kFewTensors = 4096;
  if (config->num_hidden_layers * config->n_routed_experts > kFewTensors) return 0;
  for (const ExpectedTensor& tensor : expected_tensors(*config)) FAULTLINE_CHECK(tensor.shape[0] > 0);
  return 0;
}
