#include "bisect/limit_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "bisect/probes.h"
#include "bisect/signature.h"

namespace faultline {
namespace {

WorkerTask outputs_task(const WorkerTask& screened) {
  WorkerTask task = screened;
  task.purpose = "outputs";
  task.checks = "off";
  task.options = {};
  task.options.outputs = true;
  return task;
}

WorkerTask on_references(WorkerTask task) {
  task.purpose = "outputs on references";
  task.options.spec_from = 0;
  return task;
}

// Values of a pass are taken together: one row of logits alone says little.
double share_apart(const TaskResult& run, const TaskResult& reference, size_t from, size_t count) {
  double apart = 0;
  double size = 0;
  for (size_t i = from; i < from + count; ++i) {
    const double a = std::bit_cast<float>(static_cast<uint32_t>(run.outputs[i]));
    const double b = std::bit_cast<float>(static_cast<uint32_t>(reference.outputs[i]));
    apart += (a - b) * (a - b);
    size += b * b;
  }
  if (!std::isfinite(apart) || !std::isfinite(size)) return std::numeric_limits<double>::infinity();
  if (!(apart > 0)) return 0;
  return size > 0 ? std::sqrt(apart / size) : std::numeric_limits<double>::infinity();
}

WorkerTask op_by_op(const WorkerTask& screened, int64_t probe) {
  WorkerTask task = screened;
  task.purpose = "op by op";
  task.options = {};
  task.options.op_by_op = true;
  task.options.only_probe = probe;
  return task;
}

}  // namespace

OutputDistance output_distance(const TaskResult& run, const TaskResult& reference, const WorkerTask& task) {
  OutputDistance result;
  if (run.failed() || run.outputs.size() != reference.outputs.size() || run.outputs.empty()) {
    result.share = std::numeric_limits<double>::infinity();
    result.probe = task.options.only_probe;
    return result;
  }
  const std::vector<Probe> probes = list_probes(task.probes);
  size_t at = 0;
  for (size_t p = 0; p < probes.size(); ++p) {
    if (task.options.only_probe >= 0 && task.options.only_probe != static_cast<int64_t>(p)) continue;
    const size_t values = probes[p].lengths.size() * kSampledLogits;
    const int64_t passes = probes[p].steps + (probes[p].lengths.size() == 1 ? 1 : 0);
    for (int64_t pass = 0; pass < passes && at + values <= run.outputs.size(); ++pass, at += values) {
      const double share = share_apart(run, reference, at, values);
      if (share <= result.share) continue;
      result.share = share;
      result.probe = static_cast<int64_t>(p);
    }
  }
  return result;
}

namespace {

struct Parted {
  ScreenRow* row;
  OutputDistance distance;
};

Status no_error(const std::string& id, const TaskResult& result) {
  if (result.error.empty()) return {};
  return tl::make_unexpected(Error{ErrorKind::kInternal, fmt::format("{}: {}", id, result.error)});
}

// The rows whose logits are not the references'.
Result<std::vector<Parted>> parted_rows(std::vector<ScreenRow>& rows, Session& session, const std::string& label) {
  std::vector<ScreenRow*> passed;
  std::vector<WorkerTask> tasks;
  for (ScreenRow& row : rows) {
    if (row.outcome.verdict != "pass" || row.tasks.empty()) continue;
    passed.push_back(&row);
    tasks.push_back(outputs_task(row.tasks.front()));
    tasks.push_back(on_references(tasks.back()));
  }
  FAULTLINE_TRY(const std::vector<TaskResult> results, session.run(tasks, label + ", comparing outputs"));
  std::vector<Parted> parted;
  for (size_t i = 0; i < passed.size(); ++i) {
    const TaskResult& run = results[2 * i];
    const TaskResult& reference = results[2 * i + 1];
    FAULTLINE_TRY_STATUS(no_error(passed[i]->id, run));
    FAULTLINE_TRY_STATUS(no_error(passed[i]->id, reference));
    if (run.verdict == "skipped" || reference.verdict == "skipped") continue;
    const OutputDistance distance = output_distance(run, reference, tasks[2 * i]);
    if (!(distance.share <= kOutputTolerance)) parted.push_back({passed[i], distance});
  }
  return parted;
}

void mark_failed(ScreenRow& row, Violation violation, const std::string& logits) {
  violation.detail = fmt::format("{}; run op by op, {}", logits, violation.detail);
  TaskResult& screened = row.results.front();
  screened.verdict = violation.kind;
  screened.message = violation.detail;
  screened.probe = violation.probe;
  screened.violation = violation;
  row.outcome.verdict = violation.kind;
  row.outcome.reason = violation.detail;
  row.outcome.failures = 1;
  row.outcome.first_violation = std::move(violation);
}

}  // namespace

Status compare_outputs(std::vector<ScreenRow>& rows, Session& session, const std::string& label) {
  FAULTLINE_TRY(const std::vector<Parted> parted, parted_rows(rows, session, label));
  std::vector<WorkerTask> tasks;
  tasks.reserve(parted.size());
  for (const Parted& one : parted) tasks.push_back(op_by_op(one.row->tasks.front(), one.distance.probe));
  FAULTLINE_TRY(const std::vector<TaskResult> results, session.run(tasks, label + ", where outputs differ"));
  for (size_t i = 0; i < parted.size(); ++i) {
    ScreenRow& row = *parted[i].row;
    FAULTLINE_TRY_STATUS(no_error(row.id, results[i]));
    const std::string logits = fmt::format(
        "the logits are {:.2f} of their size from those of the same run on references", parted[i].distance.share);
    if (results[i].failed() && results[i].violation)
      mark_failed(row, *results[i].violation, logits);
    else
      row.outcome.notes.push_back(logits + ", and every op keeps its contract: rounding tips choices over");
  }
  return {};
}

bool found_by_outputs(const Failure& failure) {
  return failure.violation.build == "checked";
}

Result<std::optional<PartingPoint>> find_parting_point(const WorkerTask& screened, int64_t probe, const RunOne& run) {
  PartingPoint point;
  bool ended = false;
  const auto limited = [&](int64_t limit) -> Result<TaskResult> {
    WorkerTask task = outputs_task(screened);
    if (limit == 0) task = on_references(task);
    if (limit > 0) task.purpose = "kernel limit";
    task.options.spec_from = limit;
    task.options.only_probe = probe;
    FAULTLINE_TRY(TaskResult result, run(task, "convicting"));
    ++point.runs;
    ended = ended || result.verdict == "skipped" || !result.error.empty();
    return result;
  };
  FAULTLINE_TRY(const TaskResult whole, limited(-1));
  FAULTLINE_TRY(const TaskResult reference, limited(0));
  WorkerTask alone = screened;
  alone.options.only_probe = probe;
  const auto differs = [&](const TaskResult& result) {
    return !(output_distance(result, reference, alone).share <= kOutputTolerance);
  };
  if (ended || !differs(whole)) return std::nullopt;
  int64_t same = 0;
  point.calls = point.call = whole.launches;
  point.op = whole.last_kernel_op;
  while (point.call - same > 1) {
    const int64_t limit = same + (point.call - same) / 2;
    FAULTLINE_TRY(const TaskResult result, limited(limit));
    if (ended) return std::nullopt;
    if (differs(result)) {
      point.call = limit;
      point.op = result.last_kernel_op;
    } else {
      same = limit;
    }
  }
  return point;
}

namespace {

std::string sentence_of(const PartingPoint& point, const std::string& culprit) {
  const bool there = op_pattern(point.op) == op_pattern(culprit);
  return fmt::format(
      "Bisected by kernel limit in {} runs: with the first {} of {} kernel calls on their kernels and the rest on "
      "their "
      "spec references the logits are the references'; with call {}, {}, they are not{}.",
      point.runs, point.call - 1, point.calls, point.call, point.op,
      there || culprit.empty() ? "" : " (rounding tips a choice over there; the broken contract is another op's)");
}

}  // namespace

Result<std::vector<Localized>> convict_all(std::vector<Suspicion> suspicions, Session& session,
                                           const std::string& run_directory) {
  std::vector<WorkerTask> screened;
  for (Suspicion& suspicion : suspicions) {
    screened.push_back(suspicion.task);
    if (found_by_outputs(suspicion.failure)) suspicion.task.checks = "reference";
  }
  FAULTLINE_TRY(std::vector<Localized> result, convict(suspicions, session, run_directory));
  const RunOne run = [&](const WorkerTask& task, const std::string& label) { return session.run_one(task, label); };
  for (size_t i = 0; i < suspicions.size(); ++i) {
    if (!found_by_outputs(suspicions[i].failure)) continue;
    FAULTLINE_TRY(const auto point, find_parting_point(screened[i], suspicions[i].failure.probe, run));
    if (point) result[i].evidence.insert(result[i].evidence.begin(), sentence_of(*point, result[i].op));
  }
  return result;
}

}  // namespace faultline
