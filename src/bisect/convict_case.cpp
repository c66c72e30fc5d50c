#include "bisect/convict_case.h"

#include <filesystem>

#include "bisect/convict_words.h"
#include "bisect/signature.h"

namespace faultline {
namespace {

// Screening numbers its repeats from 0; no run of the search shares a number with them or with another one.
constexpr int64_t kFirstRepeat = 1'000'000;
// What ended a process in the same op twice is run once more unchanged, and twice with a reference in the op's place:
// no contract speaks for its guilt, and a second death in one op may be a coincidence.
constexpr int64_t kDeathsAgain = 1;
constexpr int64_t kCleanOfDeaths = 2;
// A failure that was taken to be there each time, and cannot have been, is counted anew.
constexpr int64_t kRunsInDoubt = 12;
constexpr int kMostDoubts = 2;
// By luck at most one case in a hundred looks like an ordering, or a stale buffer, that it is not.
constexpr double kMostLuck = 0.01;
constexpr int64_t kMaxLimitRuns = 64;  // halving: more than any count of launches needs

// What a graph's replay reads that was written for this step, those first that servers are known to leave stale. The
// names are those of the engine's tensors (engine/build_pass.cpp).
const std::vector<std::string> kGraphBuffers = {"batch.seq_lens",         "batch.out_cache_loc", "batch.req_to_token",
                                                "batch.req_pool_indices", "batch.cu_seqlens_q",  "batch.last_rows",
                                                "batch.input_ids"};

bool is_death(const std::string& verdict) {
  return verdict == "crash" || verdict == "abort" || verdict == "hang" || verdict == "oom" ||
         verdict == "device-assert" || verdict == "illegal-access" || verdict == "launch-failure";
}

}  // namespace

ConvictCase::ConvictCase(const Suspicion& suspicion, const std::string& run_directory)
    : suspicion_(suspicion),
      run_directory_(run_directory),
      next_repeat_(kFirstRepeat),
      only_probe_(suspicion.failure.probe) {
  out_.signature = suspicion.signature;
  out_.plant = suspicion.plant;
  out_.configurations = suspicion.configurations;
  out_.kind = suspicion.failure.violation.kind;
  out_.reproduces = "unknown";
  out_.necessary = "unknown";
  out_.confidence = "low";
  out_.unchanged = suspicion.screened;
  unchanged_ = suspicion.screened;
  if (unchanged_.failures > 0) unchanged_ += RunCount{-1, -1};
  if (suspicion.screened.mixed() && !setting()) {
    say(fmt::format("Screening saw it in {} of {} runs.", suspicion.screened.failures, suspicion.screened.runs));
    only_probe_ = -1;
    start(Step::kUnchanged, {Trial::unchanged(unchanged_, true)});
  } else {
    start_op_by_op();
  }
}

Localized ConvictCase::result() && {
  return std::move(out_);
}

std::vector<WorkerTask> ConvictCase::tasks() {
  issued_.clear();
  for (const Trial& trial : trials_)
    for (int64_t i = 0; i < trial.to_run(); ++i) {
      WorkerTask task = suspicion_.task;
      task.purpose = trial.purpose();
      task.options.only_probe = only_probe_;
      task.options.repeat = next_repeat_++;
      trial.change(task.options);
      // A capsule holds a kernel to its own contract; a setting's kernel keeps that.
      if (task.options.op_by_op && !run_directory_.empty() && !setting())
        task.options.capsule =
            fmt::format("{}/capsules/{}{}.safetensors", run_directory_, task.id,
                        issued_.empty() && op_by_op_.runs == 0 ? "" : fmt::format(".{}", task.options.repeat));
      issued_.push_back(std::move(task));
    }
  return issued_;
}

void ConvictCase::take(const std::vector<TaskResult>& results) {
  for (const TaskResult& result : results) {
    if (!result.error.empty()) return give_up("a run of the search could not be done: " + result.error);
    if (result.verdict == "skipped") return give_up("the search was cut short: " + result.message);
  }
  out_.worker_runs += static_cast<int64_t>(results.size());
  size_t at = 0;
  for (Trial& trial : trials_)
    for (int64_t left = trial.to_run(); left > 0; --left, ++at) {
      const bool failed = counts_as_failure(results[at]);
      if (failed && step_ == Step::kOpByOp && !trial.failed() && !issued_[at].options.capsule.empty())
        capsule_ = issued_[at].options.capsule.substr(run_directory_.size() + 1);
      if (step_ == Step::kNecessary && !failed && results[at].failed() && results[at].violation &&
          is_death(results[at].verdict))
        ends_elsewhere_.insert(op_pattern(results[at].violation->op));
      trial.add(results[at], failed);
    }
  if (step_ == Step::kOpByOp) drop_other_capsules(results);
  if (std::all_of(trials_.begin(), trials_.end(), [](const Trial& trial) { return trial.decided(); })) finish_step();
}

void ConvictCase::start(Step step, std::vector<Trial> trials) {
  step_ = step;
  trials_ = std::move(trials);
  // What earlier runs have settled already takes no run.
  if (step != Step::kEnd && std::all_of(trials_.begin(), trials_.end(), [](const Trial& t) { return t.decided(); }))
    finish_step();
}

void ConvictCase::finish_step() {
  const std::vector<Trial> done = std::move(trials_);
  trials_.clear();
  switch (step_) {
    case Step::kOpByOp:
      return op_by_op_done(done.front());
    case Step::kUnchanged:
      return unchanged_done(done.front());
    case Step::kNecessary:
      return necessary_done(done.front());
    case Step::kSerialized:
      return serialized_done(done.front());
    case Step::kEager:
      return eager_done(done.front());
    case Step::kAllBuffers:
      return all_buffers_done(done.front());
    case Step::kHalves:
      return half_done(done.front());
    case Step::kAlone:
      return alone_done(done.front());
    case Step::kLimit:
      return limit_done(done.front());
    case Step::kEnd:
      return;
  }
}

// Op by op any failure is a lead, and so it is where ops run on the reference.
bool ConvictCase::counts_as_failure(const TaskResult& result) const {
  const bool any = (step_ == Step::kOpByOp && !setting()) || step_ == Step::kLimit;
  return any ? result.failed() : shows(result);
}

// Does a result show this suspicion's signature (or, once there is a suspect, the suspect's)?
bool ConvictCase::shows(const TaskResult& result) const {
  const auto matches = [&](const Violation& v) {
    const std::string signature = signature_of(v);
    return signature == suspicion_.signature || (!suspect_.op.empty() && signature == signature_of(suspect_));
  };
  if (result.failed()) {
    if (wanders_) return true;
    if (result.violation && matches(*result.violation)) return true;
    if (!result.violation && result.verdict == out_.kind) return true;
  }
  return std::any_of(result.settings.begin(), result.settings.end(), matches);
}

// --- op by op ---

void ConvictCase::start_op_by_op() {
  start(Step::kOpByOp, {Trial("op by op", std::max<int64_t>(1, enough_to_go_on() - op_by_op_.runs),
                              [](RunOptions& o) { o.op_by_op = true; })});
}

void ConvictCase::op_by_op_done(const Trial& trial) {
  if (trial.failed()) {
    if (!setting()) return op_by_op_broke(trial.failure());
    for (const Violation& found : trial.failure().settings) {
      if (signature_of(found) != suspicion_.signature) continue;
      name_suspect(found, "setting");
      out_.reproduces = "yes";
      say("Run again op by op, the op agrees with its own spec reference, and still differs from the model reference "
          "on the same inputs: the kernel does what it was told, and the resolved settings tell it to compute "
          "something else.");
      return start_necessary();
    }
  }
  if (only_probe_ >= 0) {  // whatever it needs, an earlier probe may have left it
    only_probe_ = -1;
    say("The failing probe alone, op by op, is clean.");
    return start_op_by_op();
  }
  if (setting()) return give_up("the gap to the model reference did not show again op by op");
  op_by_op_ += trial.count();
  if (!rate_known_) return start(Step::kUnchanged, {Trial::unchanged(unchanged_, true)});
  start_relaxing();
}

void ConvictCase::start_relaxing() {
  say(
      fmt::format("Run op by op (every edge serialized, checked build) it is clean, in {}: it depends on timing, "
                  "graph, state or build.",
                  counted_runs(op_by_op_.runs)));
  start(Step::kSerialized,
        {Trial("all edges serialized", enough_to_go_on(), [](RunOptions& o) { o.serialize_all = true; })});
}

void ConvictCase::op_by_op_broke(const TaskResult& result) {
  if (!result.violation) return give_up("the run failed again, but not inside an op");
  const Violation& found = *result.violation;
  const Violation& noticed = suspicion_.failure.violation;
  const bool elsewhere = !noticed.op.empty() && op_pattern(found.op) != op_pattern(noticed.op);
  if (is_death(found.kind)) {
    name_suspect(found, "kernel");
    out_.reproduces = found.kind == out_.kind ? "yes" : "no";
    wanders_ = elsewhere;
    say(fmt::format("Run again op by op, it ends the same way in {} (kernel {}): {}", found.op, found.kernel,
                    found.detail));
    if (elsewhere) say(fmt::format("The screening run ended in {}.", noticed.op));
    return start_necessary();
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
  name_suspect(found, culprit);
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
  if (elsewhere) say(fmt::format("The screening run noticed it later, in {}.", noticed.op));
  if (found.inputs_clean == "no" && culprit == "kernel")
    return give_up(
        fmt::format("the first op that breaks its contract was given bad input ({}), and what wrote that was clean",
                    found.bad_input));
  start_necessary();
}

void ConvictCase::name_suspect(const Violation& found, const std::string& culprit) {
  suspect_ = found;
  out_.culprit = culprit;
  out_.op = found.op;
  out_.kernel = found.kernel;
  out_.provenance = found.provenance;
  out_.follows = found.follows;
  out_.layer = found.layer;
  out_.kind = found.kind;
}

void ConvictCase::take_capsule(const std::string& capsule) {
  if (capsule == "yes")
    out_.capsule = capsule_;
  else if (capsule == "no")
    say(fmt::format("Its capsule, {}, does not reproduce alone.", capsule_));
  else if (!capsule.empty())
    say("There is no capsule of it: " + capsule + ".");
}

// Runs side by side may each have written one: the first failure's stays.
void ConvictCase::drop_other_capsules(const std::vector<TaskResult>& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string& path = issued_[i].options.capsule;
    if (path.empty() || results[i].capsule.empty() || path == run_directory_ + "/" + capsule_) continue;
    std::error_code ignored;  // one that is not there is as good
    std::filesystem::remove(path, ignored);
  }
}

// --- how often it fails ---

void ConvictCase::unchanged_done(const Trial& trial) {
  out_.unchanged += RunCount{trial.count().runs - unchanged_.runs, trial.count().failures - unchanged_.failures};
  unchanged_ = trial.count();
  rate_known_ = true;
  if (unchanged_.failures == 0)
    return give_up(
        fmt::format("the failure did not show again in {}: it is the machine's, or its rate is below {} "
                    "(at {} confidence)",
                    counted_runs(unchanged_.runs), percent(rate_at_most(unchanged_)), percent(kConfidenceLevel)));
  sure_ = !unchanged_.mixed() && doubts_ == 0;
  if (sure_ && unchanged_.runs < Trial::kRunsAlike) {  // it was enough to see it once more
    needed_ = kCleanOfDeaths;
    say(fmt::format("Unchanged, it ends there again ({} of {}).", out_.unchanged.failures,
                    counted_runs(out_.unchanged.runs)));
    return start_necessary();
  }
  needed_ = clean_runs_needed(rate_at_least(unchanged_));
  out_.level = kConfidenceLevel;
  if (trial.ever_failed()) example_ = trial.failure();
  say_rate();
  if (!sure_ && unchanged_.failures < Trial::kFailures)
    return give_up("it is too rare to tell a cure from luck within a reasonable number of runs");
  if (!out_.culprit.empty()) return start_necessary();
  if (sure_ && op_by_op_.runs > 0) return start_relaxing();
  start_op_by_op();
}

void ConvictCase::say_rate() {
  say(fmt::format("Unchanged, {} of {} fail.", out_.unchanged.failures, counted_runs(out_.unchanged.runs)));
  say(
      fmt::format("Without the run that drew attention to it that is a rate of {} or more (at {} confidence): {} in a "
                  "row must be clean before anything is called its cure.",
                  percent(rate_at_least(unchanged_)), percent(kConfidenceLevel), counted_runs(needed_)));
}

// --- a reference in its place ---

void ConvictCase::start_necessary() {
  const bool death = is_death(suspect_.kind);
  const bool count = suspicion_.repeated || wanders_ || op_by_op_.runs > 0;
  if ((count || death) && !rate_known_ && !setting()) {
    only_probe_ = count ? -1 : only_probe_;
    return start(Step::kUnchanged, {Trial::unchanged(unchanged_, false, count ? Trial::kRunsAlike : kDeathsAgain)});
  }
  const bool weights = out_.culprit == "weights";
  const std::string place = setting() ? std::string(kSettingPrefix) + suspect_.attribute : op_pattern(suspect_.op);
  start(Step::kNecessary, {Trial("reference in place", needed_, [weights, place](RunOptions& o) {
          if (weights)
            o.repair_scales = true;
          else
            o.reference = {place};
        })});
}

void ConvictCase::necessary_done(const Trial& trial) {
  const bool gone = !trial.failed();
  // Another failure in its place: is it this one at another op? That shows in where the unchanged case fails.
  if (gone && trial.last().failed() && !rate_known_ && !setting()) {
    only_probe_ = -1;
    return start(Step::kUnchanged, {Trial::unchanged(unchanged_, false)});
  }
  if (gone && is_death(out_.kind) && ends_elsewhere_.size() > (sure_ ? 1 : 0))
    return give_up(
        fmt::format("with a reference in place of {} the process ends in other ops", op_pattern(suspect_.op)));
  out_.necessary = gone ? "yes" : "no";
  out_.changed = trial.count();
  const std::string runs = needed_ > 1 ? fmt::format(", in {}", counted_runs(trial.count().runs)) : "";
  const std::string what = setting() ? fmt::format("With the model's own '{}' in its place the gap", suspect_.attribute)
                           : out_.culprit == "weights"
                               ? "With usable scales in place of the unusable ones the failure"
                               : fmt::format("With the reference in place of {} the failure", op_pattern(suspect_.op));
  const bool otherwise = gone && trial.last().failed() && out_.culprit != "weights" && !setting();
  say(fmt::format("{} is {}{}{}.", what, gone ? "gone" : "still there", runs,
                  otherwise ? fmt::format(" (the case then fails otherwise: {})", trial.last().verdict) : ""));
  conclude();
}

void ConvictCase::conclude() {
  if (out_.reproduces == "no" || out_.necessary == "no")
    return give_up(fmt::format(
        "{} is the first op that broke its contract, but {}", suspect_.op,
        out_.reproduces == "no" ? "it does not break again alone" : "the failure stays with a reference in its place"));
  out_.confidence = out_.reproduces == "yes" && out_.necessary == "yes" ? "high" : "medium";
  out_.explanation = explanation_of(suspect_, out_.culprit);
  start(Step::kEnd, {});
}

// --- one thing relaxed at a time ---

void ConvictCase::serialized_done(const Trial& trial) {
  say(fmt::format("With every edge serialized {}.", came_to(trial.count())));
  serialized_cures_ = !trial.failed();
  if (serialized_cures_) return start_edges(trial.count());
  if (sure_) unchanged_ += trial.count();  // it makes no difference
  start_eager();
}

void ConvictCase::start_eager() {
  start(Step::kEager, {Trial("without graph", enough_to_go_on(), [](RunOptions& o) { o.eager = true; })});
}

void ConvictCase::eager_done(const Trial& trial) {
  say(fmt::format("Without a graph {}.", came_to(trial.count())));
  if (!trial.failed()) return start_buffers();
  if (!serialized_cures_) return start_limit();
  give_up("it depends on timing, and making one op alone wait does not cure it");
}

void ConvictCase::start_edges(const RunCount& all) {
  relaxing_ = Relaxing::kEdges;
  if (!example_.violation || example_.edges.empty())
    return give_up("it depends on timing, and no op is known to stand before the one that noticed it");
  suspect_ = *example_.violation;
  search_ = RelaxSearch(example_.edges);
  search_.add(example_.edges, all);
  start_half();
}

void ConvictCase::start_buffers() {
  relaxing_ = Relaxing::kBuffers;
  if (example_.violation) suspect_ = *example_.violation;
  search_ = RelaxSearch(kGraphBuffers);
  start_half();
}

void ConvictCase::all_buffers_done(const Trial& trial) {
  say(fmt::format("With every buffer of the batch written anew right before the graph's replay {}.",
                  came_to(trial.count())));
  give_up(trial.failed() ? "it needs the graph's replay, and none of the batch's buffers is what makes it fail"
                         : "it needs the graph's replay, and no single buffer written anew cures it");
}

Trial ConvictCase::relaxed(std::string purpose, int64_t clean_wanted, const std::vector<std::string>& set) const {
  return Trial(std::move(purpose), clean_wanted, [set, edges = relaxing_ == Relaxing::kEdges](RunOptions& o) {
    (edges ? o.serialize : o.refresh) = set;
  });
}

void ConvictCase::start_half() {
  if (search_.single() && (search_.proven() || search_.items().size() == 1)) return start_alone();
  start(Step::kHalves, {relaxed("all but some relaxed", enough_to_go_on(), search_.all_but_half())});
}

void ConvictCase::half_done(const Trial& trial) {
  const bool last = search_.single();
  search_.take(trial.count());
  if (last && !search_.proven()) return doubt_relaxed();
  start_half();
}

// Where the case fails each time, all runs so far speak for what was found or against it; otherwise only clean runs
// with it alone relaxed do, and as many as the failure rate asks for.
void ConvictCase::start_alone() {
  int64_t wanted = clean_runs_needed(rate_at_least(unchanged_), 1 - kMostLuck);
  if (sure_) {
    RunCount without = unchanged_;
    without += search_.without_it();
    const RunCount with = search_.with_it();
    if (without.mixed() || with.failures > 0) return doubt_relaxed();
    wanted = clean_runs_needed(rate_at_least(without));
    while (likelihood_of_luck(search_.items().size(), without.runs, with.runs + wanted) > kMostLuck) ++wanted;
  }
  start(Step::kAlone, {relaxed("one relaxed", wanted, {search_.found()})});
}

void ConvictCase::alone_done(const Trial& trial) {
  alone_ = trial.count();
  search_.add({search_.found()}, trial.count());
  if (trial.failed()) return doubt_relaxed();
  convict_relaxed();
}

// The runs contradict each other, or no single one is to blame. If the case was taken to fail each time, it does not.
void ConvictCase::doubt_relaxed() {
  const bool edges = relaxing_ == Relaxing::kEdges;
  const char* what = edges ? "edge" : "buffer";
  if (doubts_++ < kMostDoubts) {
    say(fmt::format("By runs that all failed before, no {} could be found: they contradict each other.", what));
    return start(Step::kUnchanged, {Trial::unchanged(unchanged_, false, kRunsInDoubt)});
  }
  say(fmt::format("No single {} cures it.", what));
  if (edges) return start_eager();
  start(Step::kAllBuffers, {relaxed("all buffers refreshed", enough_to_go_on(), kGraphBuffers)});
}

void ConvictCase::convict_relaxed() {
  const bool edges = relaxing_ == Relaxing::kEdges;
  const std::string& found = search_.found();
  out_.culprit = edges ? "ordering" : "metadata";
  out_.op = found;
  out_.kernel = suspect_.kernel;
  out_.provenance = suspect_.provenance;
  out_.follows = suspect_.follows;
  out_.layer = suspect_.layer;
  out_.kind = suspect_.kind;
  for (size_t i = 0; edges && i < example_.edge_kernels.size(); ++i)
    if (example_.edges[i] == found && example_.edge_kernels[i] != suspect_.kernel) {
      out_.kernel = example_.edge_kernels[i];  // the writer's
      out_.follows.clear();
    }
  out_.reproduces = sure_ ? "yes" : "unknown";
  out_.necessary = "yes";
  out_.changed = search_.with_it();
  const size_t others = search_.items().size() - 1;
  say(edges ? fmt::format("Of the {} edges before {}, waiting after {} alone makes it clean ({}).",
                          search_.items().size(), suspect_.op, found, came_to(alone_))
            : fmt::format("Of the graph's {} buffers, writing {} anew before the replay alone makes it clean ({}).",
                          search_.items().size(), found, came_to(alone_)));
  if (others > 0)
    say(fmt::format("With the {} others {} and not this one, it still fails.", others,
                    edges ? "made to wait" : "written anew"));
  out_.explanation =
      edges ? fmt::format("{} reads what {} writes before the write has landed: the two must not overlap. {} in {}: {}",
                          suspect_.op, found, suspect_.kind, suspect_.tensor, suspect_.detail)
            : fmt::format("The graph's replay finds another step's values in {}. {} noticed it: {} in {}: {}", found,
                          suspect_.op, suspect_.kind, suspect_.tensor, suspect_.detail);
  out_.confidence = "high";
  start(Step::kEnd, {});
}

// --- by kernel limit ---

// Where no check fires op by op: the first `limit_` launches on their kernels, the rest on the reference. The smallest
// limit that still fails names the launch.
void ConvictCase::start_limit() {
  fails_at_ = example_.launches;
  clean_at_ = -1;
  limit_ = 0;
  start(Step::kLimit, {Trial("kernel limit", enough_to_go_on(), [](RunOptions& o) { o.kernel_limit = 0; })});
}

void ConvictCase::limit_done(const Trial& trial) {
  limit_runs_ += trial.count().runs;
  if (trial.failed()) {
    if (limit_ == 0) return give_up("it also fails with every op on the reference");
    fails_at_ = limit_;
    suspect_.op = trial.failure().last_kernel_op;
    suspect_.kernel = trial.failure().last_kernel;
  } else {
    clean_at_ = limit_;
    out_.changed = trial.count();
  }
  if (fails_at_ - clean_at_ > 1) {
    limit_ = (fails_at_ + clean_at_) / 2;
  } else if (suspect_.op.empty()) {  // the whole run was never asked for by limit
    if (limit_runs_ > kMaxLimitRuns * needed_) return give_up("the bisection by kernel limit did not end");
    limit_ = fails_at_;
    clean_at_ = fails_at_ - 1;
  } else {
    const Violation& noticed = suspicion_.failure.violation;
    out_.culprit = "kernel";
    out_.op = suspect_.op;
    out_.kernel = suspect_.kernel;
    out_.kind = noticed.kind;
    out_.layer = -1;
    out_.necessary = "yes";
    out_.confidence = "medium";
    say(
        fmt::format("Bisected by kernel limit in {}: with the first {} launches on their kernels and the rest on the "
                    "reference the case is clean; with launch {}, {} (kernel {}), it fails.",
                    counted_runs(limit_runs_), clean_at_, fails_at_, out_.op, out_.kernel));
    out_.explanation = fmt::format(
        "{} (kernel {}) is the first launch whose kernel makes the case fail, although no check of its contract "
        "fires when it is run op by op in the checked build: {}",
        out_.op, out_.kernel, noticed.detail);
    return start(Step::kEnd, {});
  }
  start(Step::kLimit,
        {Trial("kernel limit", enough_to_go_on(), [limit = limit_](RunOptions& o) { o.kernel_limit = limit; })});
}

void ConvictCase::give_up(const std::string& why) {
  out_.culprit.clear();
  out_.explanation = "Not localized: " + why + ".";
  out_.confidence = "low";
  start(Step::kEnd, {});
}

}  // namespace faultline
