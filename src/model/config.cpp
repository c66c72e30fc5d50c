#include "model/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/json.h"

namespace faultline {
namespace {

using nlohmann::json;

// Bounds keep every product of two sizes far from overflow, and a hostile file from asking for more than any model has.
constexpr int64_t kMaxSize = int64_t{1} << 22;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxExpertsOfAllLayers = int64_t{1} << 17;  // GLM-5 has 19,200; each stands for up to 12 tensors
constexpr int64_t kMaxPositions = int64_t{1} << 30;
constexpr int64_t kDefaultSkipTopkOffset = 2;  // as SGLang and vLLM default index_skip_topk_offset
constexpr int64_t kPackedCacheQuarters = 4;    // the packed FP8 cache has one scale a quarter of the latent

struct SizeKey {
  const char* key;
  int64_t ModelConfig::*field;
  int64_t fallback;  // GlmMoeDsaConfig's default
  int64_t minimum;
  int64_t maximum;
};

constexpr std::array kSizeKeys = {
    SizeKey{"vocab_size", &ModelConfig::vocab_size, 154880, 2, kMaxSize},
    SizeKey{"hidden_size", &ModelConfig::hidden_size, 6144, 1, kMaxSize},
    SizeKey{"intermediate_size", &ModelConfig::intermediate_size, 12288, 1, kMaxSize},
    SizeKey{"moe_intermediate_size", &ModelConfig::moe_intermediate_size, 2048, 1, kMaxSize},
    SizeKey{"num_hidden_layers", &ModelConfig::num_hidden_layers, 78, 1, kMaxLayers},
    SizeKey{"num_attention_heads", &ModelConfig::num_attention_heads, 64, 1, kMaxSize},
    SizeKey{"n_routed_experts", &ModelConfig::n_routed_experts, 256, 1, kMaxExperts},
    SizeKey{"n_shared_experts", &ModelConfig::n_shared_experts, 1, 1, kMaxExperts},
    SizeKey{"num_experts_per_tok", &ModelConfig::num_experts_per_tok, 8, 1, kMaxExperts},
    SizeKey{"n_group", &ModelConfig::n_group, 1, 1, kMaxExperts},
    SizeKey{"topk_group", &ModelConfig::topk_group, 1, 1, kMaxExperts},
    SizeKey{"kv_lora_rank", &ModelConfig::kv_lora_rank, 512, 1, kMaxSize},
    SizeKey{"q_lora_rank", &ModelConfig::q_lora_rank, 2048, 1, kMaxSize},
    SizeKey{"qk_nope_head_dim", &ModelConfig::qk_nope_head_dim, 192, 1, kMaxSize},
    SizeKey{"qk_rope_head_dim", &ModelConfig::qk_rope_head_dim, 64, 2, kMaxSize},
    SizeKey{"v_head_dim", &ModelConfig::v_head_dim, 256, 1, kMaxSize},
    SizeKey{"index_topk", &ModelConfig::index_topk, 2048, 1, kMaxSize},
    SizeKey{"index_head_dim", &ModelConfig::index_head_dim, 128, 1, kMaxSize},
    SizeKey{"index_n_heads", &ModelConfig::index_n_heads, 32, 1, kMaxSize},
    SizeKey{"max_position_embeddings", &ModelConfig::max_position_embeddings, 202752, 1, kMaxPositions},
};

// Keys whose only supported value is the one that GLM-5 has.
struct FixedKey {
  const char* key;
  const char* value;  // as JSON text
};
constexpr std::array kFixedKeys = {
    FixedKey{"scoring_func", "\"sigmoid\""}, FixedKey{"topk_method", "\"noaux_tc\""},
    FixedKey{"hidden_act", "\"silu\""},      FixedKey{"attention_bias", "false"},
    FixedKey{"mlp_bias", "false"},
};

std::string shown(const json& value) {
  constexpr size_t kLongest = 60;
  std::string text = dump_json(value);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "…";
  return text;
}

class Reader {
 public:
  Reader(const json& root, std::string_view where) : root_(root), where_(where) {}

  // The value, or null when the key is missing or null: Hugging Face writes null for "not set".
  const json* find(const char* key) const {
    const auto found = root_.find(key);
    return found == root_.end() || found->is_null() ? nullptr : &*found;
  }

  Result<int64_t> integer(const char* key, const json& value, int64_t minimum, int64_t maximum) const {
    if (!value.is_number_integer()) {
      return bad_input("{}: {} must be a whole number, and is {}", where_, key, shown(value));
    }
    // Unsigned values above INT64_MAX would turn negative, and are out of bounds either way.
    const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
    if (huge || value.get<int64_t>() < minimum || value.get<int64_t>() > maximum) {
      return bad_input("{}: {} is {}; it must be from {} to {}", where_, key, shown(value), minimum, maximum);
    }
    return value.get<int64_t>();
  }
  Result<double> positive(const char* key, const json& value) const {
    if (!value.is_number()) return bad_input("{}: {} must be a number, and is {}", where_, key, shown(value));
    const double number = value.get<double>();
    if (!(number > 0) || !std::isfinite(number)) {
      return bad_input("{}: {} is {}; it must be above 0 and finite", where_, key, shown(value));
    }
    return number;
  }
  Result<bool> flag(const char* key, const json& value) const {
    if (!value.is_boolean()) return bad_input("{}: {} must be true or false, and is {}", where_, key, shown(value));
    return value.get<bool>();
  }

  std::string_view where() const { return where_; }
  const json& root() const { return root_; }

 private:
  const json& root_;
  std::string_view where_;
};

Status check_architecture(const Reader& reader) {
  const json* type = reader.find("model_type");
  if (type == nullptr || !type->is_string()) {
    return bad_input("{}: no model_type; a GLM-5 checkpoint says \"glm_moe_dsa\"", reader.where());
  }
  if (*type != "glm_moe_dsa") {
    return bad_input("{}: model_type is {}; only \"glm_moe_dsa\" (GLM-5) is supported", reader.where(), shown(*type));
  }
  const json* architectures = reader.find("architectures");
  if (architectures == nullptr) {
    return bad_input("{}: no architectures; a GLM-5 checkpoint says [\"GlmMoeDsaForCausalLM\"]", reader.where());
  }
  if (!architectures->is_array() || architectures->size() != 1 || architectures->front() != "GlmMoeDsaForCausalLM") {
    return bad_input("{}: architectures is {}; only [\"GlmMoeDsaForCausalLM\"] is supported", reader.where(),
                     shown(*architectures));
  }
  for (const FixedKey& fixed : kFixedKeys) {
    const json* value = reader.find(fixed.key);
    if (value != nullptr && dump_json(*value) != fixed.value) {
      return bad_input("{}: {} is {}; only {} is supported, as GLM-5 has it", reader.where(), fixed.key, shown(*value),
                       fixed.value);
    }
  }
  return {};
}

Status read_sizes(const Reader& reader, ModelConfig& config) {
  for (const SizeKey& size : kSizeKeys) {
    const json* value = reader.find(size.key);
    if (value == nullptr) {
      config.*size.field = size.fallback;
      config.notes.push_back(
          fmt::format("{} is missing; GlmMoeDsaConfig's default {} was taken", size.key, size.fallback));
      continue;
    }
    FAULTLINE_TRY(config.*size.field, reader.integer(size.key, *value, size.minimum, size.maximum));
  }
  config.num_nextn_predict_layers = 0;
  if (const json* value = reader.find("num_nextn_predict_layers")) {
    FAULTLINE_TRY(config.num_nextn_predict_layers, reader.integer("num_nextn_predict_layers", *value, 0, kMaxLayers));
  }
  return {};
}

Status read_numbers(const Reader& reader, ModelConfig& config) {
  struct Real {
    const char* key;
    double ModelConfig::*field;
    double fallback;
  };
  constexpr std::array kReals = {Real{"rms_norm_eps", &ModelConfig::rms_norm_eps, 1e-5},
                                 Real{"routed_scaling_factor", &ModelConfig::routed_scaling_factor, 2.5}};
  for (const Real& real : kReals) {
    config.*real.field = real.fallback;
    const json* value = reader.find(real.key);
    if (value == nullptr) {
      config.notes.push_back(
          fmt::format("{} is missing; GlmMoeDsaConfig's default {} was taken", real.key, real.fallback));
      continue;
    }
    FAULTLINE_TRY(config.*real.field, reader.positive(real.key, *value));
  }
  struct Flag {
    const char* key;
    bool ModelConfig::*field;
    bool fallback;
  };
  // Both interleave flags are no declared fields of the newest class, so a saved config may lack them: no note.
  constexpr std::array kFlags = {Flag{"norm_topk_prob", &ModelConfig::norm_topk_prob, true},
                                 Flag{"rope_interleave", &ModelConfig::rope_interleave, true},
                                 Flag{"indexer_rope_interleave", &ModelConfig::indexer_rope_interleave, true},
                                 Flag{"tie_word_embeddings", &ModelConfig::tie_word_embeddings, false}};
  for (const Flag& flag : kFlags) {
    config.*flag.field = flag.fallback;
    if (const json* value = reader.find(flag.key)) {
      FAULTLINE_TRY(config.*flag.field, reader.flag(flag.key, *value));
    }
  }
  const json* eos = reader.find("eos_token_id");
  if (eos == nullptr) {
    config.notes.emplace_back("eos_token_id is missing; no token ends a sequence");
    return {};
  }
  const json list = eos->is_array() ? *eos : json::array({*eos});
  for (const json& id : list) {
    FAULTLINE_TRY(const int64_t token, reader.integer("eos_token_id", id, 0, kMaxSize));
    config.eos_token_ids.push_back(token);
  }
  return {};
}

// transformers 5 keeps everything in rope_parameters, version 4 had rope_theta beside rope_scaling; version 5 still has
// rope_scaling as an alias. Wherever theta is found twice, both must agree.
Status read_rope(const Reader& reader, ModelConfig& config) {
  std::optional<double> theta;
  std::string theta_key;
  const auto take_theta = [&](const std::string& key, const json& value) -> Status {
    FAULTLINE_TRY(const double found, reader.positive(key.c_str(), value));
    if (theta && *theta != found) {
      return bad_input("{}: {} is {} but {} is {}; keep the right one", reader.where(), theta_key, *theta, key, found);
    }
    theta = found;
    theta_key = key;
    return {};
  };
  for (const char* block : {"rope_parameters", "rope_scaling"}) {
    const json* parameters = reader.find(block);
    if (parameters == nullptr) continue;
    if (!parameters->is_object()) {
      return bad_input("{}: {} must be an object with rope_theta and rope_type, and is {}", reader.where(), block,
                       shown(*parameters));
    }
    for (const char* type_key : {"rope_type", "type"}) {
      const auto type = parameters->find(type_key);
      if (type != parameters->end() && *type != "default") {
        return bad_input("{}: {}.{} is {}; only \"default\" (unscaled RoPE, as GLM-5 has it) is supported",
                         reader.where(), block, type_key, shown(*type));
      }
    }
    const auto found = parameters->find("rope_theta");
    if (found != parameters->end()) FAULTLINE_TRY_STATUS(take_theta(fmt::format("{}.rope_theta", block), *found));
  }
  if (const json* value = reader.find("rope_theta")) FAULTLINE_TRY_STATUS(take_theta("rope_theta", *value));
  if (!theta) {
    return bad_input(
        "{}: no rope_theta, neither in rope_parameters nor in rope_scaling nor at the top level; readers that fall "
        "back to "
        "10000 compute another model. Restore it from the original config.json (GLM-5: \"rope_parameters\": "
        "{{\"rope_theta\": 1000000, \"rope_type\": \"default\"}})",
        reader.where());
  }
  config.rope_theta = *theta;
  return {};
}

// A list with one word a layer. MTP layers may be listed too, and are left out.
Result<std::vector<bool>> layer_words(const Reader& reader, const ModelConfig& config, const char* key,
                                      const json& list, std::string_view yes, std::string_view no) {
  const int64_t layers = config.num_hidden_layers;
  const int64_t listed = list.is_array() ? static_cast<int64_t>(list.size()) : -1;
  if (listed != layers && listed != layers + config.num_nextn_predict_layers) {
    return bad_input("{}: {} must be a list of {} words, one a layer, and is {}", reader.where(), key, layers,
                     listed < 0 ? shown(list) : fmt::format("{} long", listed));
  }
  std::vector<bool> result;
  for (int64_t i = 0; i < layers; ++i) {
    const json& word = list[static_cast<size_t>(i)];
    if (word != yes && word != no) {
      return bad_input("{}: {}[{}] is {}; it must be \"{}\" or \"{}\"", reader.where(), key, i, shown(word), yes, no);
    }
    result.push_back(word == yes);
  }
  return result;
}

Status read_mlp_layers(const Reader& reader, ModelConfig& config) {
  std::optional<std::vector<bool>> listed;
  if (const json* list = reader.find("mlp_layer_types")) {
    FAULTLINE_TRY(listed, layer_words(reader, config, "mlp_layer_types", *list, "sparse", "dense"));
  }
  constexpr int64_t kDefaultDenseLayers = 3;
  int64_t dense = std::min(kDefaultDenseLayers, config.num_hidden_layers);
  int64_t frequency = 1;
  const json* dense_value = reader.find("first_k_dense_replace");
  if (dense_value != nullptr) {
    FAULTLINE_TRY(dense, reader.integer("first_k_dense_replace", *dense_value, 0, kMaxLayers));
  }
  if (const json* value = reader.find("moe_layer_freq")) {
    FAULTLINE_TRY(frequency, reader.integer("moe_layer_freq", *value, 1, kMaxLayers));
  }
  std::vector<bool> derived;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) derived.push_back(i >= dense && i % frequency == 0);
  if (!listed && dense_value == nullptr) {
    config.notes.push_back(fmt::format(
        "neither mlp_layer_types nor first_k_dense_replace is given; the first {} layers were taken as dense", dense));
  }
  if (listed && dense_value != nullptr && *listed != derived) {
    config.notes.emplace_back(
        "mlp_layer_types and first_k_dense_replace disagree; mlp_layer_types was taken, SGLang 0.5.9 takes the other");
  }
  config.layer_is_moe = listed ? *listed : derived;
  return {};
}

Result<std::vector<bool>> pattern_layers(const Reader& reader, const ModelConfig& config, const json& pattern) {
  const int64_t layers = config.num_hidden_layers;
  const std::string text = pattern.is_string() ? pattern.get<std::string>() : std::string();
  const int64_t length = static_cast<int64_t>(text.size());
  const bool fits = length == layers || length == layers + config.num_nextn_predict_layers;
  if (!fits || text.find_first_not_of("FS") != std::string::npos) {
    return bad_input("{}: index_topk_pattern must be {} letters F (full) or S (shared), one a layer, and is {}",
                     reader.where(), layers, shown(pattern));
  }
  std::vector<bool> result;
  for (int64_t i = 0; i < layers; ++i) result.push_back(text[static_cast<size_t>(i)] == 'F');
  return result;
}

Status read_indexer_layers(const Reader& reader, ModelConfig& config) {
  struct Source {
    const char* key;
    std::vector<bool> layers;
  };
  std::vector<Source> sources;  // in the order of precedence
  if (const json* list = reader.find("indexer_types")) {
    FAULTLINE_TRY(std::vector<bool> layers, layer_words(reader, config, "indexer_types", *list, "full", "shared"));
    sources.push_back({"indexer_types", std::move(layers)});
  }
  if (const json* pattern = reader.find("index_topk_pattern")) {
    FAULTLINE_TRY(std::vector<bool> layers, pattern_layers(reader, config, *pattern));
    sources.push_back({"index_topk_pattern", std::move(layers)});
  }
  int64_t frequency = 1;
  int64_t offset = kDefaultSkipTopkOffset;
  for (const char* key : {"index_skip_topk_offset", "index_topk_offset"}) {
    if (const json* value = reader.find(key)) {
      FAULTLINE_TRY(offset, reader.integer(key, *value, 0, kMaxLayers));
      break;
    }
  }
  const json* frequency_value = reader.find("index_topk_freq");
  if (frequency_value != nullptr) {
    FAULTLINE_TRY(frequency, reader.integer("index_topk_freq", *frequency_value, 1, kMaxLayers));
  }
  if (frequency_value != nullptr || sources.empty()) {
    std::vector<bool> layers;
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      layers.push_back(std::max<int64_t>(i - offset + 1, 0) % frequency == 0);
    }
    sources.push_back({"index_topk_freq", std::move(layers)});
  }
  for (size_t i = 1; i < sources.size(); ++i) {
    if (sources[i].layers == sources[0].layers) continue;
    config.notes.push_back(fmt::format("{} and {} disagree about which layers have an indexer; {} was taken",
                                       sources[0].key, sources[i].key, sources[0].key));
  }
  config.layer_has_indexer = sources[0].layers;
  if (!config.layer_has_indexer[0]) {
    return bad_input("{}: by {}, layer 0 has no indexer of its own, and there is no layer below to share with",
                     reader.where(), sources[0].key);
  }
  return {};
}

Status check_layer_types(const Reader& reader, const ModelConfig& config) {
  const json* list = reader.find("layer_types");
  if (list == nullptr) return {};
  constexpr std::string_view kSparse = "deepseek_sparse_attention";
  auto words = layer_words(reader, config, "layer_types", *list, kSparse, kSparse);
  if (!words) return tl::make_unexpected(words.error());
  return {};
}

Status check_relations(const Reader& reader, const ModelConfig& c) {
  const auto wrong = [&](const std::string& text) { return bad_input("{}: {}", reader.where(), text); };
  if (c.qk_rope_head_dim % 2 != 0)
    return wrong(fmt::format("qk_rope_head_dim is {}; RoPE needs pairs", c.qk_rope_head_dim));
  if (const json* value = reader.find("qk_head_dim")) {
    if (*value != c.qk_head_dim()) {
      return wrong(fmt::format("qk_head_dim is {}; it must be qk_nope_head_dim + qk_rope_head_dim = {}", shown(*value),
                               c.qk_head_dim()));
    }
  }
  if (c.index_head_dim < c.qk_rope_head_dim) {
    return wrong(fmt::format("index_head_dim is {}; it must be at least qk_rope_head_dim = {}", c.index_head_dim,
                             c.qk_rope_head_dim));
  }
  if (c.kv_lora_rank % kPackedCacheQuarters != 0) {
    return wrong(fmt::format("kv_lora_rank is {}; the packed FP8 cache needs a multiple of {}", c.kv_lora_rank,
                             kPackedCacheQuarters));
  }
  if (c.num_hidden_layers * c.n_routed_experts > kMaxExpertsOfAllLayers) {
    return wrong(
        fmt::format("num_hidden_layers is {} and n_routed_experts is {}; at most {} experts in all are supported",
                    c.num_hidden_layers, c.n_routed_experts, kMaxExpertsOfAllLayers));
  }
  if (c.n_routed_experts % c.n_group != 0) {
    return wrong(fmt::format("n_group is {}; it must divide n_routed_experts = {}", c.n_group, c.n_routed_experts));
  }
  if (c.topk_group > c.n_group) {
    return wrong(fmt::format("topk_group is {}; it must be at most n_group = {}", c.topk_group, c.n_group));
  }
  const int64_t group = c.n_routed_experts / c.n_group;
  if (c.n_group > 1 && group < 2) {
    return wrong(fmt::format("n_group is {} for {} experts; a group is scored by its two best experts", c.n_group,
                             c.n_routed_experts));
  }
  if (c.num_experts_per_tok > group * c.topk_group) {
    return wrong(fmt::format("num_experts_per_tok is {}; topk_group and n_group leave only {} experts to choose from",
                             c.num_experts_per_tok, group * c.topk_group));
  }
  return {};
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view json_text, std::string_view where) {
  FAULTLINE_TRY(const json root, parse_json(json_text, where));
  if (!root.is_object()) return bad_input("{}: must be a JSON object, and is {}", where, shown(root));
  const Reader reader(root, where);
  FAULTLINE_TRY_STATUS(check_architecture(reader));
  ModelConfig config;
  FAULTLINE_TRY_STATUS(read_sizes(reader, config));
  FAULTLINE_TRY_STATUS(read_numbers(reader, config));
  FAULTLINE_TRY_STATUS(read_rope(reader, config));
  FAULTLINE_TRY_STATUS(read_mlp_layers(reader, config));
  FAULTLINE_TRY_STATUS(read_indexer_layers(reader, config));
  FAULTLINE_TRY_STATUS(check_layer_types(reader, config));
  FAULTLINE_TRY_STATUS(check_relations(reader, config));
  return config;
}

}  // namespace faultline
