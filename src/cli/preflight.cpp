#include "cli/preflight.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "base/file.h"
#include "base/json.h"
#include "bisect/plant.h"
#include "cli/failure.h"
#include "cli/server_args_answer.h"
#include "grid/axes.h"
#include "grid/launch_command.h"
#include "grid/shape.h"
#include "model/synth.h"

namespace faultline {
namespace {

constexpr int kSchema = 1;
constexpr int kJsonIndent = 2;
constexpr double kGB = 1e9;
constexpr double kMostGpuMemory = 1e6;  // GB
constexpr int64_t kMostGpus = 1024;
constexpr int64_t kGlm5MaxPositions = 202752;  // zai-org/GLM-5 config.json

struct Options {
  std::string experiment;
  std::string server_args;
  bool has_server_args = false;
  std::string model;
  std::string arch;
  std::string profile;
  std::string json;
  int64_t gpus = 0;       // 0: not said
  double gpu_memory = 0;  // GB of one GPU; 0: not said
};

// Only the config: preflight loads no weights.
Result<ModelConfig> config_of(const std::string& spec) {
  if (spec.rfind(kSynthPrefix, 0) == 0) {
    FAULTLINE_TRY(SynthModel model, parse_synth_spec(spec));
    return std::move(model.config);
  }
  const std::string path = spec + "/config.json";
  FAULTLINE_TRY(const std::string text, read_file(path));
  return parse_model_config(text, path);
}

Result<std::vector<PreflightRow>> resolve_rows(Experiment& experiment, const Options& options) {
  FAULTLINE_TRY(const Target target, find_target(experiment.arch));
  const Profile* profile = find_profile(experiment.profile);
  FAULTLINE_CHECK(profile != nullptr);  // both ways to name one are validated
  std::optional<ModelConfig> model;
  if (!experiment.model.empty()) {
    FAULTLINE_TRY(model, config_of(experiment.model));
  }
  constexpr int64_t kPageSize = 64;
  fill_probe_defaults(experiment.probes, kPageSize, model ? model->index_topk : ShapeInfo{}.index_topk,
                      model ? model->max_position_embeddings : kGlm5MaxPositions);
  ShapeInfo shape = shape_info(model ? &*model : nullptr, experiment);
  shape.target_only = true;
  if (options.gpus > 0) shape.gpus = options.gpus;
  if (options.gpu_memory > 0) shape.gpu_memory = static_cast<int64_t>(options.gpu_memory * kGB);
  FAULTLINE_TRY(Grid grid, expand_grid(experiment));
  std::vector<PreflightRow> rows;
  for (GridRow& row : grid.rows) {
    ResolvedConfiguration configuration = resolve(row.axes, *profile, target, shape);
    rows.push_back({std::move(row), std::move(configuration)});
  }
  return rows;
}

std::string padded(std::string_view text, size_t width) {
  return fmt::format("{:<{}}", text, width);
}

Result<int> run_server_args(const Options& options) {
  ServerArgsQuestion question{options.server_args, options.profile, options.arch, options.gpus,
                              static_cast<int64_t>(options.gpu_memory * kGB)};
  FAULTLINE_TRY(const ServerArgsAnswer answer, answer_server_args(question));
  const std::string json = options.json.empty() ? "" : answer_json(answer, options.server_args);
  if (!json.empty() && options.json != "-") FAULTLINE_TRY_STATUS(write_file(options.json, json));
  const std::string text = options.json == "-" ? json : answer_text(answer);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return answer_exit_code(answer);
}

Result<int> run_preflight(const Options& options) {
  if (options.has_server_args) return run_server_args(options);
  if (options.experiment.empty()) return bad_input("preflight: name an experiment file, or give --server-args");
  FAULTLINE_TRY(Experiment experiment, load_experiment(options.experiment, plant_names()));
  if (!options.model.empty()) experiment.model = options.model;
  if (!options.arch.empty()) experiment.arch = options.arch;
  if (!options.profile.empty()) experiment.profile = options.profile;
  FAULTLINE_TRY(const std::vector<PreflightRow> rows, resolve_rows(experiment, options));
  if (!options.json.empty() && options.json != "-")
    FAULTLINE_TRY_STATUS(write_file(options.json, preflight_json(experiment, rows)));
  const std::string text = options.json == "-" ? preflight_json(experiment, rows) : preflight_table(experiment, rows);
  std::fwrite(text.data(), 1, text.size(), stdout);
  const bool all_run = std::all_of(rows.begin(), rows.end(), [](const PreflightRow& row) {
    return row.configuration.status == TargetStatus::kRuns;
  });
  return all_run ? 0 : 1;
}

}  // namespace

std::string preflight_table(const Experiment& experiment, const std::vector<PreflightRow>& rows) {
  constexpr std::pair<std::string_view, std::string_view> kResolved[] = {
      {"prefill", "prefill_attention"}, {"decode", "decode_attention"}, {"cache", "kv_format"}};
  std::vector<std::string> columns;
  for (const RequestedAxis& axis : experiment.axes)
    if (axis.values.size() > 1) columns.push_back(axis.name);
  const size_t asked = columns.size();
  for (const auto& [title, key] : kResolved) columns.emplace_back(title);
  const auto cell = [&](const PreflightRow& row, size_t i) -> const std::string& {
    if (i < asked) return row.row.axes.at(columns[i]);
    return row.configuration.resolved.at(std::string(kResolved[i - asked].second));
  };
  size_t id_width = 2;
  std::vector<size_t> widths;
  widths.reserve(columns.size());
  for (const std::string& column : columns) widths.push_back(column.size());
  std::array<size_t, 4> counts{};
  for (const PreflightRow& row : rows) {
    id_width = std::max(id_width, row.row.id.size());
    for (size_t i = 0; i < columns.size(); ++i) widths[i] = std::max(widths[i], cell(row, i).size());
    ++counts[static_cast<size_t>(row.configuration.status)];
  }
  std::string text = fmt::format("{} on {}: {} configurations", experiment.profile, experiment.arch, rows.size());
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] != 0) text += fmt::format(", {} {}", counts[i], target_status_name(static_cast<TargetStatus>(i)));
  text += "\n\n" + padded("id", id_width);
  for (size_t i = 0; i < columns.size(); ++i) text += (i == asked ? " -> " : "  ") + padded(columns[i], widths[i]);
  text += "  status\n";

  std::vector<std::string> reasons;  // each once, numbered in order of appearance
  std::vector<std::string> notes;
  for (const PreflightRow& row : rows) {
    const ResolvedConfiguration& c = row.configuration;
    text += padded(row.row.id, id_width);
    for (size_t i = 0; i < columns.size(); ++i) text += (i == asked ? " -> " : "  ") + padded(cell(row, i), widths[i]);
    text += "  " + std::string(target_status_name(c.status));
    if (!c.reason.empty()) {
      const std::string reason = c.reason + (c.source.empty() ? "" : "\n     " + c.source);
      auto it = std::find(reasons.begin(), reasons.end(), reason);
      if (it == reasons.end()) it = reasons.insert(reasons.end(), reason);
      text += fmt::format(" [{}]", it - reasons.begin() + 1);
    }
    text += "\n";
    for (const std::string& note : c.notes)
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
  }
  if (!reasons.empty()) text += "\n";
  for (size_t i = 0; i < reasons.size(); ++i) text += fmt::format("{:<5}{}\n", fmt::format("[{}]", i + 1), reasons[i]);
  const std::vector<InertAxis> inert = inert_axes(rows);
  if (!inert.empty()) text += "\n";
  for (const InertAxis& axis : inert) {
    const std::string where =
        axis.where.empty() ? "" : fmt::format(" where {}={}", axis.where.begin()->first, axis.where.begin()->second);
    text += fmt::format("inert: {} changes nothing{} ({} rows)\n", axis.axis, where, axis.rows);
  }
  if (!notes.empty()) text += "\n";
  for (const std::string& note : notes) text += "note: " + note + "\n";
  return text;
}

std::string preflight_json(const Experiment& experiment, const std::vector<PreflightRow>& rows) {
  const Profile* profile = find_profile(experiment.profile);
  const auto target = find_target(experiment.arch);
  FAULTLINE_CHECK(profile != nullptr && target.has_value());  // the rows were resolved by them
  nlohmann::json root;
  root["schema"] = kSchema;
  root["experiment"] = experiment.name;
  root["profile"] = experiment.profile;
  root["arch"] = experiment.arch;
  root["rows"] = nlohmann::json::array();
  for (const PreflightRow& row : rows) {
    const ResolvedConfiguration& c = row.configuration;
    root["rows"].push_back({{"id", row.row.id},
                            {"axes", row.row.axes},
                            {"resolved", c.resolved},
                            {"status", std::string(target_status_name(c.status))},
                            {"reason", c.reason},
                            {"source", c.source},
                            {"notes", c.notes},
                            {"settings", c.settings},
                            {"command", launch_command(row.row.axes, *profile, *target)}});
  }
  root["inert"] = nlohmann::json::array();
  for (const InertAxis& axis : inert_axes(rows))
    root["inert"].push_back({{"axis", axis.axis}, {"condition", axis.where}, {"rows", axis.rows}});
  return dump_json(root, kJsonIndent) + "\n";
}

void add_preflight_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("preflight", "Say what each configuration resolves to and which cannot run; runs nothing");
  command->add_option("experiment", options->experiment, "experiment (YAML)");
  command
      ->add_option_function<std::string>(
          "--server-args",
          [options](const std::string& line) {
            options->server_args = line;
            options->has_server_args = true;
          },
          "a server's command line, quoted, instead of an experiment: what it resolves to and what to try")
      ->excludes("experiment");
  command->add_option("--model", options->model, "checkpoint folder or synth:NAME, instead of the experiment's");
  command->add_option("--arch", options->arch, "target architecture, instead of the experiment's")
      ->check(CLI::IsMember(target_names()));
  command->add_option("--profile", options->profile, "server version whose rules apply, instead of the experiment's")
      ->check(CLI::IsMember(profile_names()));
  command->add_option("--gpus", options->gpus, "GPUs that the model is split over where a row has no tp (default 8)")
      ->check(CLI::Range(int64_t{1}, kMostGpus));
  command
      ->add_option("--gpu-memory", options->gpu_memory,
                   "GB of one GPU (default: 141 on sm_90, 180 on sm_100, 96 on sm_120)")
      ->check(CLI::Range(1.0, kMostGpuMemory));
  command->add_option("--json", options->json, "write the rows as JSON to a file, or to stdout with '-'");
  command->callback([options, &exit_code] {
    const Result<int> result = run_preflight(*options);
    if (result) {
      exit_code = *result;
      return;
    }
    exit_code = fail(result.error());
  });
}

}  // namespace faultline
