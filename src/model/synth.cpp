#include "model/synth.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "base/json.h"
#include "base/text.h"
#include "model/checkpoint.h"
#include "model/expected.h"

namespace faultline {
namespace {

using nlohmann::json;

struct Shape {
  const char* name;
  const char* config;  // JSON
};

// The small ones have the sizes of the golden vectors (tests/goldens); "glm-5" is zai-org/GLM-5's config.json. 16 and
// more index heads: with few, whole keys score exactly 0 after the ReLU, and ties decide the top-k.
constexpr std::array kShapes = {
    Shape{"tiny", R"({"vocab_size": 257, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
      "num_hidden_layers": 4, "num_attention_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
      "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 24, "v_head_dim": 32,
      "index_topk": 16, "index_head_dim": 32, "index_n_heads": 16, "first_k_dense_replace": 1,
      "max_position_embeddings": 512})"},
    Shape{"slim", R"({"vocab_size": 512, "hidden_size": 192, "intermediate_size": 256, "moe_intermediate_size": 64,
      "num_hidden_layers": 3, "num_attention_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 3,
      "kv_lora_rank": 512, "q_lora_rank": 128, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256,
      "index_topk": 64, "index_head_dim": 128, "index_n_heads": 16, "first_k_dense_replace": 1,
      "max_position_embeddings": 1024})"},
    Shape{"wide", R"({"vocab_size": 320, "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 256,
      "num_hidden_layers": 3, "num_attention_heads": 16, "n_routed_experts": 8, "num_experts_per_tok": 3,
      "kv_lora_rank": 64, "q_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32,
      "index_topk": 24, "index_head_dim": 32, "index_n_heads": 16, "first_k_dense_replace": 1,
      "max_position_embeddings": 512})"},
    Shape{"shared-index",
          R"({"vocab_size": 257, "hidden_size": 96, "intermediate_size": 128, "moe_intermediate_size": 48,
      "num_hidden_layers": 6, "num_attention_heads": 6, "n_routed_experts": 12, "num_experts_per_tok": 3,
      "n_group": 4, "topk_group": 2, "n_shared_experts": 2, "kv_lora_rank": 32, "q_lora_rank": 32,
      "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "index_topk": 12, "index_head_dim": 32,
      "index_n_heads": 16, "first_k_dense_replace": 2, "max_position_embeddings": 512, "index_topk_freq": 3,
      "index_skip_topk_offset": 2})"},
    Shape{"glm-5", R"({"vocab_size": 154880, "hidden_size": 6144, "intermediate_size": 12288,
      "moe_intermediate_size": 2048, "num_hidden_layers": 78, "num_attention_heads": 64, "n_routed_experts": 256,
      "num_experts_per_tok": 8, "kv_lora_rank": 512, "q_lora_rank": 2048, "qk_rope_head_dim": 64,
      "qk_nope_head_dim": 192, "v_head_dim": 256, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32,
      "first_k_dense_replace": 3, "max_position_embeddings": 202752, "num_nextn_predict_layers": 1,
      "eos_token_id": [154820, 154827, 154829], "pad_token_id": 154820})"},
};

// What every shape has unless it says otherwise.
constexpr const char* kCommonConfig = R"({"model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"],
  "dtype": "bfloat16", "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "rms_norm_eps": 1e-05,
  "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "routed_scaling_factor": 2.5,
  "norm_topk_prob": true, "rope_interleave": true, "indexer_rope_interleave": true, "tie_word_embeddings": false,
  "scoring_func": "sigmoid", "topk_method": "noaux_tc", "hidden_act": "silu", "attention_bias": false,
  "num_nextn_predict_layers": 0, "eos_token_id": [1], "bos_token_id": 0, "use_cache": true})";

enum class ValueType { kWhole, kReal, kFlag, kText, kWholeList };
struct Key {
  const char* name;
  ValueType type;
};
constexpr std::array kConfigKeys = {
    Key{"eos_token_id", ValueType::kWholeList},
    Key{"first_k_dense_replace", ValueType::kWhole},
    Key{"hidden_size", ValueType::kWhole},
    Key{"index_head_dim", ValueType::kWhole},
    Key{"index_n_heads", ValueType::kWhole},
    Key{"index_skip_topk_offset", ValueType::kWhole},
    Key{"index_topk", ValueType::kWhole},
    Key{"index_topk_freq", ValueType::kWhole},
    Key{"index_topk_pattern", ValueType::kText},
    Key{"indexer_rope_interleave", ValueType::kFlag},
    Key{"intermediate_size", ValueType::kWhole},
    Key{"kv_lora_rank", ValueType::kWhole},
    Key{"max_position_embeddings", ValueType::kWhole},
    Key{"moe_intermediate_size", ValueType::kWhole},
    Key{"moe_layer_freq", ValueType::kWhole},
    Key{"n_group", ValueType::kWhole},
    Key{"n_routed_experts", ValueType::kWhole},
    Key{"n_shared_experts", ValueType::kWhole},
    Key{"norm_topk_prob", ValueType::kFlag},
    Key{"num_attention_heads", ValueType::kWhole},
    Key{"num_experts_per_tok", ValueType::kWhole},
    Key{"num_hidden_layers", ValueType::kWhole},
    Key{"num_nextn_predict_layers", ValueType::kWhole},
    Key{"q_lora_rank", ValueType::kWhole},
    Key{"qk_nope_head_dim", ValueType::kWhole},
    Key{"qk_rope_head_dim", ValueType::kWhole},
    Key{"rms_norm_eps", ValueType::kReal},
    Key{"rope_interleave", ValueType::kFlag},
    Key{"rope_theta", ValueType::kReal},
    Key{"routed_scaling_factor", ValueType::kReal},
    Key{"tie_word_embeddings", ValueType::kFlag},
    Key{"topk_group", ValueType::kWhole},
    Key{"v_head_dim", ValueType::kWhole},
    Key{"vocab_size", ValueType::kWhole},
};
// Settings of the generator itself.
constexpr std::array kOwnKeys = {Key{"dense_fp4", ValueType::kFlag}, Key{"seed", ValueType::kWhole},
                                 Key{"zero_row", ValueType::kWhole}};

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

Result<json> parse_value(const Key& key, std::string_view text) {
  switch (key.type) {
    case ValueType::kWhole:
      if (const auto value = number<uint64_t>(text)) return json(*value);
      return bad_input("{}={}: must be a whole number", key.name, quotable(text));
    case ValueType::kReal:
      if (const auto value = number<double>(text); value && std::isfinite(*value)) return json(*value);
      return bad_input("{}={}: must be a number", key.name, quotable(text));
    case ValueType::kFlag:
      if (text == "1" || text == "true") return json(true);
      if (text == "0" || text == "false") return json(false);
      return bad_input("{}={}: must be 0 or 1", key.name, quotable(text));
    case ValueType::kText:
      return json(std::string(text));
    case ValueType::kWholeList: {
      json list = json::array();
      for (size_t at = 0; at <= text.size();) {
        const size_t comma = std::min(text.find(',', at), text.size());
        const auto value = number<uint64_t>(text.substr(at, comma - at));
        if (!value) return bad_input("{}={}: must be whole numbers with commas between them", key.name, quotable(text));
        list.push_back(*value);
        at = comma + 1;
      }
      return list;
    }
  }
  return json();
}

template <class Keys>
const Key* find_key(const Keys& keys, std::string_view name) {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

void apply(json& config, const std::string& key, json value) {
  if (key == "rope_theta") {
    config["rope_parameters"]["rope_theta"] = std::move(value);
  } else {
    config[key] = std::move(value);
  }
}

Status apply_own(SynthModel& model, std::string_view key, const json& value) {
  if (key == "dense_fp4") model.dense_fp4 = value.get<bool>();
  if (key == "seed") model.seed = value.get<uint64_t>();
  if (key == "zero_row") {
    const auto row = value.get<uint64_t>();
    if (row > static_cast<uint64_t>(INT32_MAX)) return bad_input("zero_row={}: no such row", row);
    model.zero_row = static_cast<int64_t>(row);
  }
  return {};
}

// A vocabulary made smaller leaves the real model's end tokens outside.
void clip_eos(json& config) {
  json kept = json::array();
  for (const json& id : config["eos_token_id"]) {
    if (id < config["vocab_size"]) kept.push_back(id);
  }
  if (!kept.empty()) {
    config["eos_token_id"] = kept;
  } else {
    config["eos_token_id"] = {1};
    config.erase("pad_token_id");
  }
}

bool is_fp4(const SynthModel& model, const ExpectedTensor& tensor) {
  if (!tensor.projection) return false;
  const bool expert = tensor.name.find(".mlp.experts.") != std::string::npos;
  const bool dense = tensor.name.find(".mlp.") != std::string::npos && !tensor.name.ends_with(".mlp.gate.weight");
  return expert || (dense && model.dense_fp4);
}

std::string module_of(const std::string& weight_name) {
  constexpr std::string_view kSuffix = ".weight";
  return weight_name.substr(0, weight_name.size() - kSuffix.size());
}

json ignored_modules(const SynthModel& model) {
  json ignored = json::array();
  std::vector<std::string> names;
  for (const ExpectedTensor& tensor : expected_tensors(model.config)) {
    if (tensor.projection && !is_fp4(model, tensor)) names.push_back(module_of(tensor.name));
  }
  std::sort(names.begin(), names.end());
  for (std::string& name : names) ignored.push_back(std::move(name));
  return ignored;
}

json producer() {
  return {{"name", "faultline synth"}, {"version", "1"}};
}

json quantization_block(const SynthModel& model) {
  const json scheme = {{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", kNvfp4BlockSize}};
  return {{"config_groups",
           {{"group_0", {{"input_activations", scheme}, {"weights", scheme}, {"targets", json::array({"Linear"})}}}}},
          {"ignore", ignored_modules(model)},
          {"quant_algo", "NVFP4"},
          {"quant_method", "modelopt"},
          {"producer", producer()}};
}

// The keys that Hugging Face derives and saves, and the quantization block.
json complete(json config, const SynthModel& model) {
  const ModelConfig& c = model.config;
  config["qk_head_dim"] = c.qk_head_dim();
  config["head_dim"] = c.qk_rope_head_dim;
  config["num_key_value_heads"] = c.num_attention_heads;
  json mlp = json::array();
  json indexers = json::array();
  json layers = json::array();
  for (size_t i = 0; i < c.layer_is_moe.size(); ++i) {
    mlp.push_back(c.layer_is_moe[i] ? "sparse" : "dense");
    indexers.push_back(c.layer_has_indexer[i] ? "full" : "shared");
    layers.push_back("deepseek_sparse_attention");
  }
  config["mlp_layer_types"] = mlp;
  config["indexer_types"] = indexers;
  config["layer_types"] = layers;
  config["quantization_config"] = quantization_block(model);
  return config;
}

Status check_fp4_widths(const SynthModel& model) {
  for (const ExpectedTensor& tensor : expected_tensors(model.config)) {
    if (is_fp4(model, tensor) && tensor.shape[1] % kNvfp4BlockSize != 0) {
      return bad_input(
          "{} would have {} columns; NVFP4 needs a multiple of {} (hidden_size, intermediate_size, "
          "moe_intermediate_size)",
          tensor.name, tensor.shape[1], kNvfp4BlockSize);
    }
  }
  return {};
}

std::string canonical_spec(std::string_view name, SynthSettings settings) {
  std::sort(settings.begin(), settings.end());
  std::string spec = fmt::format("{}{}", kSynthPrefix, name);
  for (size_t i = 0; i < settings.size(); ++i) {
    spec += fmt::format("{}{}={}", i == 0 ? '?' : '&', settings[i].first, settings[i].second);
  }
  return spec;
}

constexpr int kIndent = 1;

}  // namespace

std::vector<std::string> synth_names() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

std::vector<std::string> synth_keys() {
  std::vector<std::string> keys;
  for (const Key& key : kConfigKeys) keys.emplace_back(key.name);
  for (const Key& key : kOwnKeys) keys.emplace_back(key.name);
  std::sort(keys.begin(), keys.end());
  return keys;
}

Result<SynthModel> make_synth(std::string_view name, const SynthSettings& settings) {
  const auto shape = std::find_if(kShapes.begin(), kShapes.end(), [&](const Shape& s) { return s.name == name; });
  if (shape == kShapes.end()) {
    return bad_input("unknown synthetic model '{}'{}", quotable(name), suggestion(name, synth_names()));
  }
  SynthModel model;
  model.spec = canonical_spec(name, settings);
  json config = json::parse(kCommonConfig);
  config.update(json::parse(shape->config));
  std::map<std::string, std::string> seen;
  for (const auto& [key, text] : settings) {
    if (!seen.emplace(key, text).second) return bad_input("{}: '{}' is set twice", model.spec, key);
    const Key* own = find_key(kOwnKeys, key);
    const Key* known = own != nullptr ? own : find_key(kConfigKeys, key);
    if (known == nullptr) {
      return bad_input("{}: unknown setting '{}'{}", model.spec, quotable(key), suggestion(key, synth_keys()));
    }
    FAULTLINE_TRY(json value, parse_value(*known, text));
    if (own != nullptr) {
      FAULTLINE_TRY_STATUS(apply_own(model, key, value));
    } else {
      apply(config, key, std::move(value));
    }
  }
  if (!seen.contains("eos_token_id")) clip_eos(config);
  FAULTLINE_TRY(model.config, parse_model_config(dump_json(config), model.spec));
  if (model.zero_row >= model.config.vocab_size) {
    return bad_input("{}: zero_row={}, but the vocabulary has {} rows", model.spec, model.zero_row,
                     model.config.vocab_size);
  }
  FAULTLINE_TRY_STATUS(check_fp4_widths(model));
  model.config_text = dump_json(complete(std::move(config), model), kIndent) + "\n";
  return model;
}

Result<SynthModel> parse_synth_spec(std::string_view spec) {
  if (!spec.starts_with(kSynthPrefix)) {
    return bad_input("'{}': a synthetic model is synth:NAME?key=value&…", quotable(spec));
  }
  const std::string_view rest = spec.substr(kSynthPrefix.size());
  const size_t question = std::min(rest.find('?'), rest.size());
  SynthSettings settings;
  std::string_view list = rest.substr(std::min(question + 1, rest.size()));
  while (!list.empty()) {
    const size_t end = std::min(list.find('&'), list.size());
    const std::string_view item = list.substr(0, end);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return bad_input("'{}': '{}' is no key=value", quotable(spec), quotable(item));
    }
    settings.emplace_back(item.substr(0, equals), item.substr(equals + 1));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return make_synth(rest.substr(0, question), settings);
}

std::vector<SafetensorsEntry> synth_tensors(const SynthModel& model) {
  std::vector<SafetensorsEntry> result;
  for (const ExpectedTensor& tensor : expected_tensors(model.config)) {
    if (is_fp4(model, tensor)) {
      const auto [out, in] = tensor.shape;
      const std::string module = module_of(tensor.name);
      result.push_back({tensor.name, Dtype::kU8, 2, {out, in / 2}, 0, 0});
      result.push_back({module + ".weight_scale", Dtype::kF8E4M3, 2, {out, in / kNvfp4BlockSize}, 0, 0});
      result.push_back({module + ".weight_scale_2", Dtype::kF32, 0, {}, 0, 0});
      result.push_back({module + ".input_scale", Dtype::kF32, 0, {}, 0, 0});
      continue;
    }
    // bf16 would collapse the bias to 8 values (its step near 7 is 0.03): the checkpoint keeps it in F32.
    const bool router_bias = tensor.name.ends_with("e_score_correction_bias");
    result.push_back(
        {tensor.name, router_bias ? Dtype::kF32 : Dtype::kBF16, tensor.rank, {tensor.shape[0], tensor.shape[1]}, 0, 0});
  }
  std::sort(result.begin(), result.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.name < b.name; });
  return result;
}

std::string lay_out(std::vector<SafetensorsEntry>& entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return dtype_bytes(a.dtype) != dtype_bytes(b.dtype) ? dtype_bytes(a.dtype) > dtype_bytes(b.dtype) : a.name < b.name;
  });
  uint64_t at = 0;
  for (SafetensorsEntry& entry : entries) {
    uint64_t bytes = dtype_bytes(entry.dtype);
    for (int i = 0; i < entry.rank; ++i) bytes *= static_cast<uint64_t>(entry.shape[static_cast<size_t>(i)]);
    entry.begin = at;
    entry.end = at += bytes;
  }
  std::string header = make_safetensors_header(entries);
  for (SafetensorsEntry& entry : entries) {
    entry.begin += header.size();
    entry.end += header.size();
  }
  return header;
}

std::string synth_quant_text(const SynthModel& model) {
  const json root = {{"producer", producer()},
                     {"quantization",
                      {{"quant_algo", "NVFP4"},
                       {"kv_cache_quant_algo", nullptr},
                       {"group_size", kNvfp4BlockSize},
                       {"exclude_modules", ignored_modules(model)}}}};
  return dump_json(root, kIndent) + "\n";
}

}  // namespace faultline
