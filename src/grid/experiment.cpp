#include "grid/experiment.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "base/file.h"
#include "base/text.h"
#include "base/yaml.h"
#include "grid/axes.h"
#include "grid/plant_spec.h"
#include "grid/secrets.h"

namespace faultline {
namespace {

// Limits against typing errors: past these a number is not meant.
constexpr int64_t kMaxTokens = 1 << 20;
constexpr int64_t kMaxBatch = 4096;
constexpr int64_t kMaxSteps = 4096;
constexpr int64_t kMaxRepeats = 1000;
constexpr double kMaxTemperature = 100;
constexpr double kMaxSeconds = 7.0 * 24 * 3600;
constexpr int64_t kMaxMemory = int64_t{1} << 44;  // 16 TiB
constexpr int64_t kMinMemory = int64_t{1} << 20;
constexpr size_t kMaxValues = 64;
constexpr size_t kMaxExclusions = 256;
constexpr size_t kMaxListedRows = 4096;
constexpr size_t kMaxNameBytes = 100;

using Strings = std::vector<std::string>;

class Parser {
 public:
  Parser(std::string_view where, const Strings& known_plants)
      : where_(where), read_(where), known_plants_(known_plants) {}

  Result<Experiment> parse(std::string_view text) {
    FAULTLINE_TRY(const YamlNode root, parse_yaml(text, where_));
    if (root.is_null()) return bad_input("{}: empty; an experiment needs at least 'axes'", where_);
    FAULTLINE_TRY_STATUS(read_.map(root, "the experiment", {"name",         "model",
                                                            "profile",      "arch",
                                                            "axes",         "rows",
                                                            "server_args",  "exclude",
                                                            "probes",       "checks",
                                                            "strategy",     "repeats",
                                                            "seed",         "plant",
                                                            "assume_fixed", "compare_outputs",
                                                            "shape_rules",  "run_unsupported",
                                                            "time_limit",   "timeout",
                                                            "memory_limit"}));
    const YamlNode* axes = root.find("axes");
    const YamlNode* rows = root.find("rows");
    if (axes == nullptr && rows == nullptr)
      return bad_input("{}: no 'axes'; name at least one, as 'axes: {{kv_cache_dtype: [bf16, fp8_e4m3]}}'", where_);
    if (axes != nullptr && rows != nullptr)
      return read_.error(rows->key_line, "both 'axes' and 'rows': a grid is the product of axes or a list of rows");
    FAULTLINE_TRY_STATUS(axes != nullptr ? parse_axes(*axes) : parse_rows(*rows));
    for (const YamlNode& item : root.items) FAULTLINE_TRY_STATUS(parse_key(item));
    if (experiment_.name.empty()) experiment_.name = name_from_file();
    return std::move(experiment_);
  }

 private:
  template <class T, class U>
  static Status store(T& place, Result<U> value) {
    if (!value) return tl::make_unexpected(std::move(value).error());
    place = *std::move(value);
    return {};
  }

  Status parse_key(const YamlNode& node) {
    Experiment& e = experiment_;
    const std::string& key = node.key;
    if (key == "axes" || key == "rows") return {};
    if (key == "server_args") {
      FAULTLINE_TRY_STATUS(store(e.server_args, read_.text(node, key)));
      e.server_args = redacted_line(e.server_args);
      return {};
    }
    if (key == "name") return parse_name(node);
    if (key == "model") return store(e.model, read_.text(node, key));
    if (key == "profile") return store(e.profile, read_.choice(node, key, profile_names()));
    if (key == "arch") return store(e.arch, read_.choice(node, key, target_names()));
    if (key == "exclude") return parse_exclusions(node);
    if (key == "probes") return parse_probes(node);
    if (key == "checks") return parse_checks(node);
    if (key == "strategy") return store(e.strategy, read_.choice(node, key, {"full", "pairs", "adaptive"}));
    if (key == "repeats") {
      if (node.is_scalar() && node.text == "auto") {
        e.repeats = kAutoRepeats;
        return {};
      }
      return store(e.repeats, read_.integer(node, key, 1, kMaxRepeats));
    }
    if (key == "seed") return store(e.seed, read_.integer(node, key, 0, std::numeric_limits<int64_t>::max()));
    if (key == "plant") return parse_plants(node);
    if (key == "compare_outputs") return store(e.compare_outputs, read_.boolean(node, key));
    if (key == "assume_fixed") return parse_assume_fixed(node);
    if (key == "shape_rules") return store(e.shape_rules, read_.choice(node, key, {"glm5", "actual"}));
    if (key == "run_unsupported") return store(e.run_unsupported, read_.boolean(node, key));
    if (key == "time_limit") return store(e.time_limit, read_.real(node, key, 1, kMaxSeconds));
    if (key == "timeout") return store(e.timeout, read_.real(node, key, 0.1, kMaxSeconds));
    return parse_memory(node);
  }

  // It becomes the name of a folder.
  Status parse_name(const YamlNode& node) {
    FAULTLINE_TRY(experiment_.name, read_.text(node, "name"));
    const std::string& name = experiment_.name;
    const bool good = name.size() <= kMaxNameBytes && name.front() != '.' && name.front() != '-' &&
                      std::all_of(name.begin(), name.end(), [](unsigned char c) {
                        return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
                      });
    if (!good) return read_.error(node.line, "name may hold letters, digits, '-', '_' and '.', and names a folder");
    return {};
  }

  std::string name_from_file() const {
    std::string name(where_.substr(where_.find_last_of('/') + 1));
    name = name.substr(0, name.find_last_of('.'));
    for (char& c : name)
      if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = c == '-' ? '-' : '_';
    return name.empty() ? "experiment" : name.substr(0, kMaxNameBytes);
  }

  // YAML's off is a boolean to many readers.
  Status parse_checks(const YamlNode& node) {
    if (node.is_scalar() && !node.quoted && is_yaml_false(node.text)) {
      experiment_.checks = "off";
      return {};
    }
    return store(experiment_.checks, read_.choice(node, "checks", {"off", "finite", "full", "reference"}));
  }

  Result<RequestedAxis> parse_axis(const YamlNode& node) {
    const Axis* axis = find_axis(node.key);
    if (axis == nullptr)
      return read_.error(node.key_line,
                         fmt::format("unknown axis '{}'{}", quotable(node.key), suggestion(node.key, axis_names())));
    FAULTLINE_TRY(const auto values, read_.list(node, "axis " + node.key, kMaxValues));
    RequestedAxis result{node.key, {}};
    for (const YamlNode* value : values) {
      FAULTLINE_TRY(const std::string text, read_.text(*value, "a value of axis " + node.key));
      auto canonical = canonical_value(*axis, text);
      if (!canonical) return read_.error(value->line, canonical.error().message);
      if (std::find(result.values.begin(), result.values.end(), *canonical) != result.values.end())
        return read_.error(value->line, fmt::format("axis {} has the value '{}' twice", node.key, *canonical));
      result.values.push_back(*std::move(canonical));
    }
    return result;
  }

  Status parse_axes(const YamlNode& node) {
    if (!node.is_map()) return read_.error(node.line, "axes must be a map of axis: [values]");
    if (node.items.empty()) return read_.error(node.line, "axes is empty; name at least one axis");
    for (const YamlNode& item : node.items) {
      FAULTLINE_TRY(RequestedAxis axis, parse_axis(item));
      experiment_.axes.push_back(std::move(axis));
    }
    return {};
  }

  // The values that occur become the axes, and an axis that a row leaves out has its default there.
  Status parse_rows(const YamlNode& node) {
    if (!node.is_sequence())
      return read_.error(node.line, "rows must be a list of maps, as '- {attention_backend: triton, tp: 8}'");
    FAULTLINE_TRY(const auto entries, read_.list(node, "rows", kMaxListedRows));
    for (const YamlNode* entry : entries) {
      if (!entry->is_map() || entry->items.empty())
        return read_.error(entry->line, "a row must be a map of axis: value");
      AxisValues row;
      for (const YamlNode& item : entry->items) {
        FAULTLINE_TRY(const RequestedAxis axis, parse_axis(item));
        if (axis.values.size() != 1)
          return read_.error(item.line, fmt::format("a row has one value of each axis, {} has several", axis.name));
        row[axis.name] = axis.values.front();
        if (listed_axis(axis.name) == nullptr) experiment_.axes.push_back({axis.name, {}});
      }
      experiment_.rows.push_back(std::move(row));
    }
    for (AxisValues& row : experiment_.rows)
      for (RequestedAxis& axis : experiment_.axes) {
        const std::string& value = row.emplace(axis.name, find_axis(axis.name)->fallback).first->second;
        if (std::find(axis.values.begin(), axis.values.end(), value) == axis.values.end()) axis.values.push_back(value);
      }
    std::set<AxisValues> seen;
    for (size_t i = 0; i < experiment_.rows.size(); ++i)
      if (!seen.insert(experiment_.rows[i]).second)
        return read_.error(entries[i]->line, "the same row is listed twice");
    return {};
  }

  const RequestedAxis* listed_axis(std::string_view name) const {
    const auto it = std::find_if(experiment_.axes.begin(), experiment_.axes.end(),
                                 [&](const RequestedAxis& a) { return a.name == name; });
    return it == experiment_.axes.end() ? nullptr : &*it;
  }

  Status parse_exclusions(const YamlNode& node) {
    if (!node.is_sequence())
      return read_.error(node.line,
                         "exclude must be a list of maps, as '- {attention_backend: triton, cuda_graph: on}'");
    if (node.items.empty()) return {};
    FAULTLINE_TRY(const auto entries, read_.list(node, "exclude", kMaxExclusions));
    for (const YamlNode* entry : entries) {
      if (!entry->is_map() || entry->items.empty())
        return read_.error(entry->line, "an exclusion must be a map of axis: value");
      Exclusion exclusion;
      for (const YamlNode& item : entry->items) {
        FAULTLINE_TRY(RequestedAxis axis, parse_axis(item));
        FAULTLINE_TRY_STATUS(check_excluded(axis, item));
        exclusion.when.push_back(std::move(axis));
      }
      experiment_.exclude.push_back(std::move(exclusion));
    }
    return {};
  }

  // An exclusion that can never hold is a mistake.
  Status check_excluded(const RequestedAxis& excluded, const YamlNode& node) {
    const RequestedAxis* axis = listed_axis(excluded.name);
    if (axis == nullptr)
      return read_.error(node.key_line,
                         fmt::format("exclude names the axis '{}', which 'axes' does not vary", excluded.name));
    for (const std::string& value : excluded.values)
      if (std::find(axis->values.begin(), axis->values.end(), value) == axis->values.end())
        return read_.error(node.line,
                           fmt::format("exclude names {}={}, which 'axes' does not hold", excluded.name, value));
    return {};
  }

  Status parse_probes(const YamlNode& node) {
    FAULTLINE_TRY_STATUS(read_.map(node, "probes", {"tokens", "sampling", "sequence", "prefill", "decode"}));
    Probes& probes = experiment_.probes;
    for (const YamlNode& item : node.items) {
      if (item.key == "tokens") {
        FAULTLINE_TRY_STATUS(store(probes.tokens, read_.text(item, "probes.tokens")));
      } else if (item.key == "sampling") {
        FAULTLINE_TRY_STATUS(parse_sampling(item));
      } else if (item.key == "sequence") {
        FAULTLINE_TRY_STATUS(store(probes.sequence, read_.choice(item, "probes.sequence", {"server", "plain"})));
      } else if (item.key == "prefill") {
        FAULTLINE_TRY_STATUS(parse_prefill(item));
      } else {
        FAULTLINE_TRY_STATUS(parse_decode(item));
      }
    }
    return {};
  }

  Status parse_sampling(const YamlNode& node) {
    FAULTLINE_TRY_STATUS(read_.map(node, "probes.sampling", {"temperature", "top_p"}));
    Sampling& sampling = experiment_.probes.sampling;
    if (const YamlNode* item = node.find("temperature"))
      FAULTLINE_TRY_STATUS(
          store(sampling.temperature, read_.real(*item, "probes.sampling.temperature", 0, kMaxTemperature)));
    if (const YamlNode* item = node.find("top_p")) {
      FAULTLINE_TRY_STATUS(store(sampling.top_p, read_.real(*item, "probes.sampling.top_p", 0, 1)));
      if (sampling.top_p == 0) return read_.error(item->line, "probes.sampling.top_p must be above 0");
    }
    return {};
  }

  Status parse_prefill(const YamlNode& node) {
    FAULTLINE_TRY_STATUS(read_.map(node, "probes.prefill", {"lengths", "chunk"}));
    Probes& probes = experiment_.probes;
    if (const YamlNode* item = node.find("lengths"))
      FAULTLINE_TRY_STATUS(
          store(probes.prefill_lengths, read_.integers(*item, "probes.prefill.lengths", 1, kMaxTokens, kMaxValues)));
    if (const YamlNode* item = node.find("chunk"))
      FAULTLINE_TRY_STATUS(store(probes.prefill_chunk, read_.integer(*item, "probes.prefill.chunk", 0, kMaxTokens)));
    return {};
  }

  Status parse_decode(const YamlNode& node) {
    FAULTLINE_TRY_STATUS(read_.map(node, "probes.decode", {"contexts", "batch", "steps"}));
    Probes& probes = experiment_.probes;
    if (const YamlNode* item = node.find("contexts"))
      FAULTLINE_TRY_STATUS(
          store(probes.decode_contexts, read_.integers(*item, "probes.decode.contexts", 1, kMaxTokens, kMaxValues)));
    if (const YamlNode* item = node.find("batch"))
      FAULTLINE_TRY_STATUS(
          store(probes.decode_batch, read_.integers(*item, "probes.decode.batch", 1, kMaxBatch, kMaxValues)));
    if (const YamlNode* item = node.find("steps"))
      FAULTLINE_TRY_STATUS(store(probes.decode_steps, read_.integer(*item, "probes.decode.steps", 1, kMaxSteps)));
    return {};
  }

  Status parse_plants(const YamlNode& node) {
    if (node.is_sequence() && node.items.empty()) return {};  // said to be none
    FAULTLINE_TRY(const auto items, read_.list(node, "plant", kMaxValues));
    for (const YamlNode* item : items) {
      FAULTLINE_TRY(std::string plant, read_.text(*item, "a plant"));
      for (const std::string& fault : faults_of(plant)) {
        const auto [name, selector] = split_plant(fault);
        if (name.empty() || (selector.empty() && fault.find('@') != std::string::npos))
          return read_.error(item->line, fmt::format("'{}' is no plant; write NAME or NAME@selector", quotable(fault)));
        if (!known_plants_.empty() &&
            std::find(known_plants_.begin(), known_plants_.end(), name) == known_plants_.end())
          return read_.error(item->line,
                             fmt::format("unknown plant '{}'{}", quotable(name), suggestion(name, known_plants_)));
      }
      Strings& plants = experiment_.plant;
      if (std::find(plants.begin(), plants.end(), plant) != plants.end())
        return read_.error(item->line, fmt::format("the plant '{}' is listed twice", quotable(plant)));
      plants.push_back(std::move(plant));
    }
    return {};
  }

  // What the names mean is known once the rows are (bisect/assume_fixed.h).
  Status parse_assume_fixed(const YamlNode& node) {
    if (node.is_sequence() && node.items.empty()) return {};
    FAULTLINE_TRY(const auto items, read_.list(node, "assume_fixed", kMaxValues));
    for (const YamlNode* item : items) {
      FAULTLINE_TRY(std::string name, read_.text(*item, "a name of assume_fixed"));
      experiment_.assume_fixed.push_back(std::move(name));
    }
    return {};
  }

  // "512MiB", "2GiB", or bytes.
  Status parse_memory(const YamlNode& node) {
    FAULTLINE_TRY(const std::string text, read_.text(node, "memory_limit"));
    int64_t number = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
    const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
    int shift = -1;
    if (unit.empty()) shift = 0;
    if (unit == "MiB") shift = 20;
    if (unit == "GiB") shift = 30;
    if (code != std::errc() || shift < 0 || number < 1 || number > (kMaxMemory >> shift) ||
        (number << shift) < kMinMemory)
      return read_.error(
          node.line,
          fmt::format("memory_limit must be from 1MiB to 16384GiB, as '512MiB' or '2GiB', not '{}'", quotable(text)));
    experiment_.memory_limit = number << shift;
    return {};
  }

  std::string_view where_;
  YamlReader read_;
  const Strings& known_plants_;
  Experiment experiment_;
};

// Between `least` and `most`, ascending, each once.
std::vector<int64_t> fitting(std::initializer_list<int64_t> wanted, int64_t most) {
  std::set<int64_t> result;
  for (const int64_t value : wanted) result.insert(std::clamp<int64_t>(value, 1, std::max<int64_t>(1, most)));
  return {result.begin(), result.end()};
}

std::string joined(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return "[" + text + "]";
}

// A double-quoted YAML scalar.
std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      result += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    else
      result += c;
  }
  return result + "\"";
}

std::string quoted_list(const Strings& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ", ") + quoted(value);
  return "[" + text + "]";
}

std::string probes_yaml(const Probes& probes) {
  std::string text = "probes:\n";
  text += fmt::format("  tokens: {}\n", quoted(probes.tokens));
  text +=
      fmt::format("  sampling: {{temperature: {}, top_p: {}}}\n", probes.sampling.temperature, probes.sampling.top_p);
  text += fmt::format("  sequence: {}\n", probes.sequence);
  std::string prefill;
  if (!probes.prefill_lengths.empty()) prefill += "    lengths: " + joined(probes.prefill_lengths) + "\n";
  if (probes.prefill_chunk) prefill += fmt::format("    chunk: {}\n", *probes.prefill_chunk);
  if (!prefill.empty()) text += "  prefill:\n" + prefill;
  std::string decode;
  if (!probes.decode_contexts.empty()) decode += "    contexts: " + joined(probes.decode_contexts) + "\n";
  if (!probes.decode_batch.empty()) decode += "    batch: " + joined(probes.decode_batch) + "\n";
  if (probes.decode_steps) decode += fmt::format("    steps: {}\n", *probes.decode_steps);
  if (!decode.empty()) text += "  decode:\n" + decode;
  return text;
}

}  // namespace

int64_t Probes::longest_context() const {
  int64_t longest = 0;
  for (const int64_t length : prefill_lengths) longest = std::max(longest, length);
  for (const int64_t context : decode_contexts) longest = std::max(longest, context + decode_steps.value_or(0));
  return longest;
}

Result<Experiment> parse_experiment(std::string_view text, std::string_view where, const Strings& known_plants) {
  return Parser(where, known_plants).parse(text);
}

Result<Experiment> load_experiment(const std::string& path, const Strings& known_plants) {
  FAULTLINE_TRY(const std::string text, read_file(path, kYamlBytes));
  return parse_experiment(text, path, known_plants);
}

std::string write_experiment(const Experiment& experiment) {
  std::string text = fmt::format("name: {}\n", quoted(experiment.name));
  if (!experiment.model.empty()) text += fmt::format("model: {}\n", quoted(experiment.model));
  text += fmt::format("profile: {}\narch: {}\n", experiment.profile, experiment.arch);
  if (!experiment.server_args.empty()) text += fmt::format("server_args: {}\n", quoted(experiment.server_args));
  text += experiment.rows.empty() ? "axes:\n" : "rows:\n";
  if (experiment.rows.empty())
    for (const RequestedAxis& axis : experiment.axes)
      text += fmt::format("  {}: {}\n", axis.name, quoted_list(axis.values));
  for (const AxisValues& row : experiment.rows) {
    std::string entry;
    for (const RequestedAxis& axis : experiment.axes)
      entry += fmt::format("{}{}: {}", entry.empty() ? "" : ", ", axis.name, quoted(row.at(axis.name)));
    text += "  - {" + entry + "}\n";
  }
  if (!experiment.exclude.empty()) text += "exclude:\n";
  for (const Exclusion& exclusion : experiment.exclude) {
    std::string entry;
    for (const RequestedAxis& axis : exclusion.when)
      entry += fmt::format("{}{}: {}", entry.empty() ? "" : ", ", axis.name, quoted_list(axis.values));
    text += "  - {" + entry + "}\n";
  }
  text += probes_yaml(experiment.probes);
  text +=
      fmt::format("checks: \"{}\"\nstrategy: {}\nrepeats: {}\nseed: {}\n", experiment.checks, experiment.strategy,
                  experiment.repeats == kAutoRepeats ? "auto" : std::to_string(experiment.repeats), experiment.seed);
  if (!experiment.plant.empty()) text += "plant: " + quoted_list(experiment.plant) + "\n";
  if (experiment.compare_outputs) text += "compare_outputs: true\n";
  if (!experiment.assume_fixed.empty()) text += "assume_fixed: " + quoted_list(experiment.assume_fixed) + "\n";
  text += fmt::format("shape_rules: {}\nrun_unsupported: {}\n", experiment.shape_rules, experiment.run_unsupported);
  if (experiment.time_limit) text += fmt::format("time_limit: {}\n", *experiment.time_limit);
  if (experiment.timeout) text += fmt::format("timeout: {}\n", *experiment.timeout);
  if (experiment.memory_limit) text += fmt::format("memory_limit: {}\n", *experiment.memory_limit);
  return text;
}

void fill_probe_defaults(Probes& probes, int64_t page_size, int64_t index_topk, int64_t max_positions) {
  constexpr int64_t kSteps = 4;
  constexpr int64_t kChunksOfLongest = 4;
  if (!probes.decode_steps) probes.decode_steps = kSteps;
  if (probes.prefill_lengths.empty())
    probes.prefill_lengths =
        fitting({1, page_size - 1, page_size, page_size + 1, index_topk, index_topk + 1}, max_positions);
  if (!probes.prefill_chunk) {
    const int64_t longest = *std::max_element(probes.prefill_lengths.begin(), probes.prefill_lengths.end());
    probes.prefill_chunk = std::max<int64_t>(1, longest / kChunksOfLongest);
  }
  if (probes.decode_contexts.empty())
    probes.decode_contexts =
        fitting({page_size - 1, index_topk - 1, 2 * index_topk}, max_positions - *probes.decode_steps);
  if (probes.decode_batch.empty()) probes.decode_batch = {1, 3, 8};
}

std::pair<std::string, std::string> split_plant(std::string_view plant) {
  const size_t at = plant.find('@');
  if (at == std::string_view::npos) return {std::string(plant), ""};
  return {std::string(plant.substr(0, at)), std::string(plant.substr(at + 1))};
}

}  // namespace faultline
