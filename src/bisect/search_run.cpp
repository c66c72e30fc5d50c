#include "bisect/search_run.h"

#include <algorithm>
#include <set>

#include "bisect/findings_of_run.h"
#include "bisect/limit_search.h"
#include "bisect/search_plan.h"

namespace faultline {
namespace {

// Rows of a pass that are to run.
struct Batch {
  GridPass* pass;
  std::vector<size_t> rows;
};

// All at once, so that workers stay busy. Rows are moved out and back, since screen() takes the ones that it runs.
Status screen_some(const std::vector<Batch>& batches, const Experiment& experiment, Session& session,
                   const std::string& label) {
  std::vector<ScreenRow> rows;
  for (const Batch& batch : batches)
    for (const size_t i : batch.rows) rows.push_back(std::move(batch.pass->rows[i]));
  Status status = screen(rows, experiment, session, label);
  if (status && experiment.compare_outputs) status = compare_outputs(rows, session, label);
  auto row = rows.begin();
  for (const Batch& batch : batches)
    for (const size_t i : batch.rows) {
      batch.pass->rows[i] = std::move(*row++);
      batch.pass->screened[i] = true;
    }
  return status;
}

bool runnable(const ScreenRow& row) {
  return !row.tasks.empty();
}

std::vector<size_t> covering_rows_of(const GridPass& pass) {
  std::vector<GridRow> rows;
  std::vector<bool> allowed;
  for (const ScreenRow& row : pass.rows) {
    rows.push_back(row.grid);
    allowed.push_back(runnable(row));
  }
  return covering_rows(rows, allowed);
}

// A planted row that fails as unplanted rows do says nothing until its own unplanted row has run.
std::vector<size_t> twins_to_run(const GridPass& planted, const GridPass& unplanted) {
  std::set<std::string> known;
  for (size_t i = 0; i < unplanted.rows.size(); ++i)
    for (const Failure& failure : failures_of(unplanted.rows[i])) known.insert(failure.signature);
  std::vector<size_t> twins;
  for (size_t i = 0; i < planted.rows.size(); ++i) {
    if (unplanted.screened[i] || !runnable(unplanted.rows[i])) continue;
    const std::vector<Failure> failures = failures_of(planted.rows[i]);
    if (std::any_of(failures.begin(), failures.end(), [&](const Failure& f) { return known.count(f.signature) != 0; }))
      twins.push_back(i);
  }
  return twins;
}

// What `full` and `pairs` run of a pass.
std::vector<size_t> chosen_rows(const GridPass& pass, const std::string& strategy) {
  if (strategy == "pairs") return covering_rows_of(pass);
  std::vector<size_t> all;
  for (size_t i = 0; i < pass.rows.size(); ++i) all.push_back(i);
  return all;
}

// Rounds over the passes at once: each asks for its next rows until none does.
Status screen_adaptively(const std::vector<GridPass*>& passes, GridPass* unplanted, const Experiment& experiment,
                         Session& session) {
  while (!session.interrupted() && !session.out_of_time()) {
    const std::vector<SearchRow> bare = unplanted == nullptr ? std::vector<SearchRow>{} : search_rows(*unplanted);
    std::vector<Batch> batches;
    std::string phase;
    for (GridPass* pass : passes) {
      SearchStep step = rows_to_run_next(search_rows(*pass), bare);
      if (step.rows.empty()) continue;
      if (phase.empty()) phase = step.phase;
      batches.push_back({pass, std::move(step.rows)});
    }
    if (batches.empty()) return {};
    FAULTLINE_TRY_STATUS(screen_some(batches, experiment, session, (unplanted == nullptr ? "" : "planted, ") + phase));
    // The time is up, or a report is written again: what comes next hangs on runs that there will not be.
    const bool nothing_came = std::all_of(batches.begin(), batches.end(), [](const Batch& batch) {
      return std::all_of(batch.rows.begin(), batch.rows.end(),
                         [&](size_t i) { return batch.pass->rows[i].outcome.verdict == "skipped"; });
    });
    if (nothing_came) return {};
    if (unplanted == nullptr) continue;
    std::set<size_t> twins;
    for (const GridPass* pass : passes)
      for (const size_t row : twins_to_run(*pass, *unplanted)) twins.insert(row);
    if (!twins.empty())
      FAULTLINE_TRY_STATUS(
          screen_some({{unplanted, {twins.begin(), twins.end()}}}, experiment, session, "the same without plants"));
  }
  return {};
}

}  // namespace

std::vector<ScreenRow> GridPass::outcomes() const {
  std::vector<ScreenRow> result;
  for (size_t i = 0; i < rows.size(); ++i)
    if (screened[i]) result.push_back(rows[i]);
  return result;
}

Status screen_passes(std::vector<GridPass>& passes, const Experiment& experiment, Session& session) {
  for (GridPass& pass : passes) pass.screened.assign(pass.rows.size(), false);
  GridPass& unplanted = passes.front();
  std::vector<GridPass*> planted;
  for (size_t i = 1; i < passes.size(); ++i) planted.push_back(&passes[i]);
  if (experiment.strategy == "adaptive") {
    FAULTLINE_TRY_STATUS(screen_adaptively({&unplanted}, nullptr, experiment, session));
    return screen_adaptively(planted, &unplanted, experiment, session);
  }
  const std::vector<size_t> chosen = chosen_rows(unplanted, experiment.strategy);
  FAULTLINE_TRY_STATUS(screen_some({{&unplanted, chosen}}, experiment, session,
                                   experiment.strategy == "pairs" ? "screening pairs" : "screening"));
  if (planted.empty()) return {};
  std::vector<Batch> batches;
  batches.reserve(planted.size());
  for (GridPass* pass : planted) batches.push_back({pass, chosen});
  return screen_some(batches, experiment, session, "planted");
}

std::vector<SearchRow> search_rows(const GridPass& pass) {
  std::vector<SearchRow> result = search_rows(pass.rows);
  for (size_t i = 0; i < result.size(); ++i) {
    if (pass.screened[i]) continue;
    SearchRow& row = result[i];
    const ResolvedConfiguration& resolved = pass.rows[i].resolved;
    row.status = runnable(pass.rows[i]) ? RowStatus::kNotRun : RowStatus::kUntestable;
    row.verdict = runnable(pass.rows[i]) ? "not run" : target_status_name(resolved.status);
    row.reason = runnable(pass.rows[i]) ? "" : resolved.reason;
  }
  return result;
}

SearchCoverage coverage_of(const GridPass& pass, const std::string& strategy) {
  SearchCoverage coverage;
  coverage.strategy = strategy;
  coverage.grid = static_cast<int64_t>(pass.rows.size());
  for (const ScreenRow& row : pass.rows) {
    coverage.runnable += runnable(row) ? 1 : 0;
    coverage.run += row.outcome.repeats > 0 ? 1 : 0;
  }
  coverage.strength = static_cast<int64_t>(covered_strength(search_rows(pass)));
  return coverage;
}

std::string open_sentence(const SearchCoverage& coverage) {
  const int64_t left = coverage.runnable - coverage.run;
  if (left <= 0) return {};
  constexpr const char* kSettings[] = {"", "single setting", "pair of settings", "triple of settings"};
  const auto strength = static_cast<size_t>(std::min<int64_t>(coverage.strength, std::size(kSettings) - 1));
  const std::string covered =
      strength == 0 ? "Not every setting was in a row that passed or in a failing combination"
                    : fmt::format("Every {} that a row outside the failing combinations holds was in a row that passed",
                                  kSettings[strength]);
  return fmt::format(
      "{}. A failure that needs more settings at once may be missed: strategy full runs the other {} {}.", covered,
      left, left == 1 ? "row" : "rows");
}

}  // namespace faultline
