#include "model/quant_config.h"

#include <algorithm>
#include <initializer_list>

#include "base/json.h"

namespace faultline {
namespace {

using nlohmann::json;

// The first of `keys` that is there and not null.
const json* find(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto found = object.find(key);
    if (found != object.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

Result<std::string> text(const json& object, std::initializer_list<const char*> keys, std::string_view where) {
  const json* value = find(object, keys);
  if (value == nullptr) return std::string();
  if (!value->is_string()) return bad_input("{}: {} must be a text", where, *keys.begin());
  return value->get<std::string>();
}

Result<std::vector<std::string>> texts(const json& object, std::initializer_list<const char*> keys,
                                       std::string_view where) {
  std::vector<std::string> result;
  const json* value = find(object, keys);
  if (value == nullptr) return result;
  if (!value->is_array()) return bad_input("{}: {} must be a list of module names", where, *keys.begin());
  for (const json& item : *value) {
    if (!item.is_string()) return bad_input("{}: {} must be a list of module names", where, *keys.begin());
    result.push_back(item.get<std::string>());
  }
  return result;
}

// The group size, wherever this exporter's version put it.
const json* find_group_size(const json& object) {
  if (const json* direct = find(object, {"group_size"})) return direct;
  const json* groups = find(object, {"config_groups"});
  if (groups == nullptr || !groups->is_object()) return nullptr;
  for (const json& group : *groups) {
    const json* weights = group.is_object() ? find(group, {"weights"}) : nullptr;
    if (weights == nullptr || !weights->is_object()) continue;
    if (const json* size = find(*weights, {"group_size"})) return size;
  }
  return nullptr;
}

Result<QuantConfig> read_block(const json& block, std::string_view where) {
  if (!block.is_object()) return bad_input("{}: the quantization block must be an object", where);
  QuantConfig config;
  config.source = std::string(where);
  FAULTLINE_TRY(config.algorithm, text(block, {"quant_algo", "quant_method"}, where));
  FAULTLINE_TRY(config.kv_cache_algorithm, text(block, {"kv_cache_quant_algo"}, where));
  FAULTLINE_TRY(config.ignore, texts(block, {"exclude_modules", "ignore", "modules_to_not_convert"}, where));
  if (const json* size = find_group_size(block)) {
    constexpr int64_t kMaxGroup = 1 << 20;
    const bool whole = size->is_number_unsigned() && size->get<uint64_t>() <= static_cast<uint64_t>(kMaxGroup);
    if (!whole) return bad_input("{}: group_size must be a whole number from 0 to {}", where, kMaxGroup);
    config.group_size = size->get<int64_t>();
  }
  return config;
}

// '*' matches any run of characters.
bool matches(std::string_view pattern, std::string_view name) {
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t restart = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      restart = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++restart;
    } else {
      return false;
    }
  }
  return std::all_of(pattern.begin() + static_cast<std::ptrdiff_t>(p), pattern.end(), [](char c) { return c == '*'; });
}

}  // namespace

Result<std::optional<QuantConfig>> parse_quant_config(std::string_view config_text, std::string_view config_where,
                                                      std::string_view hf_quant_text, std::string_view hf_quant_where) {
  if (!hf_quant_text.empty()) {
    FAULTLINE_TRY(const json root, parse_json(hf_quant_text, hf_quant_where));
    const json* block = root.is_object() ? find(root, {"quantization"}) : nullptr;
    if (block == nullptr) return bad_input("{}: no \"quantization\" block", hf_quant_where);
    FAULTLINE_TRY(QuantConfig config, read_block(*block, hf_quant_where));
    return config;
  }
  FAULTLINE_TRY(const json root, parse_json(config_text, config_where));
  const json* block = root.is_object() ? find(root, {"quantization_config"}) : nullptr;
  if (block == nullptr) return std::optional<QuantConfig>();
  FAULTLINE_TRY(QuantConfig config, read_block(*block, fmt::format("{} (quantization_config)", config_where)));
  return config;
}

bool is_ignored(const QuantConfig& config, std::string_view module) {
  return std::any_of(config.ignore.begin(), config.ignore.end(),
                     [&](const std::string& pattern) { return matches(pattern, module); });
}

}  // namespace faultline
