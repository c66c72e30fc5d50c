#include "bisect/line_experiment.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "bisect/driver.h"
#include "grid/axes.h"
#include "grid/neighbourhood.h"
#include "grid/secrets.h"
#include "grid/server_args.h"
#include "grid/shape.h"

namespace faultline {
namespace {

constexpr int64_t kPageSize = 64;
constexpr size_t kMaxShown = 400;  // bytes of the line in a sentence

// Whether the engine can do a setting at all, asked without the others.
bool build_can(const std::string& axis, const std::string& value, const Profile& profile) {
  ShapeInfo shape;
  shape.any_build = true;
  return resolve({{"attention_backend", "nsa"}, {"kv_cache_dtype", "bf16"}, {axis, value}}, profile, Target{}, shape)
             .has_kernels ||
         !resolve({{"attention_backend", "nsa"}, {"kv_cache_dtype", "bf16"}}, profile, Target{}, shape).has_kernels;
}

// Settings that say how much, not which: leaving one out asks the same of every kernel.
bool is_size(const std::string& axis) {
  return axis == "tp" || axis == "max_total_tokens" || axis == "mem_fraction_static";
}

AxisValues runnable_axes(const ServerLine& line, const Profile& profile) {
  AxisValues axes;
  for (const auto& [axis, value] : line.axes)
    if (!is_size(axis) || build_can(axis, value, profile)) axes[axis] = value;
  return axes;
}

}  // namespace

Result<Experiment> experiment_of_line(const LineQuestion& question) {
  Experiment experiment;
  experiment.name = "server-args";
  experiment.server_args = redacted_line(question.text);
  if (!question.profile.empty()) experiment.profile = question.profile;
  if (!question.arch.empty()) experiment.arch = question.arch;
  const Profile* profile = find_profile(experiment.profile);
  if (profile == nullptr)
    return bad_input("unknown profile '{}'{}", quotable(experiment.profile),
                     suggestion(experiment.profile, profile_names()));
  FAULTLINE_TRY(const Target target, find_target(experiment.arch));
  FAULTLINE_TRY(const ServerLine line, parse_server_args(question.text, *profile));
  std::error_code error;
  const bool folder = !line.model.empty() && std::filesystem::is_directory(line.model, error);
  experiment.model = question.model.empty() && folder ? line.model : question.model;
  if (experiment.model.empty())
    return bad_input("no model: name one by --model DIR (or --model synth:tiny){}",
                     line.model.empty() ? "" : "; the line's --model-path is no folder here");
  FAULTLINE_TRY(const ModelConfig config, model_config(experiment.model));
  Experiment filled = experiment;
  fill_probe_defaults(filled.probes, kPageSize, config.index_topk, config.max_position_embeddings);
  const std::vector<Neighbour> rows =
      neighbourhood(runnable_axes(line, *profile), *profile, target, shape_info(&config, filled),
                    question.max_rows == 0 ? kDefaultNeighbours : question.max_rows);
  for (const Neighbour& row : rows) experiment.rows.push_back(row.axes);
  for (const auto& [axis, value] : rows.front().axes) {
    RequestedAxis all{axis, {}};
    for (const Neighbour& row : rows)
      if (std::find(all.values.begin(), all.values.end(), row.axes.at(axis)) == all.values.end())
        all.values.push_back(row.axes.at(axis));
    experiment.axes.push_back(std::move(all));
  }
  return experiment;
}

std::vector<std::string> warnings_of_line(const Experiment& experiment) {
  std::vector<std::string> warnings;
  if (experiment.server_args.empty()) return warnings;
  const Profile* profile = find_profile(experiment.profile);
  if (profile == nullptr) return warnings;
  const auto line = parse_server_args(experiment.server_args, *profile);
  if (!line) return warnings;
  for (const auto& [axis, value] : line->axes)
    if (is_size(axis) && !build_can(axis, value, *profile))
      warnings.push_back(
          fmt::format("{}={} of the line is left out in every row: this build's engine has no such size", axis, value));
  for (const FlagMention& entry : line->refused) warnings.push_back(entry.words + ": " + entry.why);
  for (const FlagMention& entry : line->unmodelled)
    warnings.push_back(fmt::format("not covered: {}: {}", quotable(entry.words, kMaxShown), entry.why));
  return warnings;
}

}  // namespace faultline
