// Which mutants change an op's output at all: runs the rows of experiments, and each op that reaches a mutation twice
// on the same inputs, once as the source says and once, in a process of its own, as the mutant does.
//
//   differences OUT.json EXPERIMENT.yaml…
//
// By this rule, on the live region of every output that has a contract:
//   differs  an element lies further from the unmutated one than the kernel's tolerance against its spec reference
//            (src/ops/tolerances.h), an integer or a code is another one, a cache changed outside of the slots written,
//            or the kernel died, hung or reported a fault. Rows of a top-k selection are compared as sets.
//   rounds   some bits changed, all of them within that tolerance
//   same     no bit changed
//
// An output that differs is caught when the checks of the op alone, on those inputs, in the checked build and under
// reference, find something (what a conviction does first), or when the kernel died, hung or reported a fault.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/file.h"
#include "bisect/driver.h"
#include "bisect/engine_config.h"
#include "bisect/probes.h"
#include "bisect/screen.h"
#include "check/compare.h"
#include "engine/engine.h"
#include "mutant.h"

namespace faultline {
namespace {

enum Outcome : int { kSame = 0, kRounds = 1, kDiffers = 2, kCaught = 3 };
constexpr int kTriesOfPattern = 1;    // layers of one pass in which an op of one kernel is looked at
constexpr unsigned kPatience = 5;     // seconds, then a mutant hangs
constexpr int64_t kWarmupTokens = 4;  // as the worker's greedy query
constexpr int64_t kWarmupSteps = 2;

// The bytes of one output, as far as its memory reaches.
std::span<std::byte> bytes_of(const Argument& argument) {
  const size_t size = argument.geometry != nullptr
                          ? static_cast<size_t>(argument.geometry->total_bytes())
                          : static_cast<size_t>(argument.view().extent()) * dtype_bytes(argument.view().dtype);
  return {argument.view().data, size};
}

int compare_values(float a, float b, bool equal_bits, Tolerance tolerance) {
  if (equal_bits) return kSame;
  if (std::isnan(a) && std::isnan(b)) return kRounds;
  return std::abs(a - b) <= tolerance.atol + tolerance.rtol * std::abs(a) || a == b ? kRounds : kDiffers;
}

class Comparison {
 public:
  Comparison(const Op& op, const OpCall& call, const LiveCounts& live) : op_(op), call_(call), live_(live) {
    for (int o = 0; o < static_cast<int>(op.kind->operands.size()); ++o)
      if (spec(o).direction == Direction::kOut && call.argument(o).present()) outputs_.push_back(o);
  }
  std::vector<std::vector<std::byte>> save() const {
    std::vector<std::vector<std::byte>> result;
    for (const int o : outputs_) {
      const auto bytes = bytes_of(call_.argument(o));
      result.emplace_back(bytes.begin(), bytes.end());
    }
    return result;
  }
  void restore(const std::vector<std::vector<std::byte>>& saved) const {
    for (size_t i = 0; i < outputs_.size(); ++i)
      std::memcpy(bytes_of(call_.argument(outputs_[i])).data(), saved[i].data(), saved[i].size());
  }
  // What lies in memory now against what the unmutated kernel left.
  int against(std::vector<std::vector<std::byte>>& unmutated) const {
    int worst = kSame;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const int o = outputs_[i];
      if (spec(o).content == Content::kScratch) continue;
      worst = std::max(worst, spec(o).content == Content::kCache ? cache(o, unmutated[i]) : tensor(o, unmutated[i]));
    }
    return worst;
  }

 private:
  const OperandSpec& spec(int o) const { return op_.kind->operands[static_cast<size_t>(o)]; }

  int cache(int o, std::vector<std::byte>& before) const {
    const CacheGeometry& geometry = *call_.argument(o).geometry;
    const auto now = bytes_of(call_.argument(o));
    if (std::equal(now.begin(), now.end(), before.begin())) return kSame;
    int worst = kRounds;
    std::vector<float> a(static_cast<size_t>(geometry.width()));
    std::vector<float> b(a.size());
    for (const int64_t slot : slots_written(call_, spec(o), o, live_)) {
      decode_slot(geometry, before.data(), slot, a.data());
      decode_slot(geometry, now.data(), slot, b.data());
      for (size_t c = 0; c < a.size(); ++c)
        worst =
            std::max(worst, compare_values(a[c], b[c], float_bits(a[c]) == float_bits(b[c]), op_.kernel->tolerance));
      // Then the slot is out of the way, and what still differs lies elsewhere.
      encode_slot(geometry, before.data(), slot, a.data(), true, false);
      encode_slot(geometry, now.data(), slot, a.data(), true, false);
    }
    return std::equal(now.begin(), now.end(), before.begin()) ? worst : kDiffers;
  }

  int tensor(int o, std::vector<std::byte>& before) const {
    const TensorView& now = call_.view(o);
    TensorView old = now;
    old.data = before.data();
    const bool as_sets = op_.kind->name == "topk";
    std::map<int64_t, std::pair<std::multiset<int64_t>, std::multiset<int64_t>>> sets;
    int worst = kSame;
    for_each_live(call_, spec(o), o, live_, [&](int64_t at, int64_t row, int64_t) {
      switch (now.dtype) {
        case Dtype::kF32:
        case Dtype::kBF16:
        case Dtype::kF16: {
          const float a = old.load(at);
          const float b = now.load(at);
          worst = std::max(worst, compare_values(a, b, float_bits(a) == float_bits(b), op_.kernel->tolerance));
          break;
        }
        case Dtype::kI32:
          if (as_sets) {
            sets[row].first.insert(old.load_index(at));
            sets[row].second.insert(now.load_index(at));
          } else if (old.load_index(at) != now.load_index(at)) {
            worst = kDiffers;
          }
          break;
        default:
          if (std::memcmp(old.data + at, now.data + at, 1) != 0) worst = kDiffers;
      }
      return worst != kDiffers;
    });
    for (const auto& [row, pair] : sets)
      if (pair.first != pair.second) return kDiffers;
    return worst;
  }

  const Op& op_;
  const OpCall& call_;
  const LiveCounts& live_;
  std::vector<int> outputs_;
};

struct Seen {
  int outcome = kSame;
  std::set<std::string> rows;     // in which it was reached
  std::set<std::string> differs;  // rows in which an output differed
  std::set<std::string> caught;   // rows in which one that differed was caught
  std::set<std::string> kernels;  // "kind/kernel", of ops whose output differed
};

class MutantInjector : public FaultInjector {
 public:
  explicit MutantInjector(std::map<int, Seen>& seen) : seen_(seen) {}
  void begin_row(std::string row) { row_ = std::move(row); }
  void begin_pass() { tries_.clear(); }
  void weights(ModelWeights&) override {}

  KernelResult run(const PassInfo& info, const Op& op, const OpCall& call, bool) override {
    if (op.shadow || op.kernel->provenance == Provenance::kReference) return op.kernel->run(call);
    const std::string kernel = op.kind->name + "/" + op.kernel->name;
    const Comparison comparison(op, call, info.live);
    const auto before = comparison.save();
    std::memset(mutant::reached, 0, sizeof mutant::reached);
    mutant::recording = true;
    KernelResult result = op.kernel->run(call);
    mutant::recording = false;
    if (++tries_[std::string(info.warmup ? "w" : "") + kernel] > kTriesOfPattern) return result;
    auto unmutated = comparison.save();
    for (int number = 1; number < mutant::kMost; ++number) {
      if (mutant::reached[number] == 0) continue;
      Seen& seen = seen_[number];
      seen.rows.insert(row_);
      if (seen.caught.count(row_) != 0 && seen.kernels.count(kernel) != 0) continue;
      const int outcome = apart(number, comparison, before, unmutated, info, op, call);
      seen.outcome = std::max(seen.outcome, outcome);
      if (outcome < kDiffers) continue;
      seen.differs.insert(row_);
      if (outcome == kCaught) seen.caught.insert(row_);
      seen.kernels.insert(kernel);
    }
    return result;
  }

 private:
  // Runs `mutated` with the mutant chosen, in a process of its own; what it returns. kCaught: it died or hung.
  template <class Run>
  static int in_child(int number, const Run& mutated) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kPatience);
      mutant::chosen = number;
      _exit(mutated());
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) <= kCaught ? WEXITSTATUS(status) : kCaught;
  }

  int apart(int number, const Comparison& comparison, const std::vector<std::vector<std::byte>>& before,
            std::vector<std::vector<std::byte>>& unmutated, const PassInfo& info, const Op& op, const OpCall& call) {
    const int outcome = in_child(number, [&]() -> int {
      comparison.restore(before);
      return op.kernel->run(call) ? kCaught : comparison.against(unmutated);
    });
    if (outcome != kDiffers) return outcome;
    return in_child(number, [&]() -> int {
      comparison.restore(before);
      return replay_alone(op, info, nullptr, call.launch.seed, *device_) ? kCaught : kDiffers;
    });
  }

  const std::unique_ptr<Device> device_ = make_cpu_device();
  std::map<int, Seen>& seen_;
  std::string row_;
  std::map<std::string, int> tries_;
};

// The probes of one row, as a worker runs them.
Status run_row(const WorkerTask& task, const ModelWeights& weights, MutantInjector& injector) {
  FAULTLINE_TRY(const CheckLevel checks, check_level("full"));
  FAULTLINE_TRY(const EngineConfig config, engine_config(task.resolved, checks, task.seed, task.probes.chunk));
  EngineLimits limits;
  limits.max_requests = largest_batch(task.probes);
  limits.max_context = std::max(longest_sequence(task.probes), kWarmupTokens + kWarmupSteps + 1);
  EngineHooks hooks;
  hooks.injector = &injector;
  FAULTLINE_TRY(const auto engine, Engine::create(weights, config, limits, {task.probes.temperature, task.probes.top_p},
                                                  std::move(hooks)));
  std::vector<Probe> probes = list_probes(task.probes);
  probes.insert(probes.begin(), Probe{Probe::Kind::kDecode, {kWarmupTokens}, kWarmupSteps});
  for (size_t i = 0; i < probes.size(); ++i) {
    const auto index = static_cast<int64_t>(i) - 1;
    Engine::StepOptions options;
    options.warmup = index < 0;
    options.greedy = index < 0;
    std::vector<Sequence> sequences;
    std::vector<Sequence*> pointers;
    sequences.reserve(probes[i].lengths.size());
    for (size_t row = 0; row < probes[i].lengths.size(); ++row) {
      FAULTLINE_TRY(Sequence sequence,
                    engine->open(probe_tokens(task.probes, task.seed, weights.config.vocab_size, index,
                                              static_cast<int64_t>(row), probes[i].lengths[row])));
      sequences.push_back(std::move(sequence));
      pointers.push_back(&sequences.back());
    }
    const auto pass = [&](const Result<PassOutcome>& outcome) -> Status {
      if (!outcome) return tl::make_unexpected(outcome.error());
      if (!outcome->clean()) return internal_error("{}: the unmutated row is not clean", task.id);
      injector.begin_pass();
      return {};
    };
    bool done = false;
    while (!done) FAULTLINE_TRY_STATUS(pass(engine->prefill(pointers, options, done)));
    for (int64_t step = 0; step < probes[i].steps; ++step)
      FAULTLINE_TRY_STATUS(pass(engine->decode(pointers, options)));
    for (Sequence& sequence : sequences) engine->close(sequence);
  }
  return {};
}

Status run_experiment(const std::string& path, MutantInjector& injector) {
  BisectOptions options;
  options.experiment = path;
  FAULTLINE_TRY(const PreparedExperiment prepared, prepare_experiment(options));
  FAULTLINE_TRY(const Grid grid, expand_grid(prepared.experiment));
  FAULTLINE_TRY(const Checkpoint checkpoint, Checkpoint::open(prepared.experiment.model));
  FAULTLINE_TRY(const ModelWeights weights, load_weights(checkpoint));
  FAULTLINE_TRY(const auto rows,
                screen_rows(prepared.experiment, grid.rows, *prepared.profile, prepared.target, prepared.shape, ""));
  for (const ScreenRow& row : rows) {
    if (row.tasks.empty()) return bad_input("{}: {} cannot run: {}", path, row.id, row.resolved.reason);
    injector.begin_row(prepared.experiment.name + " " + row.id);
    FAULTLINE_TRY_STATUS(run_row(row.tasks.front(), weights, injector));
    fmt::print(stderr, "{} {}\n", prepared.experiment.name, row.id);
  }
  return {};
}

int run(int argc, char** argv) {
  std::map<int, Seen> seen;
  MutantInjector injector(seen);
  for (int i = 2; i < argc; ++i) {
    const auto done = run_experiment(argv[i], injector);
    if (done) continue;
    fmt::print(stderr, "differences: {}\n", done.error().message);
    return 1;
  }
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [number, one] : seen)
    json[fmt::format("{}", number)] = {{"outcome", one.outcome >= kDiffers  ? "differs"
                                                   : one.outcome == kRounds ? "rounds"
                                                                            : "same"},
                                       {"reached", one.rows},
                                       {"differs", one.differs},
                                       {"caught", one.caught},
                                       {"kernels", one.kernels}};
  const auto written = write_file(argv[1], json.dump(1) + "\n");
  return written ? 0 : 1;
}

}  // namespace
}  // namespace faultline

int main(int argc, char** argv) {
  return argc < 3 ? 2 : faultline::run(argc, argv);
}
