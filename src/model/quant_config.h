// What a checkpoint says about its quantization: hf_quant_config.json, or quantization_config inside config.json. For
// reports only: what is really in the file decides (model/linear.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace faultline {

struct QuantConfig {
  std::string source;               // "hf_quant_config.json" or "config.json (quantization_config)"
  std::string algorithm;            // "NVFP4", "FP8", …; empty: not said
  std::string kv_cache_algorithm;   // empty: not said
  int64_t group_size = 0;           // 0: not said
  std::vector<std::string> ignore;  // modules left unquantized; may hold '*' wildcards
};

// Nothing when neither text speaks of quantization. `hf_quant_text` may be empty (no such file). Bad input: malformed
// JSON, values of the wrong type.
Result<std::optional<QuantConfig>> parse_quant_config(std::string_view config_text, std::string_view config_where,
                                                      std::string_view hf_quant_text, std::string_view hf_quant_where);

// Whether `module` matches an entry of the ignore list ("lm_head", "model.layers.0.self_attn*", "model.layers.78.*").
bool is_ignored(const QuantConfig& config, std::string_view module);

}  // namespace faultline
