#include "bisect/limit_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "bisect/probes.h"
#include "bisect/signature.h"

namespace faultline {
namespace {

constexpr std::string_view kLogits = "logits";

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

constexpr size_t kRunsARow = 3;

WorkerTask nudged(WorkerTask task) {
  task.purpose = "outputs on references, nudged";
  task.options.repeat = 1;
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

double tolerance_of(const TaskResult& rounded, const TaskResult& reference, const WorkerTask& task) {
  return std::max(kOutputTolerance, kOverRounding * output_distance(rounded, reference, task).share);
}

}  // namespace

Status compare_outputs(std::vector<ScreenRow>& rows, Session& session, const std::string& label) {
  std::vector<size_t> which;
  std::vector<WorkerTask> tasks;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].outcome.verdict != "pass" || rows[i].tasks.empty()) continue;
    which.push_back(i);
    tasks.push_back(outputs_task(rows[i].tasks.front()));
    tasks.push_back(on_references(tasks.back()));
    tasks.push_back(nudged(tasks.back()));
  }
  FAULTLINE_TRY(const std::vector<TaskResult> results, session.run(tasks, label + ", comparing outputs"));
  for (size_t i = 0; i < which.size(); ++i) {
    const TaskResult& run = results[kRunsARow * i];
    const TaskResult& reference = results[kRunsARow * i + 1];
    const TaskResult& rounded = results[kRunsARow * i + 2];
    ScreenRow& row = rows[which[i]];
    for (const TaskResult* result : {&run, &reference, &rounded})
      if (!result->error.empty())
        return tl::make_unexpected(Error{ErrorKind::kInternal, fmt::format("{}: {}", row.id, result->error)});
    if (run.verdict == "skipped" || reference.verdict == "skipped" || rounded.verdict == "skipped") continue;
    const WorkerTask& task = tasks[kRunsARow * i];
    const OutputDistance distance = output_distance(run, reference, task);
    const double tolerance = tolerance_of(rounded, reference, task);
    if (distance.share <= tolerance) continue;
    Violation violation;
    violation.tensor = kLogits;
    violation.kind = "mismatch";
    violation.probe = distance.probe;
    violation.inputs_clean = "unknown";
    violation.provenance = "own";
    violation.build = "unchecked";
    violation.detail = fmt::format(
        "the logits are {:.2f} of their size from those of the same run on references (tolerated: {:.2f}), although no "
        "check fired",
        distance.share, tolerance);
    TaskResult& screened = row.results.front();
    screened.verdict = violation.kind;
    screened.message = violation.detail;
    screened.probe = distance.probe;
    screened.violation = violation;
    row.outcome.verdict = violation.kind;
    row.outcome.reason = violation.detail;
    row.outcome.failures = 1;
    row.outcome.first_violation = std::move(violation);
  }
  return {};
}

bool found_by_outputs(const Failure& failure) {
  return failure.violation.op.empty() && failure.violation.tensor == kLogits;
}

namespace {

// One search on its way.
class LimitSearch {
 public:
  LimitSearch(const Suspicion& suspicion, const RunOne& run) : suspicion_(suspicion), run_(run) {
    out_.signature = suspicion.signature;
    out_.plant = suspicion.plant;
    out_.configurations = suspicion.configurations;
    out_.kind = suspicion.failure.violation.kind;
    out_.reproduces = "unknown";
    out_.necessary = "unknown";
    out_.confidence = "low";
    task_ = outputs_task(suspicion.task);
    task_.options.only_probe = suspicion.failure.probe;
  }

  Result<Localized> search() {
    FAULTLINE_TRY(bool differs, start());
    if (!differs && task_.options.only_probe >= 0) {
      say("The probe alone ends in the references' logits; it needs the probes before it.");
      task_.options.only_probe = -1;
      FAULTLINE_TRY(differs, start());
    }
    if (ended_) return give_up("the search was cut short");
    if (!differs) return give_up("the logits did not differ again: flaky, or the machine's");
    FAULTLINE_TRY_STATUS(halve());
    if (ended_) return give_up("the search was cut short");
    FAULTLINE_TRY_STATUS(prove());
    FAULTLINE_TRY_STATUS(look_at_the_op());
    if (ended_) return give_up("the search was cut short");
    return conclude();
  }

 private:
  // The run as it is and on references: the two ends of what is halved.
  Result<bool> start() {
    FAULTLINE_TRY(const TaskResult whole, once([](RunOptions&) {}));
    FAULTLINE_TRY(reference_, once([](RunOptions& o) { o.spec_from = 0; }));
    FAULTLINE_TRY(const TaskResult rounded, once([](RunOptions& o) {
                    o.spec_from = 0;
                    o.repeat = 1;
                  }));
    tolerance_ = tolerance_of(rounded, reference_, task_);
    calls_ = whole.launches;
    last_op_ = whole.last_kernel_op;
    last_kernel_ = whole.last_kernel;
    return differs(whole);
  }

  Status halve() {
    int64_t clean = 0;
    int64_t fails = calls_;
    while (fails - clean > 1 && !ended_) {
      const int64_t limit = clean + (fails - clean) / 2;
      FAULTLINE_TRY(const TaskResult result, once([&](RunOptions& o) { o.spec_from = limit; }));
      if (differs(result)) {
        fails = limit;
        last_op_ = result.last_kernel_op;
        last_kernel_ = result.last_kernel;
      } else {
        clean = limit;
      }
    }
    say(fmt::format(
        "Bisected by kernel limit in {} runs: with the first {} of {} kernel calls on their kernels and the "
        "rest on their spec references the logits are the references'; with call {}, {} (kernel {}), they are not.",
        runs_, clean, calls_, fails, last_op_, last_kernel_));
    return {};
  }

  Status prove() {
    const std::string pattern = op_pattern(last_op_);
    FAULTLINE_TRY(const TaskResult alone, once([&](RunOptions& o) {
                    o.spec_ops = {pattern};
                    o.spec_others = true;
                  }));
    FAULTLINE_TRY(const TaskResult without, once([&](RunOptions& o) { o.spec_ops = {pattern}; }));
    if (ended_) return {};
    out_.reproduces = differs(alone) ? "yes" : "no";
    out_.necessary = differs(without) ? "no" : "yes";
    say(fmt::format("With every other op on its reference, {} alone makes the logits {}.", pattern,
                    differs(alone) ? "differ" : "agree"));
    say(fmt::format("With the reference in place of {} alone, they {}.", pattern,
                    differs(without) ? "still differ" : "agree"));
    return {};
  }

  // Rounding alone can tip a choice over, in one op as well as in many. What the op does itself is decided by its
  // contract.
  Status look_at_the_op() {
    WorkerTask task = suspicion_.task;
    task.purpose = "op by op";
    task.options.op_by_op = true;
    task.options.only_probe = task_.options.only_probe;
    FAULTLINE_TRY(const TaskResult result, run_(task, "convicting"));
    ++runs_;
    ended_ = ended_ || result.verdict == "skipped" || !result.error.empty();
    if (!result.failed() || !result.violation) return {};
    const Violation& found = *result.violation;
    if (op_pattern(found.op) != op_pattern(last_op_)) return {};
    out_.provenance = found.provenance;
    out_.follows = found.follows;
    out_.layer = found.layer;
    broken_ = found.detail;
    say(fmt::format("Run op by op, it breaks its contract: {} in {}: {}", found.kind, found.tensor, found.detail));
    return {};
  }

  Localized conclude() {
    if (out_.reproduces != "yes" || out_.necessary != "yes")
      return give_up(
          fmt::format("{} is the first kernel whose result makes the logits differ, but not the only one, or "
                      "not by itself",
                      last_op_));
    if (broken_.empty())
      return give_up(
          fmt::format("{} makes the logits differ, by itself, but run op by op it keeps its contract: rounding "
                      "may have tipped a choice over",
                      last_op_));
    out_.culprit = "kernel";
    out_.op = last_op_;
    out_.kernel = last_kernel_;
    out_.confidence = "high";
    out_.explanation =
        fmt::format("{} (kernel {}) makes the logits differ from those on references, by itself, in {} runs: {}",
                    last_op_, last_kernel_, runs_, suspicion_.failure.violation.detail);
    return std::move(out_);
  }

  template <class Change>
  Result<TaskResult> once(Change&& change) {
    WorkerTask task = task_;
    change(task.options);
    task.purpose = task.options.spec_from != 0 ? "kernel limit"
                   : task.options.repeat == 0  ? "outputs on references"
                                               : "outputs on references, nudged";
    FAULTLINE_TRY(TaskResult result, run_(task, "convicting"));
    ++runs_;
    ended_ = ended_ || result.verdict == "skipped" || !result.error.empty();
    return result;
  }

  bool differs(const TaskResult& result) const {
    return !(output_distance(result, reference_, task_).share <= tolerance_);
  }

  Localized give_up(const std::string& why) {
    out_.culprit.clear();
    out_.explanation = "Not localized: " + why + ".";
    out_.confidence = "low";
    return std::move(out_);
  }

  void say(std::string sentence) { out_.evidence.push_back(std::move(sentence)); }

  const Suspicion& suspicion_;
  const RunOne& run_;
  Localized out_;
  WorkerTask task_;
  TaskResult reference_;
  double tolerance_ = kOutputTolerance;
  int64_t calls_ = 0;
  int64_t runs_ = 0;
  std::string last_op_;
  std::string last_kernel_;
  std::string broken_;  // the op's contract, in words
  bool ended_ = false;
};

}  // namespace

Result<Localized> search_limit(const Suspicion& suspicion, const RunOne& run) {
  return LimitSearch(suspicion, run).search();
}

Result<std::vector<Localized>> convict_all(const std::vector<Suspicion>& suspicions, Session& session,
                                           const std::string& run_directory) {
  std::vector<Suspicion> by_op;
  for (const Suspicion& suspicion : suspicions)
    if (!found_by_outputs(suspicion.failure)) by_op.push_back(suspicion);
  FAULTLINE_TRY(const std::vector<Localized> convicted, convict(by_op, session, run_directory));
  const RunOne run = [&](const WorkerTask& task, const std::string& label) { return session.run_one(task, label); };
  std::vector<Localized> result;
  auto next = convicted.begin();
  for (const Suspicion& suspicion : suspicions) {
    if (!found_by_outputs(suspicion.failure)) {
      result.push_back(*next++);
      continue;
    }
    FAULTLINE_TRY(Localized found, search_limit(suspicion, run));
    result.push_back(std::move(found));
  }
  return result;
}

}  // namespace faultline
