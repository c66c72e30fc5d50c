#include "report/json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace faultline {
namespace {

// Ordered, so that a person finds the fields where the contract lists them.
using Json = nlohmann::ordered_json;
using Pairs = std::vector<std::pair<std::string, std::string>>;

constexpr int kIndent = 1;

Json to_json(const Pairs& pairs) {
  Json list = Json::array();
  for (const auto& [left, right] : pairs) list.push_back(Json::array({left, right}));
  return list;
}

Json to_json(const AxisValues& values) {
  Json object = Json::object();
  for (const auto& [key, value] : values) object[key] = value;
  return object;
}

Json plant_json(const std::string& plant) {
  return plant.empty() ? Json(nullptr) : Json(plant);
}

Json to_json(const CoreDump& core) {
  Json out;
  out["file"] = core.file;
  out["exception"] = core.exception;
  out["kernel"] = core.kernel;
  out["source"] = core.source;
  out["line"] = core.line;
  out["block"] = core.block;
  out["thread"] = core.thread;
  out["place"] = core.place;
  out["unread"] = core.unread;
  return out;
}

Json to_json(const Violation& violation) {
  Json out;
  out["op"] = violation.op;
  out["kernel"] = violation.kernel;
  out["provenance"] = violation.provenance;
  out["build"] = violation.build;
  out["phase"] = violation.phase;
  out["step"] = violation.step;
  out["layer"] = violation.layer;
  out["rank"] = violation.rank;
  out["tensor"] = violation.tensor;
  out["kind"] = violation.kind;
  out["index"] = violation.index;
  out["value"] = violation.value;
  out["bits"] = violation.bits;
  out["count"] = violation.count;
  out["inputs_clean"] = violation.inputs_clean;
  out["bad_input"] = violation.bad_input;
  out["detail"] = violation.detail;
  out["setting"] = violation.setting;
  out["attribute"] = violation.attribute;
  out["follows"] = violation.follows;
  if (violation.core) out["core"] = to_json(*violation.core);
  return out;
}

Json to_json(const ConfigurationResult& configuration) {
  Json out;
  out["id"] = configuration.id;
  out["axes"] = to_json(configuration.axes);
  out["resolved"] = to_json(configuration.resolved);
  out["plant"] = plant_json(configuration.plant);
  out["target_status"] = configuration.target_status;
  out["verdict"] = configuration.verdict;
  out["reason"] = configuration.reason;
  out["notes"] = configuration.notes;
  out["launch_command"] = configuration.launch_command;
  out["repeats"] = configuration.repeats;
  out["failures"] = configuration.failures;
  // What the runs leave possible, each at kConfidenceLevel.
  const RunCount count{configuration.repeats, configuration.failures};
  out["failure_rate_at_least"] = rate_at_least(count);
  out["failure_rate_at_most"] = rate_at_most(count);
  // JSON has no NaN, and a time that is none is of no use to a reader.
  out["seconds"] = std::isfinite(configuration.seconds) ? configuration.seconds : 0.0;
  out["first_violation"] = configuration.first_violation ? to_json(*configuration.first_violation) : Json(nullptr);
  return out;
}

Json to_json(const Localized& localized) {
  Json out;
  out["culprit"] = localized.culprit;
  out["op"] = localized.op;
  out["kernel"] = localized.kernel;
  out["provenance"] = localized.provenance;
  out["layer"] = localized.layer;
  out["kind"] = localized.kind;
  out["signature"] = localized.signature;
  out["plant"] = plant_json(localized.plant);
  out["reproduces"] = localized.reproduces;
  out["necessary"] = localized.necessary;
  out["confidence"] = localized.confidence;
  out["unchanged_runs"] = localized.unchanged.runs;
  out["unchanged_failures"] = localized.unchanged.failures;
  out["changed_runs"] = localized.changed.runs;
  out["changed_failures"] = localized.changed.failures;
  out["level"] = localized.level;
  out["worker_runs"] = localized.worker_runs;
  out["configurations"] = localized.configurations;
  out["capsule"] = localized.capsule;
  out["explanation"] = localized.explanation;
  out["evidence"] = localized.evidence;
  out["follows"] = localized.follows;
  return out;
}

Json to_json(const MinimalCombination& combination) {
  Json out;
  out["axes"] = to_json(combination.axes);
  out["untested"] = combination.untested;
  out["signature"] = combination.signature;
  out["plant"] = plant_json(combination.plant);
  return out;
}

Json to_json(const RuledOut& ruled_out) {
  Json out;
  out["axis"] = ruled_out.axis;
  out["signature"] = ruled_out.signature;
  out["plant"] = plant_json(ruled_out.plant);
  out["condition"] = to_json(ruled_out.condition);
  out["pairs"] = to_json(ruled_out.pairs);
  return out;
}

Json to_json(const Inert& inert) {
  Json out;
  out["axis"] = inert.axis;
  out["condition"] = to_json(inert.condition);
  out["because"] = inert.because;
  out["pairs"] = to_json(inert.pairs);
  return out;
}

Json to_json(const Workaround& workaround) {
  Json out;
  out["id"] = workaround.id;
  out["changes"] = to_json(workaround.changes);
  out["from"] = workaround.from;
  out["signature"] = workaround.signature;
  out["launch_command"] = workaround.launch_command;
  return out;
}

Json to_json(const SearchCoverage& coverage) {
  Json out;
  out["strategy"] = coverage.strategy;
  out["grid_rows"] = coverage.grid;
  out["runnable_rows"] = coverage.runnable;
  out["rows_run"] = coverage.run;
  out["strength"] = coverage.strength;
  return out;
}

template <class T>
Json list_json(const std::vector<T>& items) {
  Json list = Json::array();
  for (const T& item : items) list.push_back(to_json(item));
  return list;
}

// Reads fields and keeps the first error, so that a struct is read in one expression a field.
class Reader {
 public:
  Reader(const nlohmann::json& value, std::string path, std::string_view where, std::string& error)
      : value_(value), path_(std::move(path)), where_(where), error_(error) {
    if (!value_.is_object()) complain("", "must be an object");
  }

  bool failed() const { return !error_.empty(); }

  Reader& required(const char* key, std::string& out) { return read(key, true, out); }
  Reader& required(const char* key, int64_t& out) { return read(key, true, out); }
  Reader& required(const char* key, double& out) { return read(key, true, out); }
  Reader& required(const char* key, AxisValues& out) { return read(key, true, out); }
  Reader& required(const char* key, std::vector<std::string>& out) { return read(key, true, out); }
  Reader& required(const char* key, std::vector<int64_t>& out) { return read(key, true, out); }
  Reader& required(const char* key, Pairs& out) { return read(key, true, out); }
  Reader& optional(const char* key, std::string& out) { return read(key, false, out); }
  Reader& optional(const char* key, int64_t& out) { return read(key, false, out); }
  Reader& optional(const char* key, double& out) { return read(key, false, out); }
  Reader& optional(const char* key, bool& out) { return read(key, false, out); }
  Reader& optional(const char* key, std::vector<std::string>& out) { return read(key, false, out); }
  Reader& optional(const char* key, Pairs& out) { return read(key, false, out); }

  // null or a name.
  Reader& plant(std::string& out, bool must_exist) {
    const nlohmann::json* field = find("plant", must_exist);
    if (field != nullptr && !field->is_null()) get(*field, "plant", out);
    return *this;
  }

  // An array of objects, each read by `read_item(Reader&, T&)`.
  template <class T, class ReadItem>
  Reader& objects(const char* key, std::vector<T>& out, ReadItem read_item) {
    const nlohmann::json* field = find(key, true);
    if (field == nullptr) return *this;
    if (!field->is_array()) return complain(key, "must be a list");
    for (size_t i = 0; i < field->size() && !failed(); ++i) {
      Reader item((*field)[i], join(fmt::format("{}[{}]", key, i)), where_, error_);
      if (!failed()) read_item(item, out.emplace_back());
    }
    return *this;
  }

  // null or an object.
  template <class T, class ReadItem>
  Reader& object_or_null(const char* key, std::optional<T>& out, ReadItem read_item, bool must_exist = true) {
    const nlohmann::json* field = find(key, must_exist);
    if (field == nullptr || field->is_null()) return *this;
    Reader item(*field, join(key), where_, error_);
    if (!failed()) read_item(item, out.emplace());
    return *this;
  }

 private:
  std::string join(std::string_view key) const {
    return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  }

  Reader& complain(std::string_view key, std::string_view what) {
    const std::string field = key.empty() ? path_ : join(key);
    if (error_.empty()) error_ = fmt::format("{}: {} {}", where_, field.empty() ? "the findings" : field, what);
    return *this;
  }

  const nlohmann::json* find(const char* key, bool must_exist) {
    if (failed()) return nullptr;
    const auto found = value_.find(key);
    if (found != value_.end()) return &*found;
    if (must_exist) complain(key, "is missing; findings.json is written by `faultline bisect` or `faultline report`");
    return nullptr;
  }

  template <class T>
  Reader& read(const char* key, bool must_exist, T& out) {
    const nlohmann::json* field = find(key, must_exist);
    if (field != nullptr) get(*field, key, out);
    return *this;
  }

  void get(const nlohmann::json& field, std::string_view key, std::string& out) {
    if (!field.is_string()) {
      complain(key, "must be text");
      return;
    }
    out = field.get<std::string>();
  }
  void get(const nlohmann::json& field, std::string_view key, bool& out) {
    if (!field.is_boolean()) {
      complain(key, "must be true or false");
      return;
    }
    out = field.get<bool>();
  }
  void get(const nlohmann::json& field, std::string_view key, int64_t& out) {
    const bool too_large = field.is_number_unsigned() &&
                           field.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (!field.is_number_integer() || too_large) {
      complain(key, "must be a whole number of 64 bits");
      return;
    }
    out = field.get<int64_t>();
  }
  void get(const nlohmann::json& field, std::string_view key, double& out) {
    if (!field.is_number()) {
      complain(key, "must be a number");
      return;
    }
    out = field.get<double>();
  }
  void get(const nlohmann::json& field, std::string_view key, AxisValues& out) {
    if (!field.is_object()) {
      complain(key, "must be an object of text");
      return;
    }
    for (const auto& [name, value] : field.items()) get(value, fmt::format("{}.{}", key, name), out[name]);
  }
  template <class T>
  void get(const nlohmann::json& field, std::string_view key, std::vector<T>& out) {
    if (!field.is_array()) {
      complain(key, "must be a list");
      return;
    }
    for (size_t i = 0; i < field.size(); ++i) get(field[i], fmt::format("{}[{}]", key, i), out.emplace_back());
  }
  void get(const nlohmann::json& field, std::string_view key, std::pair<std::string, std::string>& out) {
    if (!field.is_array() || field.size() != 2) {
      complain(key, "must be a pair of ids");
      return;
    }
    get(field[0], fmt::format("{}[0]", key), out.first);
    get(field[1], fmt::format("{}[1]", key), out.second);
  }

  const nlohmann::json& value_;
  std::string path_;
  std::string_view where_;
  std::string& error_;
};

void read_core(Reader& in, CoreDump& out) {
  in.required("file", out.file).required("exception", out.exception).required("kernel", out.kernel);
  in.required("source", out.source).required("line", out.line).required("block", out.block);
  in.required("thread", out.thread).required("place", out.place).required("unread", out.unread);
}

void read_violation(Reader& in, Violation& out) {
  in.required("op", out.op).required("kernel", out.kernel).required("provenance", out.provenance);
  in.required("build", out.build).required("phase", out.phase).required("step", out.step).required("layer", out.layer);
  in.required("rank", out.rank).required("tensor", out.tensor).required("kind", out.kind).required("index", out.index);
  in.required("value", out.value).required("bits", out.bits).required("count", out.count);
  in.required("inputs_clean", out.inputs_clean);
  in.optional("bad_input", out.bad_input)
      .optional("detail", out.detail)
      .optional("setting", out.setting)
      .optional("attribute", out.attribute);
  in.optional("follows", out.follows).object_or_null("core", out.core, read_core, false);
}

void read_configuration(Reader& in, ConfigurationResult& out) {
  in.required("id", out.id).required("axes", out.axes).required("resolved", out.resolved).plant(out.plant, true);
  in.required("target_status", out.target_status).required("verdict", out.verdict).required("reason", out.reason);
  in.required("notes", out.notes).required("repeats", out.repeats).required("failures", out.failures);
  in.optional("launch_command", out.launch_command);
  in.required("seconds", out.seconds).object_or_null("first_violation", out.first_violation, read_violation);
}

void read_localized(Reader& in, Localized& out) {
  in.required("culprit", out.culprit).required("op", out.op).required("kernel", out.kernel);
  in.required("provenance", out.provenance).required("layer", out.layer).required("kind", out.kind);
  in.required("signature", out.signature).plant(out.plant, true).required("reproduces", out.reproduces);
  in.required("necessary", out.necessary).required("confidence", out.confidence);
  in.required("configurations", out.configurations).required("capsule", out.capsule);
  in.optional("unchanged_runs", out.unchanged.runs).optional("unchanged_failures", out.unchanged.failures);
  in.optional("changed_runs", out.changed.runs).optional("changed_failures", out.changed.failures);
  in.optional("level", out.level).optional("worker_runs", out.worker_runs);
  in.required("explanation", out.explanation).optional("evidence", out.evidence).optional("follows", out.follows);
}

void read_combination(Reader& in, MinimalCombination& out) {
  in.required("axes", out.axes).required("untested", out.untested).required("signature", out.signature);
  in.plant(out.plant, true);
}

void read_ruled_out(Reader& in, RuledOut& out) {
  in.required("axis", out.axis).required("signature", out.signature).plant(out.plant, false);
  in.required("condition", out.condition).required("pairs", out.pairs);
}

void read_inert(Reader& in, Inert& out) {
  in.required("axis", out.axis).required("condition", out.condition).required("because", out.because);
  in.optional("pairs", out.pairs);
}

void read_workaround(Reader& in, Workaround& out) {
  in.required("id", out.id).required("changes", out.changes).optional("from", out.from);
  in.optional("signature", out.signature).optional("launch_command", out.launch_command);
}

void read_coverage(Reader& in, SearchCoverage& out) {
  in.required("strategy", out.strategy).required("grid_rows", out.grid).required("runnable_rows", out.runnable);
  in.required("rows_run", out.run).required("strength", out.strength);
}

}  // namespace

std::string findings_json(const Findings& findings) {
  Json out;
  out["schema"] = kFindingsSchema;
  out["experiment"] = findings.experiment;
  out["run_directory"] = findings.run_directory;
  out["exit_code"] = findings.exit_code;
  if (!findings.server_args.empty()) {
    out["server_args"] = findings.server_args;
    out["server_args_warnings"] = findings.server_args_warnings;
  }
  out["search"] = findings.coverage.strategy.empty() ? Json() : to_json(findings.coverage);
  if (!findings.assume_fixed.empty()) out["assume_fixed"] = findings.assume_fixed;
  out["configurations"] = list_json(findings.configurations);
  out["localized"] = list_json(findings.localized);
  out["minimal_combinations"] = list_json(findings.minimal_combinations);
  out["ruled_out"] = list_json(findings.ruled_out);
  out["inert"] = list_json(findings.inert);
  out["workarounds"] = list_json(findings.workarounds);
  out["next_experiments"] = findings.next_experiments;
  out["limits"] = findings.limits;
  out["environment"] = to_json(findings.environment);
  return out.dump(kIndent, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Findings> parse_findings(std::string_view text, std::string_view where) {
  FAULTLINE_TRY(const nlohmann::json document, parse_json(text, where));
  Findings findings;
  std::string error;
  Reader in(document, "", where, error);
  int64_t schema = 0;
  in.required("schema", schema);
  if (!in.failed() && schema != kFindingsSchema) {
    return bad_input("{}: schema is {}, and this program reads schema {}; read it with the faultline that wrote it",
                     where, schema, kFindingsSchema);
  }
  int64_t exit_code = 0;
  in.required("exit_code", exit_code).optional("experiment", findings.experiment);
  in.optional("run_directory", findings.run_directory).optional("server_args", findings.server_args);
  in.optional("server_args_warnings", findings.server_args_warnings);
  in.optional("assume_fixed", findings.assume_fixed);
  std::optional<SearchCoverage> coverage;
  in.object_or_null("search", coverage, read_coverage, false);
  findings.coverage = coverage.value_or(SearchCoverage{});
  in.objects("configurations", findings.configurations, read_configuration);
  in.objects("localized", findings.localized, read_localized);
  in.objects("minimal_combinations", findings.minimal_combinations, read_combination);
  in.objects("ruled_out", findings.ruled_out, read_ruled_out);
  in.objects("inert", findings.inert, read_inert);
  in.objects("workarounds", findings.workarounds, read_workaround);
  in.optional("next_experiments", findings.next_experiments).optional("limits", findings.limits);
  in.required("environment", findings.environment);
  if (!in.failed() && (exit_code < 0 || exit_code > 255))
    error = fmt::format("{}: exit_code must be within 0 … 255", where);
  if (!error.empty()) return bad_input("{}", error);
  findings.exit_code = static_cast<int>(exit_code);
  return findings;
}

}  // namespace faultline
