// cuda_products_bench: the matrix products of one GLM-5 layer on a GPU, as the engine calls them. Decode: weight bytes
// a second over the copy bandwidth of the same run. Prefill: TFLOP/s beside a dense bf16 product of cuBLASLt. Captured
// graphs of products that rotate over more weights than the L2 cache holds; medians; random data.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/cublaslt.h"
#include "ops/kinds.h"
#include "ops/op.h"

namespace faultline {
namespace {

constexpr int64_t kHidden = 6144, kQLora = 2048, kHeads = 64, kNope = 192, kRope = 64, kLatent = 512, kValue = 256;
constexpr int64_t kExperts = 256, kTopK = 8, kExpertWidth = 2048, kDenseWidth = 12288, kVocabulary = 154880;
constexpr int64_t kPrefill = 4096;
constexpr int64_t kRotated = int64_t{400} << 20;  // bytes of weights that a graph walks through, at least
constexpr int kSamples = 9;

[[noreturn]] void fail(const std::string& message) {
  fmt::print(stderr, "cuda_products_bench: {}\n", message);
  std::exit(1);
}

enum class Kind : uint8_t { kBf16, kFp8, kNvfp4, kW4a4 };

class Bench {
 public:
  Bench() {
    auto device = make_cuda_device(0);
    if (!device) fail(device.error().message);
    device_ = std::move(*device);
    std::mt19937 engine(7);
    std::normal_distribution<float> normal;
    constexpr size_t kPattern = size_t{8} << 20;
    std::vector<std::byte> bytes(kPattern);
    const auto pattern = [&](auto make) {
      for (size_t i = 0; i < kPattern; i += sizeof(make())) {
        const auto value = make();
        std::memcpy(bytes.data() + i, &value, sizeof value);
      }
      auto buffer = device_->allocate(kPattern);
      if (!buffer) fail(buffer.error().message);
      device_->copy((*buffer)->data(), bytes.data(), kPattern);
      return std::move(*buffer);
    };
    values_ = pattern([&] { return to_bf16(normal(engine)); });
    codes_ = pattern([&] { return static_cast<uint8_t>(engine()); });
    scales_ = pattern([&] { return static_cast<uint8_t>(0x30u + engine() % 16u); });
    floats_ = pattern([&] { return 0.01f + 0.001f * static_cast<float>(engine() % 8u); });
  }

  void copy_bandwidth() {
    constexpr size_t kBytes = size_t{2} << 30;
    const TensorView from = tensor(Dtype::kU8, {static_cast<int64_t>(kBytes)}, *codes_);
    const TensorView to = tensor(Dtype::kU8, {static_cast<int64_t>(kBytes)}, *codes_);
    const double seconds = median([&] { device_->copy_async(to.data, from.data, kBytes); });
    bandwidth_ = 2.0 * kBytes / seconds;
    fmt::print("{}; copy {:.2f} TB/s; {}\n", device_->name(), bandwidth_ * 1e-12, kernels::cublaslt_status());
    kept_.clear();
  }

  // `parts` matrices [rows, columns] of one precision, side by side.
  void linear(const std::string& name, Kind kind, int64_t tokens, std::vector<int64_t> parts, int64_t columns,
              Dtype out_type = Dtype::kBF16) {
    int64_t width = 0;
    for (const int64_t rows : parts) width += rows;
    const double bytes = weight_bytes(kind, width, columns);
    const int copies = static_cast<int>(std::clamp<double>(kRotated / bytes, 1, 24));
    std::vector<ArgumentList> calls;
    for (int i = 0; i < copies; ++i) {
      ArgumentList arguments;
      add_x(arguments, kind, tokens, columns);
      add_weights(arguments, kind, parts, columns, 1);
      arguments.add({tensor(out_type, {tokens, width}, *values_)});
      calls.push_back(std::move(arguments));
    }
    measure(name, kind == Kind::kW4a4 ? ops::LinearW4A4::kName : ops::Linear::kName, kernel_of(kind), calls, {}, bytes,
            2.0 * static_cast<double>(tokens * width * columns), tokens);
  }

  void experts(const std::string& name, Kind kind, int64_t tokens, int64_t stacked, int64_t rows, int64_t columns) {
    constexpr int kRoutings = 6;
    ArgumentList weights;
    add_weights(weights, kind, std::vector<int64_t>(static_cast<size_t>(stacked), rows), columns, kExperts);
    Attributes attributes;
    attributes.set("k", kTopK).set("stacked", stacked).set("x_per_token", stacked == 2);
    std::vector<ArgumentList> calls;
    double used = 0;
    for (int i = 0; i < kRoutings; ++i) {
      ArgumentList arguments;
      add_x(arguments, kind, stacked == 2 ? tokens : tokens * kTopK, columns);
      const auto [order, offsets, active] = route(tokens, static_cast<uint32_t>(i));
      used += active / static_cast<double>(kRoutings);
      arguments.add({order});
      arguments.add({offsets});
      for (int operand = 0; operand < weights.size(); ++operand) {
        const Argument& argument = weights[operand];
        arguments.add({argument.views.begin(), argument.views.end()}, argument.format);
      }
      arguments.add({tensor(Dtype::kBF16, {tokens * kTopK, stacked * rows}, *values_)});
      calls.push_back(std::move(arguments));
    }
    measure(name, kind == Kind::kW4a4 ? ops::ExpertLinearW4A4::kName : ops::ExpertLinear::kName, kernel_of(kind), calls,
            attributes, used * weight_bytes(kind, stacked * rows, columns),
            2.0 * static_cast<double>(tokens * kTopK * stacked * rows * columns), tokens);
  }

  // The absorbed products: strided views into q, q_full and kv_b_proj.
  void heads(const std::string& name, int64_t tokens, bool kn) {
    const int64_t in = kn ? kNope : kLatent;
    const int64_t out = kn ? kLatent : kValue;
    const double bytes = static_cast<double>(kHeads * in * out * 2);
    Attributes attributes;
    attributes.set("weight_kn", kn);
    std::vector<ArgumentList> calls;
    for (int i = 0; i < static_cast<int>(kRotated / bytes); ++i) {
      ArgumentList arguments;
      const int64_t x_row = kn ? kNope + kRope : kLatent;
      const int64_t out_row = kn ? kLatent + kRope : kValue;
      arguments.add(
          {slice_last(split_last(tensor(Dtype::kBF16, {tokens, kHeads * x_row}, *values_), kHeads, x_row), 0, in)});
      TensorView w = tensor(Dtype::kBF16, {kHeads, kNope + kValue, kLatent}, *values_);
      w.shape[1] = kn ? kNope : kValue;
      if (!kn) w.data += kNope * kLatent * 2;
      arguments.add({w});
      arguments.add({slice_last(split_last(tensor(Dtype::kBF16, {tokens, kHeads * out_row}, *values_), kHeads, out_row),
                                0, out)});
      calls.push_back(std::move(arguments));
      if (tokens > 64 && i == 3) break;
    }
    measure(name, ops::BatchedLinear::kName, "bmm", calls, attributes, bytes,
            2.0 * static_cast<double>(tokens * kHeads * in * out), tokens);
  }

 private:
  static const char* kernel_of(Kind kind) {
    return kind == Kind::kW4a4 ? "flashinfer_cutlass" : (kind == Kind::kNvfp4 ? "marlin" : "dense");
  }
  static double weight_bytes(Kind kind, int64_t rows, int64_t columns) {
    const double elements = static_cast<double>(rows * columns);
    constexpr double kFp4Bytes = 0.5 + 1.0 / 16;
    return elements * (kind == Kind::kBf16 ? 2 : (kind == Kind::kFp8 ? 1 : kFp4Bytes));
  }

  TensorView tensor(Dtype dtype, std::initializer_list<int64_t> shape, const Buffer& pattern) {
    TensorView view = make_view(nullptr, dtype, shape);
    const size_t bytes = static_cast<size_t>(view.elements()) * dtype_bytes(dtype);
    auto buffer = device_->allocate(bytes);
    if (!buffer) fail(buffer.error().message);
    view.data = (*buffer)->data();
    for (size_t at = 0; at < bytes; at += pattern.bytes())
      device_->copy_async(view.data + at, pattern.data(), std::min(pattern.bytes(), bytes - at));
    kept_.push_back(std::move(*buffer));
    return view;
  }

  void add_x(ArgumentList& arguments, Kind kind, int64_t tokens, int64_t columns) {
    if (kind != Kind::kW4a4) {
      arguments.add({tensor(Dtype::kBF16, {tokens, columns}, *values_)});
      return;
    }
    arguments.add({tensor(Dtype::kU8, {tokens, columns / 2}, *codes_)});
    arguments.add({tensor(Dtype::kF8E4M3, {tokens, columns / 16}, *scales_)});
  }

  void add_weights(ArgumentList& arguments, Kind kind, const std::vector<int64_t>& parts, int64_t columns,
                   int64_t times) {
    const bool fp4 = kind == Kind::kNvfp4 || kind == Kind::kW4a4;
    std::vector<TensorView> values, scales, globals, inputs;
    for (int64_t i = 0; i < times; ++i)
      for (const int64_t rows : parts) {
        if (kind == Kind::kBf16) values.push_back(tensor(Dtype::kBF16, {rows, columns}, *values_));
        if (kind == Kind::kFp8) values.push_back(tensor(Dtype::kF8E4M3, {rows, columns}, *scales_));
        if (kind == Kind::kFp8) scales.push_back(tensor(Dtype::kF32, {1}, *floats_));
        if (!fp4) continue;
        values.push_back(tensor(Dtype::kU8, {rows, columns / 2}, *codes_));
        scales.push_back(tensor(Dtype::kF8E4M3, {rows, columns / 16}, *scales_));
        globals.push_back(tensor(Dtype::kF32, {1}, *floats_));
        inputs.push_back(tensor(Dtype::kF32, {1}, *floats_));
      }
    const auto add = [&](std::vector<TensorView> views, Format format) {
      if (views.empty()) views.push_back(TensorView{});
      arguments.add(std::move(views), format);
    };
    add(std::move(values), fp4 ? Format::kNvfp4 : Format::kPlain);
    add(std::move(scales), Format::kPlain);
    add(std::move(globals), Format::kPlain);
    if (kind == Kind::kW4a4) add(std::move(inputs), Format::kPlain);
  }

  // Random experts for each token: order, offsets, and how many experts have rows.
  std::tuple<TensorView, TensorView, int> route(int64_t tokens, uint32_t seed) {
    std::mt19937 engine(seed);
    std::vector<std::vector<int32_t>> rows(kExperts);
    std::vector<int32_t> all(kExperts);
    for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int32_t>(e);
    for (int64_t t = 0; t < tokens; ++t) {
      std::shuffle(all.begin(), all.end(), engine);
      for (int64_t j = 0; j < kTopK; ++j)
        rows[static_cast<size_t>(all[static_cast<size_t>(j)])].push_back(static_cast<int32_t>(t * kTopK + j));
    }
    std::vector<int32_t> order, offsets{0};
    int active = 0;
    for (const auto& list : rows) {
      order.insert(order.end(), list.begin(), list.end());
      offsets.push_back(static_cast<int32_t>(order.size()));
      active += list.empty() ? 0 : 1;
    }
    const auto upload = [&](const std::vector<int32_t>& host) {
      const TensorView view = tensor(Dtype::kI32, {static_cast<int64_t>(host.size())}, *codes_);
      device_->copy(view.data, reinterpret_cast<const std::byte*>(host.data()), host.size() * sizeof(int32_t));
      return view;
    };
    return {upload(order), upload(offsets), active};
  }

  template <class Work>
  double median(const Work& work) {
    cudaEvent_t begin = nullptr, end = nullptr;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    const auto stream = static_cast<cudaStream_t>(device_->stream());
    std::vector<double> seconds;
    for (int i = 0; i < kSamples + 2; ++i) {
      cudaEventRecord(begin, stream);
      work();
      cudaEventRecord(end, stream);
      if (const auto fault = device_->wait()) fail(fault->message);
      float milliseconds = 0;
      cudaEventElapsedTime(&milliseconds, begin, end);
      if (i >= 2) seconds.push_back(milliseconds * 1e-3);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  void measure(const std::string& name, const char* kind, const char* kernel, const std::vector<ArgumentList>& calls,
               const Attributes& attributes, double bytes, double flop, int64_t tokens) {
    const Kernel& chosen = *find_kernel(kind, kernel);
    const auto run_all = [&] {
      for (const ArgumentList& arguments : calls) {
        OpCall call{arguments.get(), &attributes, {}, false};
        call.launch.cuda = true;
        call.launch.stream = device_->stream();
        if (const KernelResult fault = chosen.run(call)) fail(fault->message);
        if (const char* refused = kernels::take_launch_error()) fail(name + ": " + refused);
      }
    };
    run_all();
    if (const auto fault = device_->wait()) fail(name + ": " + fault->message);
    if (const Status begun = device_->begin_capture(); !begun) fail(begun.error().message);
    run_all();
    auto graph = device_->end_capture();
    if (!graph) fail(graph.error().message);
    const double seconds =
        median([&] { static_cast<void>(device_->launch(**graph)); }) / static_cast<double>(calls.size());
    if (tokens >= kPrefill)
      fmt::print("{:<28}{:>6} {:>9.1f} us {:>7.1f} TFLOP/s\n", name, tokens, seconds * 1e6, flop / seconds * 1e-12);
    else
      fmt::print("{:<28}{:>6} {:>9.1f} us {:>7.2f} TB/s {:>5.0f} %\n", name, tokens, seconds * 1e6,
                 bytes / seconds * 1e-12, 100 * bytes / seconds / bandwidth_);
    std::fflush(stdout);
    kept_.clear();
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Buffer> values_, codes_, scales_, floats_;
  std::vector<std::unique_ptr<Buffer>> kept_;
  double bandwidth_ = 1;
};

void run(const std::vector<int64_t>& counts) {
  Bench bench;
  bench.copy_bandwidth();
  for (const int64_t tokens : counts) {
    bench.linear("q_a_proj bf16", Kind::kBf16, tokens, {kQLora}, kHidden);
    bench.linear("kv_a_proj bf16", Kind::kBf16, tokens, {kLatent + kRope}, kHidden);
    bench.linear("q_b_proj bf16", Kind::kBf16, tokens, {kHeads * (kNope + kRope)}, kQLora);
    bench.heads("q_absorb bf16", tokens, true);
    bench.heads("v_up bf16", tokens, false);
    bench.linear("o_proj bf16", Kind::kBf16, tokens, {kHidden}, kHeads * kValue);
    bench.linear("indexer wq_b bf16", Kind::kBf16, tokens, {4096}, kQLora);
    bench.linear("indexer wk bf16", Kind::kBf16, tokens, {128}, kHidden);
    bench.linear("indexer weights bf16 f32", Kind::kBf16, tokens, {32}, kHidden, Dtype::kF32);
    bench.linear("router bf16 f32", Kind::kBf16, tokens, {kExperts}, kHidden, Dtype::kF32);
    bench.experts("experts gate_up nvfp4", Kind::kNvfp4, tokens, 2, kExpertWidth, kHidden);
    bench.experts("experts down nvfp4", Kind::kNvfp4, tokens, 1, kHidden, kExpertWidth);
    bench.experts("experts gate_up w4a4", Kind::kW4a4, tokens, 2, kExpertWidth, kHidden);
    bench.experts("experts down w4a4", Kind::kW4a4, tokens, 1, kHidden, kExpertWidth);
    bench.linear("shared gate_up nvfp4", Kind::kNvfp4, tokens, {kExpertWidth, kExpertWidth}, kHidden);
    bench.linear("shared down nvfp4", Kind::kNvfp4, tokens, {kHidden}, kExpertWidth);
    bench.linear("shared gate_up w4a4", Kind::kW4a4, tokens, {kExpertWidth, kExpertWidth}, kHidden);
    bench.linear("shared down w4a4", Kind::kW4a4, tokens, {kHidden}, kExpertWidth);
    bench.linear("dense gate_up nvfp4", Kind::kNvfp4, tokens, {kDenseWidth, kDenseWidth}, kHidden);
    bench.linear("dense down nvfp4", Kind::kNvfp4, tokens, {kHidden}, kDenseWidth);
    bench.linear("dense gate_up w4a4", Kind::kW4a4, tokens, {kDenseWidth, kDenseWidth}, kHidden);
    bench.linear("dense gate_up fp8", Kind::kFp8, tokens, {kDenseWidth, kDenseWidth}, kHidden);
    if (tokens < kPrefill) bench.linear("lm_head bf16", Kind::kBf16, tokens, {kVocabulary}, kHidden);
  }
}

}  // namespace
}  // namespace faultline

// Arguments: numbers of tokens; by default those of decode and prefill.
int main(int argc, char** argv) {
  std::vector<int64_t> counts;
  for (int i = 1; i < argc; ++i) counts.push_back(std::atoll(argv[i]));
  if (counts.empty()) counts = {1, 16, faultline::kPrefill};
  faultline::run(counts);
  return 0;
}
