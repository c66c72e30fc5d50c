#include "bisect/plant_selector.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/rng.h"
#include "base/text.h"

namespace faultline {
namespace {

constexpr size_t kLongestGlob = 200;

bool holds(const std::optional<CountRange>& range, int64_t value) {
  return !range || range->holds(value);
}
bool holds(const std::optional<bool>& wanted, bool value) {
  return !wanted || *wanted == value;
}

std::string range_text(std::string_view key, const CountRange& range) {
  return fmt::format("{}{}{}", key, range.last == range.first ? "=" : ">=", range.first);
}

class SelectorParser {
 public:
  SelectorParser(std::string_view where, const std::vector<std::string>& allowed) : where_(where), allowed_(allowed) {}

  Result<PlantSelector> parse(std::string_view text) {
    while (true) {
      const size_t comma = text.find(',');
      FAULTLINE_TRY_STATUS(item(text.substr(0, comma)));
      if (comma == std::string_view::npos) return std::move(selector_);
      text.remove_prefix(comma + 1);
    }
  }

 private:
  Status item(std::string_view item) {
    const size_t equals = item.find('=');
    const bool at_least = equals != std::string_view::npos && equals > 0 && item[equals - 1] == '>';
    const std::string key(item.substr(0, at_least ? equals - 1 : equals));
    const bool bare = equals == std::string_view::npos;
    const std::string_view value = bare ? std::string_view{} : item.substr(equals + 1);
    const std::vector<std::string> all = plant_selector_keys();
    if (std::find(all.begin(), all.end(), key) == all.end())
      return bad_input("{}: '{}' is no condition of a plant{}", where_, quotable(key), suggestion(key, all));
    if (std::find(allowed_.begin(), allowed_.end(), key) == allowed_.end())
      return bad_input("{}: this plant takes no '{}'; it takes {}", where_, key, fmt::join(allowed_, ", "));
    if (!seen_.insert(key).second) return bad_input("{}: '{}' is given twice", where_, key);
    const bool counts = key == "step" || key == "batch" || key == "tokens";
    if (at_least && !counts) return bad_input("{}: '{}' takes '=', not '>='", where_, key);
    if (key == "graph" || key == "warmup" || key == "checked") return flag(key, bare, value);
    if (value.empty()) return bad_input("{}: '{}' has no value", where_, key);
    if (key == "op") return glob(value);
    if (key == "phase") return phase(value);
    if (key == "p") return probability(value);
    FAULTLINE_TRY(const int64_t number, count(key, value));
    if (key == "layer") selector_.layer = number;
    if (key == "row") selector_.row = number;
    const CountRange range{number, at_least ? INT64_MAX : number};
    if (key == "step") selector_.step = range;
    if (key == "batch") selector_.batch = range;
    if (key == "tokens") selector_.tokens = range;
    return {};
  }

  Status flag(const std::string& key, bool bare, std::string_view value) {
    if (!bare && value != "on" && value != "off")
      return bad_input("{}: '{}' is 'on' or 'off', not '{}'", where_, key, quotable(value));
    auto& flag = key == "graph" ? selector_.graph : key == "warmup" ? selector_.warmup : selector_.checked;
    flag = value != "off";
    return {};
  }

  Status glob(std::string_view value) {
    if (value.size() > kLongestGlob)
      return bad_input("{}: the pattern of 'op' is longer than {} characters", where_, kLongestGlob);
    selector_.op = std::string(value);
    return {};
  }

  Status phase(std::string_view value) {
    for (const PassPhase candidate : {PassPhase::kPrefill, PassPhase::kDecode})
      if (value == pass_phase_name(candidate)) selector_.phase = candidate;
    if (selector_.phase) return {};
    return bad_input("{}: '{}' is no phase{}", where_, quotable(value), suggestion(value, {"prefill", "decode"}));
  }

  Status probability(std::string_view value) {
    double number = 0;
    const char* end = value.data() + value.size();
    const auto [stop, code] = std::from_chars(value.data(), end, number);
    if (code != std::errc() || stop != end || !(number > 0) || !(number <= 1))
      return bad_input("{}: 'p' takes a probability above 0 and up to 1, not '{}'", where_, quotable(value));
    selector_.probability = number;
    return {};
  }

  Result<int64_t> count(const std::string& key, std::string_view value) {
    int64_t number = 0;
    const char* end = value.data() + value.size();
    const auto [stop, code] = std::from_chars(value.data(), end, number);
    if (code != std::errc() || stop != end || number < 0)
      return bad_input("{}: '{}' takes a number from 0, not '{}'", where_, key, quotable(value));
    return number;
  }

  const std::string_view where_;
  const std::vector<std::string>& allowed_;
  PlantSelector selector_;
  std::set<std::string> seen_;
};

}  // namespace

bool PlantSelector::may_match(const Op& op_) const {
  return (!op || glob_matches(*op, op_.name)) && (!layer || *layer == op_.layer);
}

bool PlantSelector::layer_may_match(const Op& op_) const {
  if (layer && *layer != op_.layer) return false;
  if (!op || may_match(op_)) return true;
  // "layers.3.": what follows is not known of the layer's other ops.
  constexpr std::string_view kLayers = "layers.";
  const std::string_view glob = *op;
  const size_t end = glob.starts_with(kLayers) ? glob.find('.', kLayers.size()) : std::string_view::npos;
  if (end == std::string_view::npos) return op_.layer >= 0;
  return glob_matches(glob.substr(0, end), fmt::format("{}{}", kLayers, op_.layer));
}

bool PlantSelector::matches(const PassInfo& info, const Op& op_, bool checked_build) const {
  if (!may_match(op_)) return false;
  if (phase && *phase != info.phase) return false;
  return holds(step, info.step) && holds(batch, info.live.requests) && holds(tokens, info.live.tokens) &&
         holds(graph, info.graph) && holds(warmup, info.warmup) && holds(checked, checked_build);
}

std::string PlantSelector::text() const {
  std::vector<std::string> items;
  if (op) items.push_back("op=" + *op);
  if (layer) items.push_back(fmt::format("layer={}", *layer));
  if (row) items.push_back(fmt::format("row={}", *row));
  if (phase) items.push_back(fmt::format("phase={}", pass_phase_name(*phase)));
  if (step) items.push_back(range_text("step", *step));
  if (batch) items.push_back(range_text("batch", *batch));
  if (tokens) items.push_back(range_text("tokens", *tokens));
  if (graph) items.push_back(fmt::format("graph={}", *graph ? "on" : "off"));
  if (warmup) items.push_back(fmt::format("warmup={}", *warmup ? "on" : "off"));
  if (checked) items.push_back(fmt::format("checked={}", *checked ? "on" : "off"));
  if (probability) items.push_back(fmt::format("p={}", *probability));
  return fmt::format("{}", fmt::join(items, ","));
}

std::vector<std::string> plant_selector_keys() {
  return {"op", "layer", "row", "phase", "step", "batch", "tokens", "graph", "warmup", "checked", "p"};
}

Result<PlantSelector> parse_plant_selector(std::string_view text, std::string_view where,
                                           const std::vector<std::string>& allowed) {
  return SelectorParser(where, allowed).parse(text);
}

bool plant_is_there(std::string_view spec, uint64_t seed, int64_t repeat) {
  const size_t at = spec.find('@');
  if (at == std::string_view::npos) return true;
  const auto selector = parse_plant_selector(spec.substr(at + 1), spec, plant_selector_keys());
  if (!selector || !selector->probability) return true;
  return CounterRng(seed, fmt::format("plant {}", spec)).uniform(static_cast<uint64_t>(repeat)) <
         *selector->probability;
}

bool glob_matches(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;  // the latest '*', and what it has swallowed so far
  size_t swallowed = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      swallowed = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++swallowed;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace faultline
