#include "bisect/screen.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/file.h"
#include "bisect/screen_repeats.h"
#include "bisect/signature.h"
#include "grid/plant_spec.h"

namespace faultline {
namespace {

constexpr size_t kMaxTokenFileIds = 1'000'000;
constexpr size_t kMostNames = 100;  // characters: they stand in file names

// The faults of a plant without their selectors: "late_tile+wrong_rope"; of very many the first and how many more.
std::string names_of(const std::string& plant) {
  const std::vector<std::string> faults = faults_of(plant);
  std::string names;
  for (const std::string& fault : faults) names += (names.empty() ? "" : "+") + split_plant(fault).first;
  return names.size() <= kMostNames ? names : fmt::format("{}+{}", split_plant(faults[0]).first, faults.size() - 1);
}

// A file of token ids, separated by blanks or commas.
Result<std::vector<int32_t>> read_ids(const std::string& path) {
  FAULTLINE_TRY(const std::string text, read_file(path));
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at < end) {
    if (std::isspace(static_cast<unsigned char>(*at)) != 0 || *at == ',' || *at == '[' || *at == ']') {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc{} || id < 0)
      return bad_input("{}: byte {}: expected a token id (a number from 0 up)", path, at - text.data());
    ids.push_back(id);
    at = next;
    if (ids.size() > kMaxTokenFileIds) return bad_input("{}: more than {} token ids", path, kMaxTokenFileIds);
  }
  if (ids.empty()) return bad_input("{}: no token ids", path);
  return ids;
}

// Comparable between rows: probes run in the same order everywhere, and layers within a pass.
int64_t launch_order(const Violation& v) {
  constexpr int64_t kStride = 100'000;
  int64_t place = v.layer + 1;
  if (v.layer < 0) place = v.op.starts_with("batch.") || v.op.starts_with("embed") ? 0 : kStride - 1;
  return ((v.probe + 2) * kStride + (v.phase == "decode" ? kStride / 2 : 0) + v.step) * kStride + place;
}

WorkerTask screening_task(const ScreenRow& row, const Experiment& experiment, const ProbePlan& plan, int64_t repeat) {
  WorkerTask task;
  task.id = row.id;
  task.resolved = row.resolved.resolved;
  task.checks = experiment.checks;
  task.plant = row.plant;
  task.probes = plan;
  task.seed = experiment.seed;
  task.assume_fixed = experiment.assume_fixed;
  task.options.repeat = repeat;
  return task;
}

}  // namespace

Result<ProbePlan> probe_plan(const Experiment& experiment, const AxisValues& resolved) {
  const Probes& probes = experiment.probes;
  ProbePlan plan;
  plan.tokens = probes.tokens;
  if (plan.tokens != "random" && plan.tokens != "repeat") {
    FAULTLINE_TRY(plan.ids, read_ids(probes.tokens));
    plan.tokens = "file";
  }
  plan.temperature = probes.sampling.temperature;
  plan.top_p = probes.sampling.top_p;
  plan.server_sequence = probes.sequence == "server";
  plan.prefill_lengths = probes.prefill_lengths;
  plan.chunk = probes.prefill_chunk.value_or(0);
  plan.contexts = probes.decode_contexts;
  plan.batch = probes.decode_batch;
  plan.steps = probes.decode_steps.value_or(1);
  const auto batch = resolved.find("batch");
  if (batch != resolved.end() && batch->second != "probe" && batch->second != "-") {
    int64_t size = 0;
    std::from_chars(batch->second.data(), batch->second.data() + batch->second.size(), size);
    plan.batch = {size};
  }
  return plan;
}

std::string plant_label(const std::vector<std::string>& plants, const std::string& plant) {
  const std::string name = names_of(plant);
  int64_t before = 0;
  for (const std::string& other : plants) {
    if (other == plant) break;
    if (names_of(other) == name) ++before;
  }
  return before == 0 ? name : fmt::format("{}.{}", name, before + 1);
}

Result<std::vector<ScreenRow>> screen_rows(const Experiment& experiment, const std::vector<GridRow>& rows,
                                           const Profile& profile, const Target& target, const ShapeInfo& shape,
                                           const std::string& plant) {
  std::vector<ScreenRow> result;
  for (const GridRow& grid : rows) {
    ScreenRow row;
    row.grid = grid;
    row.plant = plant;
    row.id = plant.empty() ? grid.id : grid.id + "+" + plant_label(experiment.plant, plant);
    row.resolved = resolve(grid.axes, profile, target, shape);
    if (can_run(row.resolved, experiment.run_unsupported)) {
      FAULTLINE_TRY(const ProbePlan plan, probe_plan(experiment, row.resolved.resolved));
      const int64_t repeats = experiment.repeats == kAutoRepeats ? 1 : experiment.repeats;
      for (int64_t repeat = 0; repeat < repeats; ++repeat)
        row.tasks.push_back(screening_task(row, experiment, plan, repeat));
    }
    result.push_back(std::move(row));
  }
  return result;
}

namespace {

void conclude(ScreenRow& row, const Experiment& experiment) {
  ConfigurationResult& out = row.outcome;
  out.id = row.id;
  out.axes = row.grid.axes;
  out.resolved = row.resolved.resolved;
  out.plant = row.plant;
  const TargetStatus status = row.resolved.status;
  out.target_status = status == TargetStatus::kLayout ? "runs" : std::string(target_status_name(status));
  out.notes = row.resolved.notes;
  if (row.tasks.empty()) {
    out.verdict = out.target_status;
    out.reason = row.resolved.source.empty() ? row.resolved.reason
                                             : fmt::format("{} [{}]", row.resolved.reason, row.resolved.source);
    return;
  }
  const TaskResult* worst = nullptr;
  int64_t fired = 0;
  for (const TaskResult& result : row.results) {
    out.seconds += result.seconds;
    fired += result.plant_fired;
    if (result.verdict == "skipped") continue;
    ++out.repeats;
    const bool failed = result.failed() || !result.settings.empty();
    if (failed) ++out.failures;
    if (failed && (worst == nullptr || !worst->failed())) worst = &result;
  }
  if (out.repeats == 0) {
    out.verdict = "skipped";
    out.reason = row.results.front().message;
    return;
  }
  const auto unsupported = std::find_if(row.results.begin(), row.results.end(),
                                        [](const TaskResult& result) { return result.verdict == "unsupported"; });
  if (worst == nullptr && unsupported != row.results.end()) {
    out.verdict = unsupported->verdict;
    out.reason = unsupported->message;
    out.first_violation = unsupported->violation;
  } else if (worst == nullptr) {
    out.verdict = "pass";
  } else if (worst->failed()) {
    out.verdict = worst->verdict;
    out.reason = worst->message;
    out.first_violation = worst->violation;
    if (worst->violation) row.launch_order = launch_order(*worst->violation);
  } else {
    out.verdict = worst->settings.front().kind;
    out.reason = worst->settings.front().detail;
    out.first_violation = worst->settings.front();
    row.launch_order = launch_order(worst->settings.front());
  }
  if (out.failures > 0 && out.failures < out.repeats) {
    out.reason = out.verdict + (out.reason.empty() ? "" : ": " + out.reason);
    out.verdict = "flaky";
  }
  if (status == TargetStatus::kLayout)
    out.notes.push_back("preflight predicted a layout conflict: " + row.resolved.reason);
  const bool died = worst != nullptr && worst->violation && worst->probes == 0;
  if (!row.plant.empty() && fired == 0 && !died)
    out.notes.push_back(fmt::format("the plant {} never triggered in this configuration", row.plant));
  if (experiment.checks != "reference" && out.verdict == "pass" && !row.resolved.settings.empty())
    out.notes.push_back("finite but other values than the model's are not looked for at this check level");
}

// Runs the tasks of all rows that have no result yet.
Status run_tasks(std::vector<ScreenRow>& rows, Session& session, const std::string& label) {
  std::vector<WorkerTask> tasks;
  for (const ScreenRow& row : rows)
    tasks.insert(tasks.end(), row.tasks.begin() + static_cast<std::ptrdiff_t>(row.results.size()), row.tasks.end());
  FAULTLINE_TRY(std::vector<TaskResult> results, session.run(tasks, label));
  size_t at = 0;
  for (ScreenRow& row : rows) {
    while (row.results.size() < row.tasks.size()) row.results.push_back(std::move(results[at++]));
    for (const TaskResult& result : row.results)
      if (!result.error.empty())
        return tl::make_unexpected(Error{result.bad_input ? ErrorKind::kBadInput : ErrorKind::kInternal,
                                         fmt::format("{}: {}", row.id, result.error)});
  }
  return {};
}

bool failed(const TaskResult& result) {
  return result.failed() || !result.settings.empty();
}

RepeatedRow repeated(const ScreenRow& row) {
  RepeatedRow out;
  out.open = !row.tasks.empty();
  for (const TaskResult& result : row.results) {
    if (result.verdict == "skipped" || result.verdict == "unsupported") out.open = false;
    ++out.count.runs;
    out.count.failures += failed(result) ? 1 : 0;
  }
  if (const std::vector<Failure> failures = failures_of(row); !failures.empty())
    out.signature = failures.front().signature;
  return out;
}

}  // namespace

Status screen(std::vector<ScreenRow>& rows, const Experiment& experiment, Session& session, const std::string& label) {
  FAULTLINE_TRY_STATUS(run_tasks(rows, session, label));
  while (experiment.repeats == kAutoRepeats) {
    std::vector<RepeatedRow> counts;
    for (const ScreenRow& row : rows) counts.push_back(repeated(row));
    const std::vector<int64_t> more = repeats_to_run(counts);
    if (std::all_of(more.begin(), more.end(), [](int64_t runs) { return runs == 0; })) break;
    for (size_t i = 0; i < rows.size(); ++i)
      for (int64_t run = 0; run < more[i]; ++run) {
        const auto repeat = static_cast<int64_t>(rows[i].tasks.size());
        rows[i].tasks.push_back(screening_task(rows[i], experiment, rows[i].tasks.front().probes, repeat));
      }
    FAULTLINE_TRY_STATUS(run_tasks(rows, session, label + ", repeats"));
  }
  for (ScreenRow& row : rows) conclude(row, experiment);
  return {};
}

RunCount runs_that_show(const ScreenRow& row, const std::string& signature) {
  RunCount count;
  for (const TaskResult& result : row.results) {
    if (result.verdict == "skipped" || result.verdict == "unsupported") continue;
    ScreenRow one;
    one.results = {result};
    const std::vector<Failure> failures = failures_of(one);
    ++count.runs;
    count.failures += std::any_of(failures.begin(), failures.end(),
                                  [&](const Failure& failure) { return failure.signature == signature; });
  }
  return count;
}

std::vector<Failure> failures_of(const ScreenRow& row) {
  std::vector<Failure> failures;
  std::set<std::string> seen;
  const auto add = [&](Violation violation, int64_t probe) {
    Failure failure{std::move(violation), {}, probe};
    failure.signature = signature_of(failure.violation);
    if (!failure.signature.empty() && seen.insert(failure.signature).second) failures.push_back(std::move(failure));
  };
  for (const TaskResult& result : row.results) {
    if (!result.failed()) continue;
    Violation violation = result.violation.value_or(Violation{});
    if (!result.violation) violation.kind = result.verdict;
    add(std::move(violation), result.probe);
  }
  for (const TaskResult& result : row.results)
    for (const Violation& setting : result.settings) add(setting, -1);
  return failures;
}

}  // namespace faultline
