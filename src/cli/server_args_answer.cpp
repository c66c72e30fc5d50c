#include "cli/server_args_answer.h"

#include <algorithm>
#include <array>

#include "base/json.h"
#include "base/text.h"
#include "grid/axes.h"
#include "grid/launch_command.h"
#include "grid/profile.h"
#include "grid/secrets.h"

namespace faultline {
namespace {

constexpr int kSchema = 1;
constexpr int kJsonIndent = 2;
constexpr size_t kMaxSuggestions = 4;
constexpr size_t kSearched = 4096;  // rows within two changes that are looked at

// What the answer speaks of; the other axes are this program's own, or follow from these.
constexpr std::array<std::string_view, 13> kReported = {"attention_backend",
                                                        "nsa_prefill_backend",
                                                        "nsa_decode_backend",
                                                        "kv_cache_dtype",
                                                        "fp4_gemm_backend",
                                                        "moe_runner_backend",
                                                        "sampling_backend",
                                                        "cuda_graph",
                                                        "shared_experts_fusion",
                                                        "page_size",
                                                        "tp",
                                                        "chunked_prefill_size",
                                                        "mem_fraction_static"};

// The server alone is asked: a kernel that this build lacks is no reason.
ShapeInfo server_shape(const ServerLine& line, const ServerArgsQuestion& question) {
  ShapeInfo shape;
  if (question.gpus > 0) shape.gpus = question.gpus;
  shape.gpu_memory = question.gpu_memory;
  shape.any_build = true;
  shape.target_only = true;
  shape.nvfp4 = line.nvfp4.value_or(true);
  return shape;
}

std::string value_or_dash(const AxisValues& values, std::string_view key) {
  const auto it = values.find(std::string(key));
  return it == values.end() ? "-" : it->second;
}

SettingAnswer explain(std::string_view axis, const ResolvedConfiguration& c, const Profile& profile,
                      const Target& target) {
  SettingAnswer answer{std::string(axis), value_or_dash(c.requested, axis), value_or_dash(c.resolved, axis), "", ""};
  const bool nsa = axis == "nsa_prefill_backend" || axis == "nsa_decode_backend";
  const NsaDefault& chosen = nsa_default(profile, value_or_dash(c.resolved, "kv_cache_dtype"), target.arch);
  const std::string& from_table = axis == "nsa_prefill_backend" ? chosen.prefill : chosen.decode;
  if (answer.resolved == "-" && nsa) {
    // The layout of the cache is all that they decide then.
    answer.why =
        fmt::format("no NSA kernel runs under attention_backend={}; but its choice ({}) decides the cache's layout: {}",
                    value_or_dash(c.resolved, "attention_backend"),
                    answer.requested == kAuto ? from_table : answer.requested, profile.cache_dimension.text);
    answer.source = profile.cache_dimension.source;
  } else if (answer.resolved == "-") {
    answer.why = "no effect in this configuration";
  } else if (nsa && (answer.requested == kAuto || answer.requested != answer.resolved)) {
    answer.why = answer.requested == kAuto ? "the server chooses it" : "the server replaces what was asked for";
    if (answer.requested == kAuto && from_table != answer.resolved) answer.why = from_table + ", resolved";
    answer.source = chosen.source;
  } else if (answer.requested == kAuto) {
    answer.why = "the server chooses it";
    if (const auto* table = defaults_of(profile, axis); table != nullptr && !table->empty())
      answer.source = default_for(*table, target.arch).source;
  } else if (axis == "page_size" && answer.requested != answer.resolved) {
    answer.why = profile.page_size.text;
    answer.source = profile.page_size.source;
  }
  return answer;
}

// What the products come to here is the arithmetic; a person wants the backend's name too.
void name_the_backend(SettingAnswer& setting, const Profile& profile, const Target& target) {
  const bool product = setting.axis == "fp4_gemm_backend" || setting.axis == "moe_runner_backend";
  if (!product || setting.resolved == "-") return;
  const std::string backend = setting.requested == kAuto
                                  ? default_for(*defaults_of(profile, setting.axis), target.arch).value
                                  : setting.requested;
  if (backend != setting.resolved) setting.resolved = fmt::format("{} ({})", backend, setting.resolved);
}

std::string standing(TargetStatus status, const std::string& reason) {
  return std::string(target_status_name(status)) + (reason.empty() ? "" : ": " + reason);
}

// Whether a kernel of this build follows what the row would run: otherwise "runs" only means that no rule is known that
// forbids it.
bool is_covered(const ResolvedConfiguration& c) {
  return value_or_dash(c.resolved, "prefill_attention") != "-" && value_or_dash(c.resolved, "decode_attention") != "-";
}

void add_suggestions(const ServerArgsQuestion& question, const ShapeInfo& shape, ServerArgsAnswer& answer) {
  std::vector<Neighbour> rows = neighbourhood(answer.line.axes, *answer.profile, answer.target, shape, kSearched);
  std::erase_if(rows, [&](const Neighbour& row) {
    return row.changes.empty() || row.inert || row.configuration.status != TargetStatus::kRuns ||
           !is_covered(row.configuration);
  });
  // First what computes the model; then what is fewer changes away.
  std::stable_sort(rows.begin(), rows.end(), [](const Neighbour& left, const Neighbour& right) {
    return left.configuration.settings.size() < right.configuration.settings.size();
  });
  if (answer.status == TargetStatus::kRuns) rows.clear();
  for (const Neighbour& row : rows) {
    if (answer.suggestions.size() == kMaxSuggestions) break;
    // The same cure with one more change is no news.
    const bool contained = std::any_of(
        answer.suggestions.begin(), answer.suggestions.end(), [&](const ServerArgsAnswer::Suggestion& earlier) {
          return std::includes(row.changes.begin(), row.changes.end(), earlier.changes.begin(), earlier.changes.end());
        });
    if (contained) continue;
    answer.suggestions.push_back(
        {row.changes, row.configuration,
         launch_command(row.axes, *answer.profile, answer.target, {answer.line.environment, answer.line.kept})});
  }
  for (const std::string& name : profile_names()) {
    if (name == answer.profile->name) continue;
    const auto line = parse_server_args(question.text, *find_profile(name));
    if (!line) continue;
    const ResolvedConfiguration there = resolve(line->axes, *find_profile(name), answer.target, shape);
    answer.other_profiles.emplace_back(name, standing(there.status, there.reason));
  }
}

nlohmann::json mentions_json(const std::vector<FlagMention>& list) {
  nlohmann::json array = nlohmann::json::array();
  for (const FlagMention& entry : list)
    array.push_back({{"words", entry.words}, {"why", entry.why}, {"source", entry.source}});
  return array;
}

std::string mentions_text(std::string_view title, const std::vector<FlagMention>& list) {
  if (list.empty()) return "";
  std::string text = fmt::format("\n{}\n", title);
  for (const FlagMention& entry : list) {
    text += fmt::format("  {}: {}", entry.words, entry.why);
    text += entry.source.empty() ? "\n" : fmt::format(" [{}]\n", entry.source);
  }
  return text;
}

std::string settings_table(const ServerArgsAnswer& answer) {
  size_t axis_width = 0;
  size_t requested_width = 0;
  size_t resolved_width = 0;
  for (const SettingAnswer& setting : answer.settings) {
    axis_width = std::max(axis_width, setting.axis.size());
    requested_width = std::max(requested_width, setting.requested.size());
    resolved_width = std::max(resolved_width, setting.resolved.size());
  }
  std::string text = "\nrequested -> resolved\n";
  for (const SettingAnswer& setting : answer.settings) {
    std::string line = fmt::format("  {:<{}}  {:<{}}  -> {:<{}}", setting.axis, axis_width, setting.requested,
                                   requested_width, setting.resolved, resolved_width);
    if (!setting.why.empty()) line += "  " + setting.why;
    if (!setting.source.empty()) line += fmt::format(" [{}]", setting.source);
    while (line.ends_with(' ')) line.pop_back();
    text += line + "\n";
  }
  return text;
}

std::string suggestions_text(const ServerArgsAnswer& answer) {
  std::string text;
  if (!answer.suggestions.empty()) {
    text += "\nto try, the nearest that run:\n";
    for (const ServerArgsAnswer::Suggestion& suggestion : answer.suggestions) {
      text += fmt::format("  {}\n    {}\n", changes_text(suggestion.changes), suggestion.command);
      const std::vector<std::string>& said = answer.configuration.notes;
      for (const std::string& note : suggestion.configuration.notes)
        if (std::find(said.begin(), said.end(), note) == said.end()) text += fmt::format("    note: {}\n", note);
      if (!suggestion.configuration.settings.empty())
        text += fmt::format("    computes another model than the checkpoint's: {}\n",
                            fmt::join(suggestion.configuration.settings, ", "));
    }
  } else if (answer.status != TargetStatus::kRuns) {
    text += fmt::format("\nnothing within two changes of this line runs under {} on {}\n", answer.profile->name,
                        answer.target.name);
  }
  if (!answer.other_profiles.empty()) text += "\nthe same line under other versions:\n";
  for (const auto& [name, what] : answer.other_profiles) text += fmt::format("  {}: {}\n", name, what);
  return text;
}

}  // namespace

Result<ServerArgsAnswer> answer_server_args(const ServerArgsQuestion& question) {
  ServerArgsAnswer answer;
  const std::string profile = question.profile.empty() ? std::string(kDefaultProfile) : question.profile;
  answer.profile = find_profile(profile);
  if (answer.profile == nullptr)
    return bad_input("unknown profile '{}'{}", quotable(profile), suggestion(profile, profile_names()));
  FAULTLINE_TRY(answer.target, find_target(question.arch.empty() ? "any" : question.arch));
  FAULTLINE_TRY(answer.line, parse_server_args(question.text, *answer.profile));
  const ShapeInfo shape = server_shape(answer.line, question);
  answer.configuration = resolve(answer.line.axes, *answer.profile, answer.target, shape);
  const ResolvedConfiguration& c = answer.configuration;
  answer.status = c.status;
  answer.reason = c.reason;
  answer.source = c.source;
  if (!answer.line.refused.empty()) {
    // argparse comes before everything else.
    answer.status = TargetStatus::kGuard;
    answer.reason = answer.line.refused.front().words + ": " + answer.line.refused.front().why;
    answer.source = answer.line.refused.front().source;
  }
  for (const std::string_view axis : kReported) {
    if (find_axis(axis) == nullptr) continue;
    const bool sizes = axis == "chunked_prefill_size" || axis == "mem_fraction_static";
    if (sizes && answer.line.axes.count(std::string(axis)) == 0) continue;
    SettingAnswer setting = explain(axis, c, *answer.profile, answer.target);
    name_the_backend(setting, *answer.profile, answer.target);
    if (setting.resolved == "-" && answer.line.axes.count(setting.axis) != 0) answer.inert.push_back(setting.axis);
    answer.settings.push_back(std::move(setting));
  }
  answer.settings.push_back({"the cache's layout", "-", value_or_dash(c.resolved, "kv_format"),
                             answer.profile->cache_dimension.text, answer.profile->cache_dimension.source});
  answer.command =
      launch_command(answer.line.axes, *answer.profile, answer.target, {answer.line.environment, answer.line.kept});
  add_suggestions(question, shape, answer);
  return answer;
}

std::string answer_text(const ServerArgsAnswer& answer) {
  std::string text =
      fmt::format("{} on {}: {}\n", answer.profile->name, answer.target.name,
                  answer.status == TargetStatus::kRuns ? "runs" : standing(answer.status, answer.reason));
  if (!answer.source.empty()) text += fmt::format("  {}\n", answer.source);
  text += settings_table(answer);
  if (!answer.inert.empty()) {
    text += "\ngiven on the line, and without effect:";
    for (const std::string& axis : answer.inert) text += " " + axis;
    text += "\n";
  }
  text += mentions_text("not flags of this version:", answer.line.refused);
  text += mentions_text("not covered here, so the server may do something else than this answer says:",
                        answer.line.unmodelled);
  text += mentions_text("ignored:", answer.line.ignored);
  std::vector<std::string> notes = answer.line.notes;
  notes.insert(notes.end(), answer.configuration.notes.begin(), answer.configuration.notes.end());
  if (!answer.line.nvfp4)
    notes.emplace_back("neither --quantization nor the model's name tells the weights' format: NVFP4 is assumed");
  if (!is_covered(answer.configuration))
    notes.emplace_back(
        "no kernel of this build follows this attention: nothing is known here that stops the server, nor that it is "
        "right");
  if (!answer.configuration.has_kernels)
    notes.emplace_back("this build lacks a kernel or setting of this line, so bisect cannot run it as it is");
  if (!notes.empty()) text += "\n";
  for (const std::string& note : notes) text += "note: " + note + "\n";
  return text + suggestions_text(answer);
}

std::string answer_json(const ServerArgsAnswer& answer, const std::string& text) {
  const ResolvedConfiguration& c = answer.configuration;
  nlohmann::json root;
  root["schema"] = kSchema;
  root["profile"] = answer.profile->name;
  root["arch"] = answer.target.name;
  root["line"] = redacted_line(text);
  root["model"] = answer.line.model;
  root["rows"] = nlohmann::json::array();
  root["rows"].push_back({{"id", "line"},
                          {"axes", answer.line.axes},
                          {"resolved", c.resolved},
                          {"status", std::string(target_status_name(answer.status))},
                          {"reason", answer.reason},
                          {"source", answer.source},
                          {"notes", c.notes},
                          {"settings", c.settings},
                          {"command", answer.command}});
  root["settings"] = nlohmann::json::array();
  for (const SettingAnswer& setting : answer.settings)
    root["settings"].push_back({{"axis", setting.axis},
                                {"requested", setting.requested},
                                {"resolved", setting.resolved},
                                {"why", setting.why},
                                {"source", setting.source}});
  root["inert"] = answer.inert;
  root["unmodelled"] = mentions_json(answer.line.unmodelled);
  root["refused"] = mentions_json(answer.line.refused);
  root["ignored"] = mentions_json(answer.line.ignored);
  root["notes"] = answer.line.notes;
  root["suggestions"] = nlohmann::json::array();
  for (const ServerArgsAnswer::Suggestion& suggestion : answer.suggestions)
    root["suggestions"].push_back({{"changes", suggestion.changes},
                                   {"resolved", suggestion.configuration.resolved},
                                   {"notes", suggestion.configuration.notes},
                                   {"settings", suggestion.configuration.settings},
                                   {"command", suggestion.command}});
  root["other_profiles"] = nlohmann::json::object();
  for (const auto& [name, what] : answer.other_profiles) root["other_profiles"][name] = what;
  return dump_json(root, kJsonIndent) + "\n";
}

int answer_exit_code(const ServerArgsAnswer& answer) {
  return answer.status == TargetStatus::kRuns ? 0 : 1;
}

}  // namespace faultline
