// Conviction against worlds made up for it, with faults that fire now and then: an oracle answers each run. What the
// engine really does with such faults is tested by tests/cli/flaky_test.cpp.
#include "bisect/convict.h"

#include <random>

#include "bisect/signature.h"
#include "testing.h"

using namespace faultline;

namespace {

constexpr int kOps = 12;
std::string op_name(int index) {
  return fmt::format("layers.0.step_{}", static_cast<char>('a' + index));
}

enum class Fault { kKernel, kKernelDeath, kOrdering, kBuffer, kTwoEdges, kTiming, kNoise, kNoiseDeath };

// A case that breaks at random.
struct World {
  Fault fault = Fault::kKernel;
  double rate = 1;
  uint64_t seed = 0;
  int guilty = 4;   // the op that is to blame (the writer, of an ordering)
  int notices = 6;  // the op where it shows
  std::string buffer = "batch.out_cache_loc";
  int64_t runs = 0;

  bool strikes(std::mt19937_64& random) const { return std::uniform_real_distribution<double>(0, 1)(random) < rate; }

  Violation violation(int op, const std::string& kind) const {
    Violation v;
    v.op = op_name(op);
    v.kernel = fmt::format("kernel_{}", op);
    v.provenance = "own";
    v.phase = "decode";
    v.kind = kind;
    v.layer = 0;
    v.tensor = kind == "crash" ? "" : op_name(op) + ".out";
    v.inputs_clean = "yes";
    v.detail = "broken on purpose";
    return v;
  }

  TaskResult failing(int op, const std::string& kind) const {
    TaskResult result;
    result.verdict = kind;
    result.violation = violation(op, kind);
    for (int i = op - 1; i >= 0; --i) {
      result.edges.push_back(op_name(i));
      result.edge_kernels.push_back(fmt::format("kernel_{}", i));
    }
    return result;
  }

  TaskResult run(const WorkerTask& task) {
    ++runs;
    std::mt19937_64 random(seed * 1'000'003 + static_cast<uint64_t>(task.options.repeat));
    TaskResult clean;
    clean.verdict = "pass";
    clean.launches = kOps;
    const RunOptions& o = task.options;
    const auto on_reference = [&](int op) {
      const bool named =
          std::find(o.reference.begin(), o.reference.end(), op_pattern(op_name(op))) != o.reference.end();
      return named || (o.kernel_limit >= 0 && op >= o.kernel_limit);
    };
    const auto waits_after = [&](int op) {
      return o.op_by_op || o.serialize_all ||
             std::find(o.serialize.begin(), o.serialize.end(), op_name(op)) != o.serialize.end();
    };
    TaskResult broken = clean;
    switch (fault) {
      case Fault::kKernel:
        if (on_reference(guilty) || !strikes(random)) break;
        broken = failing(o.op_by_op ? guilty : notices, "nonfinite");
        if (o.op_by_op) broken.replayed = "yes";
        break;
      case Fault::kKernelDeath:
        if (on_reference(guilty) || !strikes(random)) break;
        broken = failing(guilty, "crash");
        break;
      case Fault::kOrdering:
        if (waits_after(guilty) || !strikes(random)) break;
        broken = failing(notices, "nonfinite");
        break;
      case Fault::kTwoEdges:
        if ((waits_after(guilty) && waits_after(guilty - 2)) || !strikes(random)) break;
        broken = failing(notices, "nonfinite");
        break;
      case Fault::kBuffer: {
        const bool fresh = std::find(o.refresh.begin(), o.refresh.end(), buffer) != o.refresh.end();
        if (o.eager || o.op_by_op || fresh || !strikes(random)) break;
        broken = failing(notices, "unwritten");
        break;
      }
      case Fault::kTiming:  // gone under any change
        if (o.op_by_op || o.serialize_all || o.eager || !o.serialize.empty() || !o.refresh.empty() || !strikes(random))
          break;
        broken = failing(notices, "nonfinite");
        break;
      case Fault::kNoise:
      case Fault::kNoiseDeath: {
        if (!strikes(random)) break;
        const int op = std::uniform_int_distribution<int>(1, kOps - 1)(random);
        broken = failing(op, fault == Fault::kNoise ? "nonfinite" : "crash");
        if (o.op_by_op && fault == Fault::kNoise) broken.replayed = "no";
        break;
      }
    }
    if (broken.failed()) {
      broken.launches = kOps;
      const int64_t kernels = o.kernel_limit < 0 ? kOps : std::min<int64_t>(o.kernel_limit, kOps);
      if (o.kernel_limit > 0) {
        broken.last_kernel_op = op_name(static_cast<int>(kernels) - 1);
        broken.last_kernel = fmt::format("kernel_{}", kernels - 1);
      }
    }
    return broken;
  }

  RunTasks runner() {
    return [this](const std::vector<WorkerTask>& tasks, const std::string&) -> Result<std::vector<TaskResult>> {
      std::vector<TaskResult> results;
      for (const WorkerTask& task : tasks) results.push_back(run(task));
      return results;
    };
  }
};

// Screening: `repeats` runs, then as many more of them as it takes to see a failure.
Suspicion screened(World& world, int64_t repeats) {
  Suspicion suspicion;
  suspicion.task.id = "c001";
  suspicion.configurations = {"c001"};
  suspicion.repeated = repeats > 1;
  for (int64_t round = 0;; ++round) {
    suspicion.screened = {};
    for (int64_t i = 0; i < repeats; ++i) {
      WorkerTask task = suspicion.task;
      task.options.repeat = round * repeats + i;
      const TaskResult result = world.run(task);
      ++suspicion.screened.runs;
      if (!result.failed()) continue;
      if (suspicion.screened.failures == 0) suspicion.failure.violation = *result.violation;
      suspicion.screened.failures += signature_of(*result.violation) == signature_of(suspicion.failure.violation);
    }
    if (suspicion.screened.failures > 0) break;
  }
  suspicion.failure.signature = suspicion.signature = signature_of(suspicion.failure.violation);
  suspicion.failure.probe = 2;
  world.runs = 0;
  return suspicion;
}

Localized convicted(World& world, int64_t repeats) {
  const Suspicion suspicion = screened(world, repeats);
  const auto localized = convict({suspicion}, world.runner(), "");
  REQUIRE(localized);
  CHECK(localized->front().worker_runs == world.runs);
  return localized->front();
}

std::string right_op(const World& world) {
  return world.fault == Fault::kBuffer ? world.buffer : op_name(world.guilty);
}

struct Score {
  int right = 0;
  int wrong = 0;
  int none = 0;
};

Score score(Fault fault, double rate, int64_t repeats, int times, const std::string& culprit) {
  Score total;
  for (int i = 0; i < times; ++i) {
    World world{fault, rate, static_cast<uint64_t>(i) * 7919 + 13, 1 + i % 5, 7 + i % 4};
    if (world.fault == Fault::kTwoEdges) world.guilty += 2;
    const Localized found = convicted(world, repeats);
    if (found.culprit.empty())
      ++total.none;
    else if (found.culprit == culprit && found.op == right_op(world))
      ++total.right;
    else
      ++total.wrong;
  }
  INFO(fmt::format("rate {}, repeats {}: right {}, wrong {}, none {}", rate, repeats, total.right, total.wrong,
                   total.none));
  CHECK(total.wrong == 0);
  return total;
}

}  // namespace

TEST_CASE("a kernel that fails each time is convicted in two runs where no repeats were asked for") {
  World world;
  const Localized found = convicted(world, 1);
  CHECK(found.culprit == "kernel");
  CHECK(found.op == op_name(4));
  CHECK(found.reproduces == "yes");
  CHECK(found.necessary == "yes");
  CHECK(found.confidence == "high");
  CHECK(found.worker_runs == 2);
  CHECK(found.level == 0);
}

TEST_CASE("where repeats were asked for, a kernel is convicted at the stated level") {
  World world;
  const Localized found = convicted(world, 5);
  CHECK(found.culprit == "kernel");
  CHECK(found.level == kConfidenceLevel);
  // Four failures besides the one that drew attention to it: a rate of 0.05^(1/4) = 47 % or more, five clean runs.
  CHECK(found.changed == RunCount{5, 0});
  CHECK(found.worker_runs <= 15);
}

TEST_CASE("each way of failing each time is convicted in at most 15 runs") {
  for (const Fault fault : {Fault::kKernel, Fault::kKernelDeath, Fault::kOrdering, Fault::kBuffer})
    for (int guilty = 0; guilty < 11; ++guilty) {
      World world{fault, 1, 1, guilty, 11};
      const Localized found = convicted(world, 1);
      INFO(guilty);
      CHECK_FALSE(found.culprit.empty());
      CHECK(found.op == right_op(world));
      CHECK(found.worker_runs <= 15);
    }
  for (const char* buffer : {"batch.seq_lens", "batch.req_to_token", "batch.input_ids"}) {
    World world{Fault::kBuffer, 1, 1, 4, 6, buffer};
    const Localized found = convicted(world, 1);
    CHECK(found.culprit == "metadata");
    CHECK(found.op == buffer);
    CHECK(found.worker_runs <= 15);
  }
}

TEST_CASE("an ordering that fails each time is convicted at the stated level, with the edges that do not matter") {
  World world{Fault::kOrdering, 1, 1};
  const Localized found = convicted(world, 1);
  CHECK(found.culprit == "ordering");
  CHECK(found.op == op_name(4));
  CHECK(found.kernel == "kernel_4");
  CHECK(found.confidence == "high");
  CHECK(found.level == kConfidenceLevel);
  CHECK(found.changed.failures == 0);
  CHECK(found.changed.runs >= 4);
}

TEST_CASE("kernel faults that fire now and then are convicted, and nobody else is") {
  CHECK(score(Fault::kKernel, 0.5, 1, 60, "kernel").right >= 54);
  CHECK(score(Fault::kKernel, 0.1, 29, 40, "kernel").right >= 36);
  CHECK(score(Fault::kKernelDeath, 0.5, 1, 60, "kernel").right >= 54);
  CHECK(score(Fault::kKernelDeath, 0.1, 29, 40, "kernel").right >= 36);
  score(Fault::kKernel, 0.1, 1, 60, "kernel");
  score(Fault::kKernelDeath, 0.1, 1, 60, "kernel");
}

TEST_CASE("orderings that go wrong now and then are convicted, and nobody else is") {
  CHECK(score(Fault::kOrdering, 0.5, 1, 60, "ordering").right >= 54);
  CHECK(score(Fault::kOrdering, 0.1, 29, 40, "ordering").right >= 34);
  score(Fault::kOrdering, 0.1, 1, 60, "ordering");
}

TEST_CASE("a graph's buffer that is stale now and then is convicted, and nobody else is") {
  CHECK(score(Fault::kBuffer, 0.5, 1, 60, "metadata").right >= 54);
  CHECK(score(Fault::kBuffer, 0.1, 29, 40, "metadata").right >= 34);
}

TEST_CASE("faults too rare to be told from luck convict nobody wrongly") {
  for (const double rate : {0.03, 0.01}) {
    score(Fault::kKernel, rate, 1, 60, "kernel");
    score(Fault::kOrdering, rate, 1, 60, "ordering");
    score(Fault::kBuffer, rate, 29, 60, "metadata");
  }
}

TEST_CASE("failures that wander from op to op convict no op") {
  for (const double rate : {0.9, 0.5, 0.1, 0.03})
    for (const int64_t repeats : {1, 5, 29}) {
      CHECK(score(Fault::kNoise, rate, repeats, 40, "nobody").right == 0);
      CHECK(score(Fault::kNoiseDeath, rate, repeats, 40, "nobody").right == 0);
    }
}

TEST_CASE("a failure that no single edge cures is reported as timing-dependent, with what was tried") {
  for (const double rate : {1.0, 0.5}) {
    CHECK(score(Fault::kTwoEdges, rate, 1, 30, "nobody").none == 30);
    World world{Fault::kTwoEdges, rate, 3, 5, 7};
    const Localized found = convicted(world, 1);
    CAPTURE(found.explanation, found.evidence);
    CHECK(found.explanation.find("timing") != std::string::npos);
    CHECK_FALSE(found.evidence.empty());
  }
}

TEST_CASE("a failure that goes away whatever is changed convicts with medium confidence at most") {
  World world{Fault::kTiming, 1, 3, 5, 7};
  const Localized found = convicted(world, 1);
  CHECK(found.confidence != "high");
}

TEST_CASE("a failure that never comes back convicts nobody, and its highest rate is told") {
  World world{Fault::kKernel, 1, 1};
  Suspicion suspicion = screened(world, 1);
  world.rate = 0;
  const auto localized = convict({suspicion}, world.runner(), "");
  REQUIRE(localized);
  CHECK(localized->front().culprit.empty());
  CHECK(localized->front().explanation.find("29 runs") != std::string::npos);
}

TEST_CASE("a search that is cut short convicts nobody") {
  World world;
  const Suspicion suspicion = screened(world, 1);
  const auto localized = convict(
      {suspicion},
      [](const std::vector<WorkerTask>& tasks, const std::string&) -> Result<std::vector<TaskResult>> {
        TaskResult skipped;
        skipped.verdict = "skipped";
        skipped.message = "the time was up";
        return std::vector<TaskResult>(tasks.size(), skipped);
      },
      "");
  REQUIRE(localized);
  CHECK(localized->front().culprit.empty());
  CHECK(localized->front().explanation.find("the time was up") != std::string::npos);
}
