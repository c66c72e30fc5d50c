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

// A failure that comes and goes: a row that passed a few times may have it all the same.
struct Flaky {
  const Localized* localized;
  int64_t clean_wanted;  // of a row that is to count as free of it
};

std::vector<Flaky> flaky_signatures(const std::vector<Localized>& localized) {
  std::vector<Flaky> result;
  for (const Localized& one : localized) {
    if (!one.unchanged.mixed()) continue;
    const RunCount later{one.unchanged.runs - 1, one.unchanged.failures - 1};  // than the one that drew attention to it
    result.push_back({&one, clean_runs_needed(std::max(rate_at_least(later), kDesignFailureRate))});
  }
  return result;
}

// What the search took from rows that passed too few times for that is taken back.
void doubt_few_runs(const std::vector<Localized>& localized, Findings& findings) {
  for (const Flaky& flaky : flaky_signatures(localized)) {
    const Localized& one = *flaky.localized;
    int64_t fewest = flaky.clean_wanted;
    for (const ConfigurationResult& row : findings.configurations)
      if (row.plant == one.plant && row.verdict == "pass") fewest = std::min(fewest, row.repeats);
    if (fewest >= flaky.clean_wanted) continue;
    for (MinimalCombination& combination : findings.minimal_combinations) {
      if (combination.signature != one.signature || combination.plant != one.plant) continue;
      combination.untested.clear();
      for (const auto& [axis, value] : combination.axes) combination.untested.push_back(axis);
    }
    if (one.plant.empty())
      std::erase_if(findings.workarounds,
                    [&](const Workaround& workaround) { return workaround.signature == one.signature; });
    findings.next_experiments.push_back(fmt::format(
        "'{}' shows in {} of {} runs only: that other rows passed {} proves nothing. Run with --repeats auto, which "
        "runs each of them until {} clean runs tell.",
        one.signature, one.unchanged.failures, one.unchanged.runs,
        fewest == 1 ? "once" : fmt::format("{} times", fewest), flaky.clean_wanted));
  }
}

// Signatures that other failures hide in some rows, in one sentence.
std::string masked_text(const std::vector<MaskedRows>& masked) {
  std::map<std::string, size_t> rows;
  for (const MaskedRows& one : masked) rows[one.signature] += one.rows.size();
  std::string text;
  for (const auto& [signature, count] : rows)
    text += fmt::format("{}'{}' ({} row{})", text.empty() ? "" : ", ", signature, count, count == 1 ? "" : "s");
  return "Rows that fail earlier in another way say nothing about what that hides: " + text + ".";
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
  if (!search.masked.empty()) limits.push_back(masked_text(search.masked));
  doubt_few_runs(localized, findings);
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
