// Times everything of a GLM-5 layer that is no matrix product, op by op on a GPU at full width: a decode step of 1 and
// 16 requests at a context of 4096, and a prefill of 4096 tokens. Microseconds are medians of replayed graphs over
// operand sets that together exceed the L2 cache; bytes are those that the op must move; the share is of the copy
// bandwidth measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "device/device.h"
#include "ops/kinds.h"
#include "ops/op.h"

using namespace faultline;

namespace {

constexpr int64_t kContext = 4096;
constexpr int64_t kTopK = 2048;
constexpr int64_t kHidden = 6144;
constexpr int64_t kHeads = 64;
constexpr int64_t kLatent = 512;
constexpr int64_t kRope = 64;
constexpr int64_t kWidth = kLatent + kRope;
constexpr int64_t kVocabulary = 154880;
constexpr int64_t kExperts = 256;
constexpr int64_t kExpertsEach = 8;
constexpr int64_t kExpertWidth = 2048;
constexpr int64_t kIndexHeads = 32;
constexpr int64_t kIndexDim = 128;
constexpr size_t kBeyondCache = 160u << 20;  // of operands, twice the L2 cache and more
constexpr size_t kMostSets = 24;
constexpr int kReplays = 7;

[[noreturn]] void die(const std::string& message) {
  fmt::print(stderr, "{}\n", message);
  std::exit(1);
}

// One set of operands of an op, in the device's memory.
class Operands {
 public:
  Operands(Device& device, uint32_t seed) : device_(device), random_(seed) {}

  TensorView values(Dtype dtype, std::initializer_list<int64_t> shape, float size = 1) {
    std::normal_distribution<float> normal(0, size);
    return filled(dtype, shape, [&](const TensorView& view, int64_t i) { view.store(i, normal(random_)); });
  }
  template <class Of>
  TensorView integers(std::initializer_list<int64_t> shape, const Of& of) {
    TensorView host = make_view(nullptr, Dtype::kI32, shape);
    std::vector<std::byte> memory(static_cast<size_t>(host.elements()) * sizeof(int32_t));
    host.data = memory.data();
    for (int64_t i = 0; i < host.elements(); ++i) host.store_index(i, of(i));
    return uploaded(host, memory);
  }
  TensorView output(Dtype dtype, std::initializer_list<int64_t> shape) {
    TensorView view = make_view(nullptr, dtype, shape);
    view.data = allocate(static_cast<size_t>(view.elements()) * dtype_bytes(dtype));
    return view;
  }
  TensorView pool(const CacheGeometry& geometry) {
    // A few hundred encoded rows, again and again: the pages of an index cache keep their scales apart.
    CacheGeometry some = geometry;
    some.slots = std::min<int64_t>(geometry.slots, 512);
    std::vector<std::byte> memory(static_cast<size_t>(geometry.total_bytes()));
    std::vector<float> row(static_cast<size_t>(geometry.width()));
    std::normal_distribution<float> normal;
    for (int64_t slot = 0; slot < some.slots; ++slot) {
      for (float& value : row) value = normal(random_);
      encode_slot(some, memory.data(), slot, row.data(), false);
    }
    const auto part = static_cast<size_t>(some.total_bytes());
    for (size_t at = part; at < memory.size(); at += part)
      std::memcpy(memory.data() + at, memory.data(), std::min(part, memory.size() - at));
    TensorView host = make_view(memory.data(), Dtype::kU8, {geometry.total_bytes()});
    return uploaded(host, memory);
  }
  std::mt19937& random() { return random_; }
  size_t bytes() const { return bytes_; }
  ArgumentList arguments;

 private:
  template <class Fill>
  TensorView filled(Dtype dtype, std::initializer_list<int64_t> shape, const Fill& fill) {
    TensorView host = make_view(nullptr, dtype, shape);
    const size_t element = dtype_bytes(dtype);
    std::vector<std::byte> memory(static_cast<size_t>(host.elements()) * element);
    host.data = memory.data();
    const int64_t some = std::min<int64_t>(host.elements(), (1 << 20) + 3);
    for (int64_t i = 0; i < some; ++i) fill(host, i);
    const size_t part = static_cast<size_t>(some) * element;
    for (size_t at = part; at < memory.size(); at += part)
      std::memcpy(memory.data() + at, memory.data(), std::min(part, memory.size() - at));
    return uploaded(host, memory);
  }
  TensorView uploaded(TensorView host, const std::vector<std::byte>& memory) {
    std::byte* data = allocate(memory.size());
    device_.copy(data, memory.data(), memory.size());
    host.data = data;
    return host;
  }
  std::byte* allocate(size_t bytes) {
    auto buffer = device_.allocate(std::max<size_t>(bytes, 1));
    if (!buffer) die(buffer.error().message);
    bytes_ += bytes;
    buffers_.push_back(std::move(*buffer));
    return buffers_.back()->data();
  }

  Device& device_;
  std::mt19937 random_;
  size_t bytes_ = 0;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// Microseconds of one run of `work`, which the graph holds `count` times: the median of some replays.
template <class Work>
double microseconds(Device& device, size_t count, const Work& work) {
  const auto check = [](const auto& result) {
    if (!result) die(result.error().message);
  };
  for (size_t i = 0; i < count; ++i) work(i);
  if (const auto fault = device.wait()) die(fault->message);
  check(device.begin_capture());
  for (size_t i = 0; i < count; ++i) work(i);
  auto graph = device.end_capture();
  check(graph);
  check(device.launch(**graph));
  if (const auto fault = device.wait()) die(fault->message);
  // Replays enough to make the host's clock exact: a launch of a graph costs some microseconds.
  std::vector<double> times;
  int launches = 1;
  for (int replay = 0; replay < kReplays; ++replay) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < launches; ++i) check(device.launch(**graph));
    if (const auto fault = device.wait()) die(fault->message);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (replay == 0) {
      launches = std::clamp(static_cast<int>(4e-3 / seconds), 1, 50);
      continue;
    }
    times.push_back(seconds / launches);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e6 / static_cast<double>(count);
}

class Table {
 public:
  explicit Table(Device& device, bool plain) : device_(device), plain_(plain) { measure_copy(); }

  void begin(const std::string& title) {
    fmt::print("\n{}\n\n| op | kernel | us | MB | of copy bandwidth | TFLOP/s |\n|---|---|---|---|---|---|\n", title);
    total_ = 0;
  }
  void end() { fmt::print("| all | | {:.1f} | | | |\n", total_); }

  // `times`: how often a layer runs it (0: not in a layer). `megaflops` as the model counts them.
  template <class Make>
  void row(const std::string& name, const char* kind, const char* kernel, double megabytes, double megaflops, int times,
           const Attributes& attributes, const Make& make) {
    std::vector<std::unique_ptr<Operands>> sets;
    size_t bytes = 0;
    while (sets.size() < kMostSets && bytes < kBeyondCache) {
      sets.push_back(std::make_unique<Operands>(device_, static_cast<uint32_t>(sets.size())));
      make(*sets.back());
      bytes += sets.back()->bytes();
    }
    const Kernel* found = find_kernel(kind, kernel);
    const size_t count = std::max<size_t>(sets.size(), 4);
    const double us = microseconds(device_, count, [&](size_t i) {
      OpCall call{sets[i % sets.size()]->arguments.get(), &attributes, {}, false};
      call.launch.cuda = true;
      call.launch.stream = device_.stream();
      call.launch.plain = plain_;
      if (const KernelResult fault = found->run(call)) die(fault->message);
      if (const char* refused = kernels::take_launch_error()) die(refused);
    });
    total_ += us * times;
    fmt::print("| {}{} | {} | {:.2f} | {:.3f} | {:.0f} % | {} |\n", name, times > 1 ? fmt::format(" (x{})", times) : "",
               kernel, us, megabytes, 100 * megabytes / us / copy_,
               megaflops > 0 ? fmt::format("{:.1f}", megaflops / us) : "");
    std::fflush(stdout);
  }

 private:
  void measure_copy() {
    constexpr size_t kBytes = 1u << 30;
    auto from = device_.allocate(kBytes);
    auto to = device_.allocate(kBytes);
    if (!from || !to) die("no memory for a copy");
    // Not in a graph, whose copies may go to a copy engine.
    constexpr int kCopies = 8;
    double best = 1e30;
    for (int i = 0; i < kReplays; ++i) {
      const auto start = std::chrono::steady_clock::now();
      for (int c = 0; c < kCopies; ++c) device_.copy_async((*to)->data(), (*from)->data(), kBytes);
      if (const auto fault = device_.wait()) die(fault->message);
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    const double us = best * 1e6 / kCopies;
    copy_ = 2.0 * kBytes / us / 1e6;  // terabytes a second, read and written
    fmt::print("{}{}\ncopy within the device: {:.2f} TB/s\n", device_.name(), plain_ ? ", single-source bodies" : "",
               copy_);
  }

  Device& device_;
  bool plain_;
  double copy_ = 0;
  double total_ = 0;
};

CacheGeometry cache(Format format, int64_t slots, bool index = false) {
  CacheGeometry geometry;
  geometry.format = format;
  geometry.slots = slots;
  geometry.latent = index ? kIndexDim : kLatent;
  geometry.rope = index ? 0 : kRope;
  return geometry;
}

constexpr double kMega = 1e6;

// Tokens of a pass: of requests with kContext keys each (decode), or of one prompt.
class Pass {
 public:
  Pass(Table& table, int64_t tokens, bool prefill)
      : table_(table),
        tokens_(tokens),
        requests_(prefill ? 1 : tokens),
        prefill_(prefill),
        slots_(requests_ * kContext) {}

  void run(bool attention_only) {
    table_.begin(prefill_ ? fmt::format("prefill, {} tokens", tokens_)
                          : fmt::format("decode, batch {}, context {}", tokens_, kContext));
    if (!attention_only) small();
    indexer(attention_only);
    attention();
    if (!attention_only) experts();
    table_.end();
    if (!attention_only && !prefill_) head();
  }

 private:
  int64_t length(int64_t token) const { return prefill_ ? token + 1 : kContext; }
  TensorView lengths(Operands& o) {
    return o.integers({tokens_}, [&](int64_t t) { return length(t); });
  }
  TensorView requests(Operands& o) {
    return o.integers({tokens_}, [&](int64_t t) { return prefill_ ? 0 : t; });
  }
  TensorView page_table(Operands& o) {
    std::vector<int32_t> slots(static_cast<size_t>(slots_));
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
    std::shuffle(slots.begin(), slots.end(), o.random());
    return o.integers({requests_, kContext}, [&](int64_t i) { return slots[static_cast<size_t>(i)]; });
  }
  TensorView selection(Operands& o) {
    std::vector<int32_t> slots(static_cast<size_t>(slots_));
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
    std::shuffle(slots.begin(), slots.end(), o.random());
    return o.integers({tokens_, kTopK}, [&](int64_t i) -> int64_t {
      const int64_t token = i / kTopK;
      if (i % kTopK >= length(token)) return -1;
      return slots[static_cast<size_t>((i * 7 + token * 131) % slots_)];
    });
  }
  double mb(double elements_a_token, double element = 2) const {
    return elements_a_token * static_cast<double>(tokens_) * element / kMega;
  }
  TensorView activation(Operands& o, int64_t width) { return o.values(Dtype::kBF16, {tokens_, width}); }

  void norm(const std::string& name, int64_t width, int times) {
    table_.row(name, ops::RmsNorm::kName, "rmsnorm", mb(2.0 * static_cast<double>(width)), 0, times,
               Attributes().set("eps", 1e-5), [&](Operands& o) {
                 o.arguments.add({activation(o, width)});
                 o.arguments.add({o.values(Dtype::kBF16, {width})});
                 o.arguments.add({o.output(Dtype::kBF16, {tokens_, width})});
               });
  }
  void rope(const std::string& name, int64_t heads, int64_t dim) {
    Attributes attributes;
    attributes.set("theta", 1e6).set("rope_dim", 64).set("interleaved", true).set("enabled", true);
    table_.row(name, ops::Rope::kName, "rope", mb(2.0 * static_cast<double>(heads * dim)), 0, 1, attributes,
               [&](Operands& o) {
                 o.arguments.add({o.values(Dtype::kBF16, {tokens_, heads, dim})});
                 o.arguments.add({o.integers({tokens_}, [&](int64_t t) { return length(t) - 1; })});
                 o.arguments.add({o.output(Dtype::kBF16, {tokens_, heads, dim})});
               });
  }
  void add(int times) {
    table_.row("residual", ops::Add::kName, "add", mb(3.0 * kHidden), 0, times, Attributes(), [&](Operands& o) {
      o.arguments.add({activation(o, kHidden)});
      o.arguments.add({activation(o, kHidden)});
      o.arguments.add({o.output(Dtype::kBF16, {tokens_, kHidden})});
    });
  }
  void write(const std::string& name, const char* kernel, const CacheGeometry& geometry, int times) {
    const double bytes = static_cast<double>(geometry.width()) * 2 + static_cast<double>(geometry.row_bytes());
    table_.row(name, ops::CacheWrite::kName, kernel, mb(bytes, 1), 0, times, Attributes().set("floorless", true),
               [&](Operands& o) {
                 o.arguments.add({activation(o, geometry.width())});
                 o.arguments.add({o.integers({tokens_}, [&](int64_t t) { return t; })});
                 o.arguments.add({o.pool(geometry)}, geometry.format, geometry);
               });
  }

  void small() {
    norm("norm of the hidden state", kHidden, 2);
    norm("norm of q_a", 2048, 1);
    norm("norm of the latent", kLatent, 1);
    rope("rope of k", 1, kRope);
    rope("rope of q", kHeads, kRope);
    add(prefill_ ? 3 : 3);
    write("kv_write", "quantize_k_cache", cache(Format::kKvPacked, slots_), 1);
    write("kv_write", "store_kv", cache(Format::kKvBf16, slots_), 0);
  }

  void indexer(bool attention_only) {
    const CacheGeometry keys = cache(Format::kIndexFp8, slots_, true);
    if (!attention_only) {
      table_.row("norm of index keys", ops::LayerNorm::kName, "layernorm", mb(2.0 * kIndexDim), 0, 1,
                 Attributes().set("eps", 1e-6), [&](Operands& o) {
                   o.arguments.add({activation(o, kIndexDim)});
                   o.arguments.add({o.values(Dtype::kBF16, {kIndexDim})});
                   o.arguments.add({o.values(Dtype::kBF16, {kIndexDim})});
                   o.arguments.add({o.output(Dtype::kBF16, {tokens_, kIndexDim})});
                 });
      rope("rope of index q", kIndexHeads, kIndexDim);
      rope("rope of index k", 1, kIndexDim);
      write("index key write", "store_index_k", keys, 1);
    }
    double pairs = 0;
    for (int64_t t = 0; t < tokens_; ++t) pairs += static_cast<double>(length(t));
    const double key_bytes = static_cast<double>(slots_) * (kIndexDim + 4);
    for (const int fp8 : {0, 1})
      table_.row(fp8 ? "index scores, FP8 queries" : "index scores", ops::IndexScores::kName, "mqa_logits",
                 (key_bytes + pairs * 4) / kMega + mb(kIndexHeads * kIndexDim),
                 pairs * 2 * kIndexHeads * kIndexDim / kMega, fp8 ? 0 : 1, Attributes().set("query_fp8", fp8),
                 [&](Operands& o) {
                   o.arguments.add({o.values(Dtype::kBF16, {tokens_, kIndexHeads, kIndexDim})});
                   o.arguments.add({o.values(Dtype::kF32, {tokens_, kIndexHeads})});
                   o.arguments.add({o.pool(keys)}, keys.format, keys);
                   o.arguments.add({page_table(o)});
                   o.arguments.add({requests(o)});
                   o.arguments.add({lengths(o)});
                   o.arguments.add({o.output(Dtype::kF32, {tokens_, kContext})});
                 });
    table_.row("top-k", ops::TopK::kName, "fast_topk", pairs * 4 / kMega + mb(kTopK, 4), 0, 1,
               Attributes().set("topk", kTopK).set("transform", 1), [&](Operands& o) {
                 o.arguments.add({o.values(Dtype::kF32, {tokens_, kContext})});
                 o.arguments.add({lengths(o)});
                 o.arguments.add({page_table(o)});
                 o.arguments.add({requests(o)});
                 o.arguments.add({TensorView{}});
                 o.arguments.add({o.output(Dtype::kI32, {tokens_, kTopK})});
               });
  }

  void attention() {
    struct Served {
      const char* kernel;
      Format format;
      bool dense;
      int times;
    };
    for (const Served& served :
         {Served{"flashmla_kv", Format::kKvPacked, false, prefill_ ? 0 : 1},
          Served{"flashmla_sparse", Format::kKvBf16, false, prefill_ ? 1 : 0},
          Served{"trtllm", Format::kKvPlainFp8, false, 0}, Served{"triton", Format::kKvBf16, true, 0}}) {
      const CacheGeometry geometry = cache(served.format, slots_);
      double pairs = 0;
      for (int64_t t = 0; t < tokens_; ++t)
        pairs += static_cast<double>(served.dense ? length(t) : std::min(length(t), kTopK));
      const double read = std::min(pairs, static_cast<double>(slots_)) * static_cast<double>(geometry.row_bytes());
      Attributes attributes;
      attributes.set("scale", 0.0625)
          .set("dense", served.dense)
          .set("index_form", 1)
          .set("topk", kTopK)
          .set("splits", 1);
      table_.row("attention", ops::Attention::kName, served.kernel,
                 read / kMega + mb(kHeads * (kWidth + kLatent)) + (served.dense ? 0 : mb(kTopK, 4)),
                 pairs * 2 * kHeads * (kWidth + kLatent) / kMega, served.times, attributes, [&](Operands& o) {
                   o.arguments.add({o.values(Dtype::kBF16, {tokens_, kHeads, kWidth}, 0.5f)});
                   o.arguments.add({o.pool(geometry)}, geometry.format, geometry);
                   o.arguments.add({served.dense ? TensorView{} : selection(o)});
                   o.arguments.add({page_table(o)});
                   o.arguments.add({requests(o)});
                   o.arguments.add({lengths(o)});
                   o.arguments.add({TensorView{}});
                   o.arguments.add({TensorView{}});
                   o.arguments.add({o.output(Dtype::kBF16, {tokens_, kHeads, kLatent})});
                 });
    }
  }

  void silu(const std::string& name, int64_t rows_each, int64_t width, int times) {
    table_.row(name, ops::SiluMul::kName, "silu_and_mul", mb(3.0 * static_cast<double>(rows_each * width)), 0, times,
               Attributes(), [&](Operands& o) {
                 o.arguments.add({o.values(Dtype::kBF16, {tokens_ * rows_each, 2 * width})});
                 o.arguments.add({o.output(Dtype::kBF16, {tokens_ * rows_each, width})});
               });
  }
  void quantize(const std::string& name, int64_t rows_each, int64_t width, int64_t scales, int times) {
    table_.row(name, ops::QuantizeFp4::kName, "fp4_quantize", mb(static_cast<double>(rows_each * width), 2.5625), 0,
               times, Attributes(), [&](Operands& o) {
                 o.arguments.add({o.values(Dtype::kBF16, {tokens_ * rows_each, width})});
                 const TensorView all = o.values(Dtype::kF32, {scales});
                 std::vector<TensorView> list;
                 for (int64_t i = 0; i < scales; ++i) list.push_back(slice_rows(all, i, 1));
                 o.arguments.add(list);
                 o.arguments.add({o.output(Dtype::kU8, {tokens_ * rows_each, width / 2})});
                 o.arguments.add({o.output(Dtype::kF8E4M3, {tokens_ * rows_each, width / 16})});
               });
  }

  void experts() {
    Attributes attributes;
    attributes.set("k", kExpertsEach).set("n_group", 1).set("topk_group", 1).set("norm_topk", true).set("scaling", 2.5);
    table_.row("router", ops::Router::kName, "moe_fused_gate", mb(kExperts + 2 * kExpertsEach, 4), 0, 1, attributes,
               [&](Operands& o) {
                 o.arguments.add({o.values(Dtype::kF32, {tokens_, kExperts})});
                 o.arguments.add({o.values(Dtype::kF32, {kExperts})});
                 o.arguments.add({o.output(Dtype::kI32, {tokens_, kExpertsEach})});
                 o.arguments.add({o.output(Dtype::kF32, {tokens_, kExpertsEach})});
               });
    table_.row("sort by expert", ops::MoePermute::kName, "moe_align", mb(2 * kExpertsEach, 4), 0, 1, Attributes(),
               [&](Operands& o) {
                 o.arguments.add({o.integers({tokens_, kExpertsEach}, [](int64_t i) {
                   return (i / kExpertsEach * 37 + i % kExpertsEach * 29 + i * i % 11) % kExperts;
                 })});
                 o.arguments.add({o.output(Dtype::kI32, {tokens_ * kExpertsEach})});
                 o.arguments.add({o.output(Dtype::kI32, {kExperts + 1})});
               });
    quantize("quantize for gate_up", 1, kHidden, 2 * kExperts, 1);
    quantize("quantize for gate_up (shared)", 1, kHidden, 2, 1);
    quantize("quantize for down", kExpertsEach, kExpertWidth, kExperts, 1);
    quantize("quantize for down (shared)", 1, kExpertWidth, 1, 1);
    silu("activation", kExpertsEach, kExpertWidth, 1);
    silu("activation (shared)", 1, kExpertWidth, 1);
    silu("activation (dense layer)", 1, 2 * kHidden, 0);
    table_.row("combine", ops::MoeCombine::kName, "moe_finalize", mb((kExpertsEach + 1) * kHidden), 0, 1, Attributes(),
               [&](Operands& o) {
                 o.arguments.add({o.values(Dtype::kBF16, {tokens_ * kExpertsEach, kHidden})});
                 o.arguments.add({o.values(Dtype::kF32, {tokens_, kExpertsEach})});
                 o.arguments.add({o.output(Dtype::kBF16, {tokens_, kHidden})});
               });
  }

  void head() {
    table_.begin(fmt::format("head, {} rows", tokens_));
    table_.row("softmax, top-p 0.95", ops::Softmax::kName, "softmax", mb(kVocabulary, 6), 0, 1,
               Attributes().set("temperature", 1.0).set("top_p", 0.95), [&](Operands& o) {
                 o.arguments.add({o.values(Dtype::kBF16, {tokens_, kVocabulary}, 2)});
                 o.arguments.add({o.output(Dtype::kF32, {tokens_, kVocabulary})});
               });
    table_.row("sample", ops::Sample::kName, "flashinfer", mb(kVocabulary, 4), 0, 1, Attributes(), [&](Operands& o) {
      o.arguments.add({o.values(Dtype::kF32, {tokens_, kVocabulary}, 1e-6f)});
      o.arguments.add({o.values(Dtype::kF32, {tokens_})});
      o.arguments.add({o.output(Dtype::kI32, {tokens_})});
    });
    table_.row("argmax", ops::Argmax::kName, "argmax", mb(kVocabulary), 0, 1, Attributes(), [&](Operands& o) {
      o.arguments.add({o.values(Dtype::kBF16, {tokens_, kVocabulary})});
      o.arguments.add({o.output(Dtype::kI32, {tokens_})});
    });
    table_.end();
  }

  Table& table_;
  int64_t tokens_;
  int64_t requests_;
  bool prefill_;
  int64_t slots_;
};

}  // namespace

// `--plain` times the single-source bodies, `--attention` the indexer and attention alone.
int main(int argc, char** argv) {
  bool plain = false;
  bool attention_only = false;
  for (int i = 1; i < argc; ++i) {
    plain = plain || std::string_view(argv[i]) == "--plain";
    attention_only = attention_only || std::string_view(argv[i]) == "--attention";
  }
  auto device = make_cuda_device(0);
  if (!device) die(device.error().message);
  Table table(**device, plain);
  Pass(table, 1, false).run(attention_only);
  Pass(table, 16, false).run(attention_only);
  Pass(table, kContext, true).run(attention_only);
  return 0;
}
