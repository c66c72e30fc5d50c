// The engine on a GPU at GLM-5's full width: what checks cost, and how near decode comes to the memory's speed.
//
//   cuda_engine_bench [SPEC] [--prefill TOKENS] [--context TOKENS] [--once]
//
// SPEC is a model with one dense and some MoE layers, of the real width (the default: GLM-5 with 4 layers). --once runs
// one decode step and ends: what a memory checker is timed on. Times are medians of CUDA events over replays of the
// recorded step, whose weights together are larger than the L2 cache; ratios are of one run of this program.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda_error.h"
#include "engine/device_weights.h"
#include "engine/engine.h"
#include "ops/kinds.h"

namespace faultline {
namespace {

constexpr int kReplays = 10;
constexpr int kGroups = 7;  // medians of
constexpr double kMicro = 1e6;
constexpr double kGiga = 1e9;

struct Options {
  std::string spec = "synth:glm-5?num_hidden_layers=4&first_k_dense_replace=1";
  int64_t prefill = 4096;
  int64_t context = 4096;
  bool once = false;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds between two points of a stream.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    static_cast<void>(cudaEventCreate(&begin_));
    static_cast<void>(cudaEventCreate(&end_));
  }
  ~Stopwatch() {
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  template <class Work>
  double seconds(const Work& work) {
    static_cast<void>(cudaEventRecord(begin_, stream_));
    work();
    static_cast<void>(cudaEventRecord(end_, stream_));
    static_cast<void>(cudaEventSynchronize(end_));
    float milliseconds = 0;
    static_cast<void>(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds / 1e3;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// Bytes read and written a second by a copy within the device.
Result<double> copy_bandwidth(Device& device) {
  constexpr size_t kBytes = size_t{2} << 30;
  FAULTLINE_TRY(const auto from, device.allocate(kBytes));
  FAULTLINE_TRY(const auto to, device.allocate(kBytes));
  Stopwatch watch(static_cast<cudaStream_t>(device.stream()));
  std::vector<double> seconds;
  for (int i = 0; i < kGroups; ++i)
    seconds.push_back(watch.seconds([&] { device.copy_async(to->data(), from->data(), kBytes); }));
  return 2.0 * kBytes / median(seconds);
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}

  Status run() {
    FAULTLINE_TRY(device_, make_device("cuda:0"));
    fmt::print("# {}\n\n{}, {}\n", options_.spec, describe_device("cuda:0"), device_->name());
    const auto start = std::chrono::steady_clock::now();
    FAULTLINE_TRY(const Checkpoint checkpoint, Checkpoint::open(options_.spec));
    FAULTLINE_TRY(host_, load_weights(checkpoint));
    const auto opened = std::chrono::steady_clock::now();
    auto uploaded = DeviceWeights::upload(*device_, checkpoint);
    if (!uploaded) return tl::make_unexpected(uploaded.error());
    FAULTLINE_TRY(weights_, uploaded->to_device(host_));
    mirror_ = std::make_unique<HostMirror>(*device_);
    for (const DeviceWeights::Range& range : uploaded->ranges()) mirror_->add(range.device, range.bytes, range.host);
    const auto placed = std::chrono::steady_clock::now();
    fmt::print("weights: {:.1f} GB, made in {:.1f} s, uploaded in {:.1f} s\n",
               static_cast<double>(uploaded->bytes()) / kGiga, std::chrono::duration<double>(opened - start).count(),
               std::chrono::duration<double>(placed - opened).count());
    layers_ = static_cast<int>(host_.layers.size());
    if (options_.once) return once();
    FAULTLINE_TRY(bandwidth_, copy_bandwidth(*device_));
    fmt::print("copy within the device: {:.2f} TB/s\n", bandwidth_ / 1e12);
    fmt::print("\n| | checks off | full | ratio | of it a layer |\n|---|---|---|---|---|\n");
    for (const int64_t batch : {1, 16}) FAULTLINE_TRY_STATUS(decode(batch));
    FAULTLINE_TRY_STATUS(prefill());
    FAULTLINE_TRY_STATUS(ops_of_a_step(1));
    return ops_of_a_step(16);
  }

 private:
  EngineConfig config(CheckLevel checks) const {
    EngineConfig config;
    config.checks = checks;
    config.cuda_graph = true;
    config.kv_format = config.prefill_reads = config.decode_reads = Format::kKvPacked;
    config.prefill_gathers = true;
    config.prefill_from_rows = true;
    return config;
  }

  Result<std::unique_ptr<Engine>> engine(CheckLevel checks, int64_t batch, int64_t context) {
    return Engine::create(weights_, config(checks), EngineLimits{batch, context + 64, 0}, SamplingParams{}, {},
                          mirror_.get());
  }

  static std::vector<int32_t> prompt(int64_t length, int64_t seed) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 7919 + seed * 104729 + 1) % 150000);
    return ids;
  }

  static Status require_clean(const PassOutcome& outcome) {
    if (outcome.fault) return internal_error("{}: {}", outcome.fault->op, outcome.fault->fault.message);
    if (!outcome.violations.empty())
      return internal_error("{}: {}", outcome.violations.front().op, outcome.violations.front().violation.detail);
    return {};
  }

  // Sequences of `context` tokens in the caches, and one decode step after them.
  Status fill(Engine& to, int64_t batch, int64_t context, std::vector<Sequence>& sequences) {
    std::vector<Sequence*> all;
    sequences.reserve(static_cast<size_t>(batch));
    for (int64_t i = 0; i < batch; ++i) {
      FAULTLINE_TRY(Sequence sequence, to.open(prompt(context, i)));
      sequences.push_back(std::move(sequence));
      all.push_back(&sequences.back());
    }
    for (Sequence* one : all)
      for (bool done = false; !done;) {
        FAULTLINE_TRY(const PassOutcome outcome, to.prefill({&one, 1}, {}, done));
        FAULTLINE_TRY_STATUS(require_clean(outcome));
      }
    FAULTLINE_TRY(const PassOutcome outcome, to.decode(all, {}));
    return require_clean(outcome);
  }

  // Median seconds of one replay of the recorded step.
  Result<double> replay(const Engine& recorded) {
    const Pass& pass = recorded.last_pass();
    if (pass.segments.size() != 1 || pass.segments[0].graph == nullptr)
      return internal_error("the step was not recorded as one graph");
    Stopwatch watch(static_cast<cudaStream_t>(device_->stream()));
    std::vector<double> seconds;
    for (int g = 0; g < kGroups; ++g) {
      Status launched;
      seconds.push_back(watch.seconds([&] {
        for (int i = 0; i < kReplays && launched; ++i) launched = device_->launch(*pass.segments[0].graph);
      }) / kReplays);
      FAULTLINE_TRY_STATUS(launched);
    }
    return median(seconds);
  }

  Status decode(int64_t batch) {
    double seconds[2] = {};
    const CheckLevel levels[2] = {CheckLevel::kOff, CheckLevel::kFull};
    for (int i = 0; i < 2; ++i) {
      FAULTLINE_TRY(const auto served, engine(levels[i], batch, options_.context));
      FAULTLINE_TRY(const PassOutcome captured, served->capture(batch, false));
      FAULTLINE_TRY_STATUS(require_clean(captured));
      std::vector<Sequence> sequences;
      FAULTLINE_TRY_STATUS(fill(*served, batch, options_.context, sequences));
      FAULTLINE_TRY(seconds[i], replay(*served));
    }
    print_row(fmt::format("decode step, batch {}, context {}, graph", batch, options_.context), seconds[0], seconds[1]);
    if (batch == 1) step_ = seconds[0];
    return {};
  }

  void print_row(const std::string& what, double off, double full) const {
    fmt::print("| {} | {:.3f} ms | {:.3f} ms | {:.3f} | {:.1f} us |\n", what, off * 1e3, full * 1e3, full / off,
               (full - off) / layers_ * kMicro);
  }

  Status prefill() {
    double seconds[2] = {};
    const CheckLevel levels[2] = {CheckLevel::kOff, CheckLevel::kFull};
    for (int i = 0; i < 2; ++i) {
      FAULTLINE_TRY(const auto served, engine(levels[i], 1, options_.prefill));
      std::vector<double> runs;
      for (int64_t r = 0; r < kGroups + 2; ++r) {
        FAULTLINE_TRY(Sequence sequence, served->open(prompt(options_.prefill, r)));
        Sequence* one = &sequence;
        const auto start = std::chrono::steady_clock::now();
        bool done = false;
        FAULTLINE_TRY(const PassOutcome outcome, served->prefill({&one, 1}, {}, done));
        if (r >= 2) runs.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        FAULTLINE_TRY_STATUS(require_clean(outcome));
        served->close(sequence);
      }
      seconds[i] = median(runs);
    }
    print_row(fmt::format("prefill, {} tokens", options_.prefill), seconds[0], seconds[1]);
    return {};
  }

  // Bytes of an operand that one run of its op reaches.
  static double bytes_of(const Op& op, int operand) {
    const Argument& argument = op.arguments[operand];
    double bytes = 0;
    for (const TensorView& view : argument.views)
      if (view.data != nullptr)
        bytes += static_cast<double>(view.elements()) * static_cast<double>(dtype_bytes(view.dtype));
    return bytes;
  }

  // What the op must move: each input and output once; of experts' weights those of as many experts as have rows, of
  // caches and index lists what the selection reaches.
  static double floor_bytes(const Op& op) {
    double bytes = 0;
    const bool experts = op.kind->name == ops::ExpertLinear::kName || op.kind->name == ops::ExpertLinearW4A4::kName;
    for (int o = 0; o < op.arguments.size(); ++o) {
      const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
      if (!op.arguments[o].present() || spec.content == Content::kScratch || spec.content == Content::kCache) continue;
      double part = bytes_of(op, o);
      if (experts && spec.content == Content::kWeight) {
        const auto lists = static_cast<double>(op.arguments[o].views.size());
        const auto stacked = static_cast<double>(op.attributes.integer("stacked"));
        const auto rows = static_cast<double>(op.arguments[op.arguments.size() - 1].view().dim(0));
        part *= std::min(1.0, rows * stacked / lists);
      }
      bytes += part;
    }
    return bytes;
  }

  static bool is_product(const Op& op) { return op.kind->name.find("linear") != std::string::npos; }

  // Each op of a MoE layer alone: its kernel on the tensors of all MoE layers in turn, as one graph.
  Status ops_of_a_step(int64_t batch) {
    FAULTLINE_TRY(const auto served, engine(CheckLevel::kOff, batch, options_.context));
    FAULTLINE_TRY(const PassOutcome captured, served->capture(batch, false));
    FAULTLINE_TRY_STATUS(require_clean(captured));
    std::vector<Sequence> sequences;
    FAULTLINE_TRY_STATUS(fill(*served, batch, options_.context, sequences));
    const Pass& pass = served->last_pass();
    fmt::print("\nEach op of a MoE layer alone, decode, batch {}, context {}:\n\n", batch, options_.context);
    fmt::print("| op | kernel | us | MB | of copy bandwidth |\n|---|---|---|---|---|\n");
    double total_seconds = 0;
    double total_bytes = 0;
    for (const Op& op : pass.ops) {
      if (op.layer != layers_ - 1) continue;
      const std::string local = op.name.substr(op.name.find('.', op.name.find('.') + 1) + 1);
      std::vector<const Op*> same;
      for (const Op& other : pass.ops)
        if (other.layer > 0 && other.name == fmt::format("layers.{}.{}", other.layer, local)) same.push_back(&other);
      FAULTLINE_TRY(const double seconds, time_ops(same));
      const double bytes = floor_bytes(op);
      total_seconds += seconds;
      if (is_product(op)) total_bytes += bytes;
      fmt::print("| {} | {} | {:.1f} | {:.2f} | {:.0f} % |\n", local, op.kernel->name, seconds * kMicro, bytes / 1e6,
                 100 * bytes / seconds / bandwidth_);
    }
    fmt::print("| all, one after another | | {:.1f} | {:.1f} (products) | {:.0f} % |\n", total_seconds * kMicro,
               total_bytes / 1e6, 100 * total_bytes / total_seconds / bandwidth_);
    if (batch != 1) return {};
    double step_bytes = 0;
    for (const Op& op : pass.ops)
      if (is_product(op)) step_bytes += floor_bytes(op);
    fmt::print(
        "\nThe whole step: {:.1f} MB of weights and activations of products in {:.3f} ms: {:.0f} % of the copy "
        "bandwidth\n",
        step_bytes / 1e6, step_ * 1e3, 100 * step_bytes / step_ / bandwidth_);
    return {};
  }

  Result<double> time_ops(const std::vector<const Op*>& ops) {
    constexpr int kRounds = 8;
    const auto run_all = [&] {
      for (const Op* op : ops) {
        OpCall call = op->call();
        call.launch.cuda = true;
        call.launch.stream = device_->stream();
        op->kernel->run(call);
      }
    };
    run_all();
    FAULTLINE_TRY_STATUS(device_->begin_capture());
    for (int i = 0; i < kRounds; ++i) run_all();
    FAULTLINE_TRY(const auto graph, device_->end_capture());
    Stopwatch watch(static_cast<cudaStream_t>(device_->stream()));
    std::vector<double> seconds;
    for (int g = 0; g < kGroups; ++g) {
      Status launched;
      seconds.push_back(watch.seconds([&] { launched = device_->launch(*graph); }));
      FAULTLINE_TRY_STATUS(launched);
    }
    return median(seconds) / (kRounds * static_cast<double>(ops.size()));
  }

  Status once() {
    FAULTLINE_TRY(const auto served, engine(CheckLevel::kFull, 1, options_.context));
    std::vector<Sequence> sequences;
    FAULTLINE_TRY_STATUS(fill(*served, 1, 16, sequences));
    std::vector<Sequence*> one = {&sequences.front()};
    const auto start = std::chrono::steady_clock::now();
    FAULTLINE_TRY(const PassOutcome outcome, served->decode(one, {}));
    FAULTLINE_TRY_STATUS(require_clean(outcome));
    fmt::print("one decode step, batch 1, checks full: {:.3f} ms of wall time\n",
               std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() * 1e3);
    return {};
  }

  Options options_;
  std::unique_ptr<Device> device_;
  ModelWeights host_;
  ModelWeights weights_;
  std::unique_ptr<HostMirror> mirror_;
  int layers_ = 0;
  double bandwidth_ = 0;
  double step_ = 0;
};

}  // namespace
}  // namespace faultline

int main(int argc, char** argv) {
  faultline::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--once")
      options.once = true;
    else if (argument == "--prefill" && i + 1 < argc)
      options.prefill = std::atoll(argv[++i]);
    else if (argument == "--context" && i + 1 < argc)
      options.context = std::atoll(argv[++i]);
    else
      options.spec = argument;
  }
  faultline::Bench bench(options);
  if (const auto status = bench.run(); !status) {
    fmt::print(stderr, "cuda_engine_bench: {}\n", status.error().message);
    return static_cast<int>(faultline::ExitCode::kInternal);
  }
  return 0;
}
