#include "bisect/convict.h"

#include <algorithm>

#include "bisect/signature.h"
#include "ops/kinds.h"

namespace faultline {
namespace {

constexpr int64_t kReruns = 2;
constexpr int64_t kMaxLimitRuns = 64;  // halving: more than any count of launches needs

bool is_checkpoint_tensor(const std::string& name) {
  return name.starts_with("model.") || name.starts_with("lm_head");
}

bool is_death(const std::string& verdict) {
  return verdict == "crash" || verdict == "abort" || verdict == "hang" || verdict == "oom" ||
         verdict == "device-assert" || verdict == "illegal-access" || verdict == "launch-failure";
}

// One suspicion on its way. Each round gives tasks, takes their results, and either ends or goes to the next step.
class Case {
 public:
  Case(const Suspicion& suspicion, const std::string& run_directory)
      : suspicion_(suspicion),
        capsule_("capsules/" + suspicion.task.id + ".safetensors"),
        run_directory_(run_directory) {
    out_.signature = suspicion.signature;
    out_.plant = suspicion.plant;
    out_.configurations = suspicion.configurations;
    out_.kind = suspicion.failure.violation.kind;
    out_.reproduces = "unknown";
    out_.necessary = "unknown";
    out_.confidence = "low";
    only_probe_ = suspicion.failure.probe;
  }

  bool finished() const { return step_ == Step::kEnd; }
  Localized result() && { return std::move(out_); }

  std::vector<WorkerTask> tasks() {
    switch (step_) {
      case Step::kOpByOp:
        return {task("op by op", [&](RunOptions& o) {
          o.op_by_op = true;
          // A capsule holds a kernel to its own contract; a setting's kernel keeps that.
          if (!run_directory_.empty() && !setting()) o.capsule = run_directory_ + "/" + capsule_;
        })};
      case Step::kNecessary:
        return {task("reference in place", [&](RunOptions& o) {
          o.op_by_op = false;
          if (out_.culprit == "weights")
            o.repair_scales = true;
          else
            o.reference = {setting() ? std::string(kSettingPrefix) + suspect_.attribute : op_pattern(suspect_.op)};
        })};
      case Step::kRelax: {
        std::vector<WorkerTask> result;
        for (int64_t i = 1; i <= kReruns; ++i) result.push_back(task("again", [&](RunOptions& o) { o.repeat = i; }));
        result.push_back(task("all edges serialized", [](RunOptions& o) { o.serialize_all = true; }));
        result.push_back(task("without graph", [](RunOptions& o) { o.eager = true; }));
        result.push_back(task("without poison", [](RunOptions& o) { o.no_poison = true; }));
        return result;
      }
      case Step::kEdges: {
        std::vector<WorkerTask> result;
        for (const std::string& edge : edges_)
          result.push_back(task("one edge serialized", [&](RunOptions& o) { o.serialize = {edge}; }));
        return result;
      }
      case Step::kLimit:
        return {task("kernel limit", [&](RunOptions& o) { o.kernel_limit = limit_; })};
      case Step::kEnd:
        break;
    }
    return {};
  }

  void take(const std::vector<TaskResult>& results) {
    for (const TaskResult& result : results) {
      if (!result.error.empty()) return give_up("a run of the search could not be done: " + result.error);
      if (result.verdict == "skipped") return give_up("the search was cut short: " + result.message);
    }
    switch (step_) {
      case Step::kOpByOp:
        return take_op_by_op(results.front());
      case Step::kNecessary:
        return take_necessary(results.front());
      case Step::kRelax:
        return take_relax(results);
      case Step::kEdges:
        return take_edges(results);
      case Step::kLimit:
        return take_limit(results.front());
      case Step::kEnd:
        return;
    }
  }

 private:
  enum class Step : uint8_t { kOpByOp, kNecessary, kRelax, kEdges, kLimit, kEnd };

  template <class Change>
  WorkerTask task(const std::string& purpose, Change&& change) const {
    WorkerTask result = suspicion_.task;
    result.purpose = purpose;
    result.options.only_probe = only_probe_;
    change(result.options);
    return result;
  }

  bool setting() const { return suspicion_.failure.violation.setting; }

  // Does a result show this suspicion's signature (or, once there is a suspect, the suspect's)?
  bool shows(const TaskResult& result) const {
    const auto matches = [&](const Violation& v) {
      const std::string signature = signature_of(v);
      return signature == suspicion_.signature || (!suspect_.op.empty() && signature == signature_of(suspect_));
    };
    if (result.failed()) {
      if (result.violation && matches(*result.violation)) return true;
      if (!result.violation && result.verdict == out_.kind) return true;
    }
    return std::any_of(result.settings.begin(), result.settings.end(), matches);
  }

  void take_op_by_op(const TaskResult& result) {
    if (setting()) {
      for (const Violation& found : result.settings)
        if (signature_of(found) == suspicion_.signature) {
          suspect(found, "setting");
          out_.reproduces = "yes";
          say("Run again op by op, the op agrees with its own spec reference, and still differs from the model "
              "reference on the same "
              "inputs: the kernel does what it was told, and the resolved settings tell it to compute something else.");
          return go(Step::kNecessary);
        }
      if (only_probe_ >= 0) return widen();
      return give_up("the gap to the model reference did not show again op by op");
    }
    if (!result.failed()) {
      if (only_probe_ >= 0) return widen();
      say("Run again op by op (every edge serialized, checked build), the case is clean: the fault depends on timing, "
          "graph, state or "
          "build.");
      only_probe_ = suspicion_.failure.probe;
      return go(Step::kRelax);
    }
    if (!result.violation) return give_up("the run failed again, but not inside an op");
    const Violation& found = *result.violation;
    if (is_death(found.kind)) {
      suspect(found, "kernel");
      out_.reproduces = found.kind == out_.kind ? "yes" : "no";
      say(fmt::format("Run again op by op, it ends the same way in {} (kernel {}): {}", found.op, found.kernel,
                      found.detail));
      return go(Step::kNecessary);
    }
    const bool bad_weights =
        is_checkpoint_tensor(found.tensor) || (found.inputs_clean == "no" && is_checkpoint_tensor(found.bad_input));
    std::string culprit = "kernel";
    if (found.kind == "layout")
      culprit = "layout";
    else if (bad_weights)
      culprit = "weights";
    else if (found.op == "batch.prepare")
      culprit = "metadata";
    suspect(found, culprit);
    out_.reproduces = result.replayed.empty() ? "unknown" : result.replayed;
    say(fmt::format("Run again op by op, the first broken contract is {} in {}: {}", found.kind, found.tensor,
                    found.detail));
    say(fmt::format("Its inputs were {}.", found.inputs_clean == "yes"
                                               ? "sound: finite, in range, in the format they were written in"
                                           : found.bad_input.empty() ? "not known to be sound"
                                                                     : "already bad: " + found.bad_input));
    if (!result.replayed.empty())
      say(result.replayed == "yes" ? "Run alone on those inputs, in scratch memory, it breaks again every time."
                                   : "Run alone on those inputs, in scratch memory, it does not break again.");
    take_capsule(result.capsule);
    if (op_pattern(found.op) != op_pattern(suspicion_.failure.violation.op) && !suspicion_.failure.violation.op.empty())
      say(fmt::format("The screening run noticed it later, in {}.", suspicion_.failure.violation.op));
    if (found.inputs_clean == "no" && culprit == "kernel")
      return give_up(
          fmt::format("the first op that breaks its contract was given bad input ({}), and what wrote that was clean",
                      found.bad_input));
    go(Step::kNecessary);
  }

  void take_capsule(const std::string& capsule) {
    if (capsule == "yes")
      out_.capsule = capsule_;
    else if (capsule == "no")
      say(fmt::format("Its capsule, {}, does not reproduce alone.", capsule_));
    else if (!capsule.empty())
      say("There is no capsule of it: " + capsule + ".");
  }

  // The failing probe alone was clean: whatever it needs, an earlier probe left it.
  void widen() {
    only_probe_ = -1;
    say("The failing probe alone is clean; it needs the probes before it.");
  }

  void take_necessary(const TaskResult& result) {
    const bool gone = !shows(result);
    out_.necessary = gone ? "yes" : "no";
    if (out_.culprit == "weights") {
      say(gone ? "With usable scales in place of the unusable ones the failure is gone."
               : "With usable scales in place of the unusable ones the failure is still there.");
    } else if (setting()) {
      say(fmt::format("With the model's own '{}' in its place the gap is {}.", suspect_.attribute,
                      gone ? "gone" : "still there"));
    } else {
      say(gone ? fmt::format("With the reference in place of {} the failure is gone{}.", op_pattern(suspect_.op),
                             result.failed() ? fmt::format(" (the case then fails otherwise: {})", result.verdict) : "")
               : fmt::format("With the reference in place of {} the failure is still there.", op_pattern(suspect_.op)));
    }
    conclude();
  }

  void take_relax(const std::vector<TaskResult>& results) {
    int64_t again = 0;
    for (int64_t i = 0; i < kReruns; ++i) again += shows(results[static_cast<size_t>(i)]) ? 1 : 0;
    const bool serialized = shows(results[kReruns]);
    const bool eager = shows(results[kReruns + 1]);
    const bool unpoisoned = shows(results[kReruns + 2]);
    say(
        fmt::format("The same run again failed {} of {} times; with all edges serialized it {}; without graph it {}; "
                    "without sentinels "
                    "it {}.",
                    again, kReruns, serialized ? "fails" : "is clean", eager ? "fails" : "is clean",
                    unpoisoned ? "fails" : "shows nothing (the stale values are then finite)"));
    if (again == 0) return give_up("the failure did not show again: flaky, or the machine's");
    out_.reproduces = again == kReruns ? "yes" : "unknown";
    if (!serialized) {
      for (const TaskResult& result : results)
        if (shows(result)) {
          suspect_ = *result.violation;
          edges_ = result.edges;
          edge_kernels_ = result.edge_kernels;
          break;
        }
      if (edges_.empty()) return give_up("it is timing-dependent, and no op stands before the one that noticed it");
      return go(Step::kEdges);
    }
    if (!eager) return give_up("it needs the graph's replay (static buffers or padding)");
    for (const TaskResult& result : results)
      if (shows(result)) return start_limit(result.launches);
  }

  void take_edges(const std::vector<TaskResult>& results) {
    std::vector<std::string> cures;
    std::string writer;  // the kernel of the first
    for (size_t i = 0; i < results.size(); ++i) {
      if (shows(results[i])) continue;
      if (cures.empty() && i < edge_kernels_.size()) writer = edge_kernels_[i];
      cures.push_back(edges_[i]);
    }
    if (cures.empty()) return give_up("no single edge cures it, serializing all of them does");
    const Violation consumer = suspect_;
    out_.culprit = "ordering";
    out_.op = cures.front();
    out_.kernel = writer.empty() ? suspect_.kernel : writer;
    out_.provenance = suspect_.provenance;
    out_.follows = writer.empty() || writer == suspect_.kernel ? suspect_.follows : "";
    out_.layer = suspect_.layer;
    out_.kind = consumer.kind;
    out_.necessary = "yes";
    say(fmt::format("Of {} edges before {}, serializing the one after {} alone makes it clean{}.", results.size(),
                    consumer.op, cures.front(),
                    cures.size() > 1 ? fmt::format(" (so do {} others)", cures.size() - 1) : ""));
    out_.explanation =
        fmt::format("{} reads what {} writes before the write has landed: the two must not overlap. {} in {}: {}",
                    consumer.op, cures.front(), consumer.kind, consumer.tensor, consumer.detail);
    out_.confidence = out_.reproduces == "yes" && cures.size() == 1 ? "high" : "medium";
    step_ = Step::kEnd;
  }

  // Where no check fires op by op: the first `limit_` launches on their kernels, the rest on the reference. The
  // smallest limit that still fails names the launch.
  void start_limit(int64_t launches) {
    fails_at_ = launches;
    clean_at_ = -1;
    limit_ = 0;
    go(Step::kLimit);
  }

  void take_limit(const TaskResult& result) {
    ++limit_runs_;
    if (result.failed()) {
      if (limit_ == 0) return give_up("it also fails with every op on the reference");
      fails_at_ = limit_;
      suspect_.op = result.last_kernel_op;
      suspect_.kernel = result.last_kernel;
    } else {
      clean_at_ = limit_;
    }
    if (fails_at_ - clean_at_ > 1) {
      limit_ = (fails_at_ + clean_at_) / 2;
      return;
    }
    if (suspect_.op.empty()) {  // the whole run was never asked for by limit
      limit_ = fails_at_;
      if (limit_runs_ > kMaxLimitRuns) return give_up("the bisection by kernel limit did not end");
      clean_at_ = fails_at_ - 1;
      return;
    }
    const Violation& noticed = suspicion_.failure.violation;
    out_.culprit = "kernel";
    out_.op = suspect_.op;
    out_.kernel = suspect_.kernel;
    out_.kind = noticed.kind;
    out_.layer = -1;
    out_.necessary = "yes";
    out_.confidence = "medium";
    say(
        fmt::format("Bisected by kernel limit in {} runs: with the first {} launches on their kernels and the rest on "
                    "the reference the case "
                    "is clean; with launch {}, {} (kernel {}), it fails.",
                    limit_runs_, clean_at_, fails_at_, out_.op, out_.kernel));
    out_.explanation = fmt::format(
        "{} (kernel {}) is the first launch whose kernel makes the case fail, although no check of its contract "
        "fires when it is run op by op in the checked build: {}",
        out_.op, out_.kernel, noticed.detail);
    step_ = Step::kEnd;
  }

  void suspect(const Violation& found, const std::string& culprit) {
    suspect_ = found;
    out_.culprit = culprit;
    out_.op = found.op;
    out_.kernel = found.kernel;
    out_.provenance = found.provenance;
    out_.follows = found.follows;
    out_.layer = found.layer;
    out_.kind = found.kind;
  }

  void conclude() {
    const Violation& v = suspect_;
    if (out_.reproduces == "no" || out_.necessary == "no") {
      const std::string why =
          out_.reproduces == "no" ? "it does not break again alone" : "the failure stays with a reference in its place";
      return give_up(fmt::format("{} is the first op that broke its contract, but {}", v.op, why));
    }
    out_.confidence = out_.reproduces == "yes" && out_.necessary == "yes" ? "high" : "medium";
    const std::string kernel = v.provenance == "own" ? fmt::format("our own kernel {}", v.kernel) : v.kernel;
    if (out_.culprit == "layout")
      out_.explanation =
          fmt::format("{} is {}; {} reads it. Writer and reader disagree on the layout.", v.tensor, v.detail, v.op);
    else if (out_.culprit == "weights")
      out_.explanation = fmt::format("The checkpoint tensor {} cannot be multiplied with: {}",
                                     is_checkpoint_tensor(v.bad_input) ? v.bad_input : v.tensor, v.detail);
    else if (out_.culprit == "metadata")
      out_.explanation = fmt::format("The batch's indices are wrong before any kernel uses them: {} at {}: {}",
                                     v.tensor, index(v), v.detail);
    else if (out_.culprit == "setting")
      out_.explanation =
          fmt::format("{} does what the resolved settings say, and that is not the model: {}", v.op, v.detail);
    else
      out_.explanation = fmt::format("{} ({}) breaks its contract on sound inputs: {} in {} at {}: {}", v.op, kernel,
                                     v.kind, v.tensor.empty() ? "the op" : v.tensor, index(v), v.detail);
    step_ = Step::kEnd;
  }

  static std::string index(const Violation& v) {
    std::string text = "[";
    for (size_t i = 0; i < v.index.size(); ++i) text += (i == 0 ? "" : ", ") + fmt::format("{}", v.index[i]);
    return text + "]";
  }

  void give_up(const std::string& why) {
    out_.culprit.clear();
    out_.explanation = "Not localized: " + why + ".";
    out_.confidence = "low";
    step_ = Step::kEnd;
  }

  void go(Step step) { step_ = step; }
  void say(std::string sentence) { out_.evidence.push_back(std::move(sentence)); }

  const Suspicion& suspicion_;
  const std::string capsule_;  // within the run directory
  const std::string run_directory_;
  Step step_ = Step::kOpByOp;
  Localized out_;
  Violation suspect_;
  std::vector<std::string> edges_;
  std::vector<std::string> edge_kernels_;
  int64_t only_probe_ = -1;
  int64_t limit_ = 0;      // launches on their kernels in the next run
  int64_t clean_at_ = -1;  // the largest limit seen clean
  int64_t fails_at_ = 0;   // the smallest seen failing
  int64_t limit_runs_ = 0;
};

}  // namespace

Result<std::vector<Localized>> convict(const std::vector<Suspicion>& suspicions, Session& session,
                                       const std::string& run_directory) {
  std::vector<Case> cases;
  cases.reserve(suspicions.size());
  for (const Suspicion& suspicion : suspicions) cases.emplace_back(suspicion, run_directory);
  while (true) {
    std::vector<WorkerTask> tasks;
    std::vector<std::pair<Case*, size_t>> owners;
    for (Case& one : cases) {
      if (one.finished()) continue;
      const std::vector<WorkerTask> wanted = one.tasks();
      owners.emplace_back(&one, wanted.size());
      tasks.insert(tasks.end(), wanted.begin(), wanted.end());
    }
    if (tasks.empty()) break;
    FAULTLINE_TRY(const std::vector<TaskResult> results, session.run(tasks, "convicting"));
    size_t at = 0;
    for (auto& [owner, count] : owners) {
      owner->take({results.begin() + static_cast<std::ptrdiff_t>(at),
                   results.begin() + static_cast<std::ptrdiff_t>(at + count)});
      at += count;
    }
  }
  std::vector<Localized> localized;
  localized.reserve(cases.size());
  for (Case& one : cases) localized.push_back(std::move(one).result());
  return localized;
}

}  // namespace faultline
