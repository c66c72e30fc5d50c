#include "bisect/findings_of_run.h"

#include <algorithm>
#include <map>
#include <set>

#include "bisect/line_experiment.h"
#include "bisect/signature.h"
#include "grid/launch_command.h"
#include "grid/server_args.h"
#include "report/verdict.h"

namespace faultline {
namespace {

// What every row's command keeps of the line that was given.
LaunchBase launch_base(const Experiment& experiment, const Profile& profile) {
  if (experiment.server_args.empty()) return {};
  const auto line = parse_server_args(experiment.server_args, profile);
  if (!line) return {};
  LaunchBase base{line->environment, line->kept};
  // Sizes that this build left out of the rows belong to the real server all the same.
  for (const auto& [axis, value] : line->axes)
    if (std::none_of(experiment.axes.begin(), experiment.axes.end(),
                     [&](const RequestedAxis& requested) { return requested.name == axis; }))
      base.axes[axis] = value;
  return base;
}

}  // namespace

std::vector<SearchRow> search_rows(const std::vector<ScreenRow>& rows) {
  std::vector<SearchRow> result;
  for (const ScreenRow& row : rows) {
    SearchRow out;
    out.id = row.id;
    out.axes = row.grid.axes;
    out.resolved = row.resolved.resolved;
    out.verdict = row.outcome.verdict;
    out.reason = row.outcome.reason;
    out.plant = row.plant;
    out.runs_on_target = row.outcome.target_status == "runs";
    out.order = row.launch_order;
    const std::vector<Failure> failures = failures_of(row);
    if (!failures.empty()) {
      out.status = RowStatus::kFails;
      out.signature = failures.front().signature;
      out.complete =
          std::none_of(row.results.begin(), row.results.end(), [](const TaskResult& r) { return r.failed(); });
      for (size_t i = 1; i < failures.size(); ++i) out.also.push_back(failures[i].signature);
    } else if (row.outcome.verdict == "pass") {
      out.status = RowStatus::kPasses;
    } else {
      out.status = RowStatus::kUntestable;
    }
    result.push_back(std::move(out));
  }
  return result;
}

std::vector<Suspicion> suspicions_of(const std::vector<ScreenRow>& rows) {
  std::vector<Suspicion> result;
  std::map<std::pair<std::string, std::string>, size_t> known;
  for (const ScreenRow& row : rows)
    for (Failure& failure : failures_of(row)) {
      if (!row.plant.empty() && known.count({"", failure.signature}) != 0) continue;
      const auto [it, fresh] = known.emplace(std::make_pair(row.plant, failure.signature), result.size());
      if (fresh) {
        Suspicion suspicion;
        suspicion.signature = failure.signature;
        suspicion.plant = row.plant;
        suspicion.task = row.tasks.front();
        suspicion.screened = runs_that_show(row, failure.signature);
        suspicion.repeated = row.tasks.size() > 1;
        suspicion.failure = std::move(failure);
        result.push_back(std::move(suspicion));
      }
      result[it->second].configurations.push_back(row.id);
    }
  return result;
}

Findings findings_of_run(const PreparedExperiment& prepared, const std::vector<ScreenRow>& rows,
                         const std::vector<Localized>& localized, const SearchResult& search) {
  Findings findings;
  const Experiment& experiment = prepared.experiment;
  findings.experiment = experiment.name;
  findings.server_args = experiment.server_args;
  findings.server_args_warnings = warnings_of_line(experiment);
  const LaunchBase base = launch_base(experiment, *prepared.profile);
  for (const ScreenRow& row : rows) {
    findings.configurations.push_back(row.outcome);
    findings.configurations.back().launch_command =
        launch_command(row.grid.axes, *prepared.profile, prepared.target, base);
  }
  findings.localized = localized;
  findings.minimal_combinations = search.minimal_combinations;
  findings.ruled_out = search.ruled_out;
  findings.inert = search.inert;
  findings.workarounds = search.workarounds;
  for (Workaround& workaround : findings.workarounds)
    for (const ScreenRow& row : rows)
      if (row.id == workaround.id)
        workaround.launch_command = launch_command(row.grid.axes, *prepared.profile, prepared.target, base);
  findings.next_experiments = search.next_experiments;
  for (const std::string& plant : experiment.plant) {
    const bool fired = std::any_of(rows.begin(), rows.end(), [&](const ScreenRow& row) {
      return row.plant == plant &&
             (row.outcome.failures > 0 || std::any_of(row.results.begin(), row.results.end(),
                                                      [](const TaskResult& r) { return r.plant_fired > 0; }));
    });
    if (!fired)
      findings.next_experiments.push_back("The plant " + plant +
                                          " never triggered: its selector matches nothing that ran.");
  }
  // What holds for every run (own kernels, check level, repeats) the report says by itself.
  auto& limits = findings.limits;
  for (const MaskedRows& masked : search.masked)
    limits.push_back("Rows that fail earlier otherwise say nothing about '" + masked.signature +
                     "': " + std::to_string(masked.rows.size()) + " of them.");
  if (!prepared.target.note.empty()) limits.push_back(prepared.target.note);
  return findings;
}

ExitCode exit_code_of(const Findings& findings) {
  bool ran = false;
  bool failed = false;
  for (const ConfigurationResult& row : findings.configurations) {
    ran = ran || row.repeats > 0;
    failed = failed || verdict_is_failure(row.verdict);
  }
  if (!ran) return ExitCode::kNothingRun;
  if (!failed) return ExitCode::kGood;
  const bool all = std::all_of(findings.localized.begin(), findings.localized.end(),
                               [](const Localized& one) { return !one.culprit.empty(); });
  return all ? ExitCode::kFailuresLocalized : ExitCode::kFailuresNotLocalized;
}

}  // namespace faultline
