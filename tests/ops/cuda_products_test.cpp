// The products on a GPU against the same call on the host (the CPU twin, which its own tests hold to the references),
// and against the model reference where the twin is the same arithmetic.
#include "gpu_testing.h"
#include "kernels/cublaslt.h"
#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;
using ops::BatchedLinear;
using ops::ExpertLinear;
using ops::ExpertLinearW4A4;
using ops::Linear;
using ops::LinearW4A4;

namespace {

constexpr uint8_t kPoison = 0xFF;  // NaN in every float format

// A host call's tensors on a device, at the same alignment, and its output back.
class OnDevice {
 public:
  OnDevice(Device& device, const OpCall& host, int out) : device_(device), host_(host), out_(out) {
    for (const Argument& argument : host.arguments) {
      std::vector<TensorView> views;
      for (const TensorView& view : argument.views) views.push_back(mirror(view));
      if (argument.geometry != nullptr)
        arguments_.add(std::move(views), argument.format, *argument.geometry);
      else
        arguments_.add(std::move(views), argument.format);
    }
    poison();
  }

  OpCall call() const {
    OpCall result{arguments_.get(), host_.attributes, {}, false};
    result.launch.cuda = true;
    result.launch.stream = device_.stream();
    return result;
  }
  void poison() {
    const std::vector<std::byte> bytes(extent_bytes(out()), std::byte{kPoison});
    device_.copy(out().data, bytes.data(), bytes.size());
  }
  const TensorView& out() const { return arguments_[out_].view(); }
  // The output's bytes from its first element to its last, gaps of a strided view included.
  std::vector<std::byte> fetch() {
    REQUIRE_FALSE(device_.wait());
    const char* refused = kernels::take_launch_error();
    INFO((refused == nullptr ? "" : refused));
    REQUIRE(refused == nullptr);
    std::vector<std::byte> bytes(extent_bytes(out()));
    device_.copy(bytes.data(), out().data, bytes.size());
    for (const auto& buffer : buffers_) {
      int64_t at = 0;
      REQUIRE_FALSE(buffer->canary_broken(at));
    }
    return bytes;
  }

 private:
  static size_t extent_bytes(const TensorView& view) {
    return static_cast<size_t>(view.extent()) * dtype_bytes(view.dtype);
  }
  TensorView mirror(const TensorView& view) {
    if (view.data == nullptr) return view;
    constexpr size_t kAlignment = 16;
    const size_t offset = reinterpret_cast<uintptr_t>(view.data) % kAlignment;
    auto buffer = device_.allocate(extent_bytes(view) + offset);
    REQUIRE(buffer);
    TensorView result = view;
    result.data = (*buffer)->data() + offset;
    device_.copy(result.data, view.data, extent_bytes(view));
    buffers_.push_back(std::move(*buffer));
    return result;
  }

  Device& device_;
  OpCall host_;
  int out_;
  ArgumentList arguments_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// Each element of the device's output lies within the table's tolerance of the host's, and nothing else was written.
void require_close(const TensorView& host, const std::vector<std::byte>& device, Tolerance tolerance) {
  TensorView other = host;
  std::vector<std::byte> bytes(device);
  other.data = bytes.data();
  int64_t inside = 0;
  for (int64_t i = 0; i < host.dim(0); ++i)
    for (int64_t j = 0; j < host.dim(1); ++j)
      for (int64_t l = 0; l < (host.rank == 3 ? host.dim(2) : 1); ++l) {
        const int64_t at = host.rank == 3 ? host.offset(i, j, l) : host.offset(i, j);
        const float expected = host.load(at);
        const float value = other.load(at);
        const double error = std::abs(static_cast<double>(value) - expected);
        if (std::isnan(expected) ? !std::isnan(value)
                                 : !(error <= tolerance.atol + tolerance.rtol * std::abs(expected)))
          FAIL("row " << i << ", column " << j << ", " << l << ": " << value << " instead of " << expected);
        std::memset(bytes.data() + at * static_cast<int64_t>(dtype_bytes(host.dtype)), kPoison,
                    dtype_bytes(host.dtype));
        ++inside;
      }
  REQUIRE(inside == host.elements());
  for (const std::byte value : bytes)
    if (value != std::byte{kPoison}) FAIL("a gap between rows was written");
}

void require_agreement(Device& device, const OpHarness& op, const std::string& kind, const std::string& kernel, int out,
                       const TensorView& host_out) {
  REQUIRE(!op.run(kernel));
  OnDevice on(device, op.call(), out);
  REQUIRE(!find_kernel(kind, kernel)->run(on.call()));
  require_close(host_out, on.fetch(), tolerance_for(kind, host_out.dtype));
}

std::unique_ptr<Device> gpu() {
  auto device = make_cuda_device(0);
  REQUIRE(device);
  return std::move(*device);
}

// Columns [8, 8 + columns) of rows that are 24 columns longer: rows that are strided and still aligned; or 3 and 5.
TensorView inner(const Tensor& wide, int64_t columns, bool aligned) {
  return slice_last(wide.view(), aligned ? 8 : 3, columns);
}
int64_t outer(int64_t columns, bool aligned) {
  return columns + (aligned ? 24 : 5);
}

struct Shape {
  std::vector<int64_t> rows;  // of the stacked weights
  int64_t columns;
};

WeightList weights_of(Precision precision, Random& random, const Shape& shape) {
  WeightList weights(precision, random, {}, shape.columns);
  for (const int64_t n : shape.rows) weights.add(random, n, shape.columns);
  return weights;
}

int64_t total(const std::vector<int64_t>& rows) {
  int64_t sum = 0;
  for (const int64_t n : rows) sum += n;
  return sum;
}

void check_linear(Device& device, Random& random, Precision precision, const Shape& shape, int64_t tokens, Dtype x_type,
                  Dtype out_type, bool aligned) {
  CAPTURE(static_cast<int>(precision), shape.columns, shape.rows, tokens, dtype_name(x_type), dtype_name(out_type),
          aligned);
  const WeightList weights = weights_of(precision, random, shape);
  const Tensor x = random.values(x_type, {tokens, outer(shape.columns, aligned)});
  const Tensor out(out_type, {tokens, outer(total(shape.rows), aligned)});
  const TensorView out_view = inner(out, total(shape.rows), aligned);
  OpHarness op(Linear::kName);
  op.add_list({inner(x, shape.columns, aligned)});
  weights.add_to(op);
  op.add_list({out_view});
  require_agreement(device, op, Linear::kName, weights.kernel(), Linear::kOut, out_view);
}

constexpr int64_t kEveryCount[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200};

constexpr int64_t kExperts = 19;

// Rows of tokens sorted by expert, as moe_align does it; every third expert never has one.
struct Routing {
  Tensor order;
  Tensor offsets{Dtype::kI32, {kExperts + 1}};

  Routing(int64_t tokens, int64_t k, Random& random, bool one_expert) : order(Dtype::kI32, {tokens * k}) {
    Tensor ids(Dtype::kI32, {tokens, k});
    for (int64_t i = 0; i < tokens * k; ++i)
      ids.view().store_index(i, one_expert ? 5 : random.below(kExperts / 3) * 3 + random.below(2));
    OpHarness op(ops::MoePermute::kName);
    op.add(ids).add(order).add(offsets);
    REQUIRE(!op.run("moe_align"));
  }
};

void set_experts(OpHarness& op, int64_t k, int64_t stacked, bool x_per_token) {
  op.attributes().set("k", k).set("stacked", stacked).set("x_per_token", x_per_token);
}

WeightList expert_weights(Precision precision, Random& random, int64_t stacked, int64_t rows, int64_t columns) {
  WeightList weights(precision, random, {}, columns);
  for (int64_t i = 0; i < kExperts * stacked; ++i) weights.add(random, rows, columns);
  return weights;
}

}  // namespace

TEST_CASE("linear on a GPU agrees with the host, for every precision, dtype and number of rows", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(11);
  const Shape shapes[] = {{{40, 100}, 256}, {{7}, 48}, {{300, 33}, 544}};
  for (const Precision precision : kEveryPrecision)
    for (const Shape& shape : shapes)
      for (const int64_t tokens : kEveryCount) {
        check_linear(*device, random, precision, shape, tokens, Dtype::kBF16, Dtype::kBF16, true);
        check_linear(*device, random, precision, shape, tokens, Dtype::kBF16, Dtype::kF32, true);
      }
  for (const Precision precision : kEveryPrecision)
    for (const int64_t tokens : {1, 65}) {
      check_linear(*device, random, precision, shapes[0], tokens, Dtype::kF32, Dtype::kF32, true);
      check_linear(*device, random, precision, shapes[0], tokens, Dtype::kF32, Dtype::kBF16, true);
      check_linear(*device, random, precision, shapes[0], tokens, Dtype::kBF16, Dtype::kBF16, false);
      check_linear(*device, random, precision, shapes[0], tokens, Dtype::kF32, Dtype::kF32, false);
    }
}

TEST_CASE("linear on a GPU takes columns that are no whole number of tiles, and odd ones", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(12);
  for (const Precision precision : {Precision::kF32, Precision::kBf16, Precision::kF16, Precision::kFp8Blocks})
    for (const int64_t columns : {1, 33, 129, 200})
      for (const int64_t tokens : {1, 20, 70})
        check_linear(*device, random, precision, {{65}, columns}, tokens, Dtype::kBF16, Dtype::kBF16, true);
  for (const int64_t columns : {16, 32, 96, 272, 1056})
    for (const int64_t tokens : {1, 20, 70, 150})
      check_linear(*device, random, Precision::kNvfp4, {{65}, columns}, tokens, Dtype::kBF16, Dtype::kBF16, true);
}

TEST_CASE("linear on a GPU shares long sums over clusters and many tiles", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(13);
  for (const Precision precision : {Precision::kBf16, Precision::kFp8Scaled, Precision::kNvfp4})
    for (const int64_t tokens : {1, 8, 16, 40, 300})
      for (const Shape& shape : {Shape{{576}, 6144}, Shape{{32}, 6144}, Shape{{1000, 24, 300, 40, 64}, 2048}})
        check_linear(*device, random, precision, shape, tokens, Dtype::kBF16,
                     shape.rows[0] == 32 ? Dtype::kF32 : Dtype::kBF16, true);
}

TEST_CASE("the W4A4 product on a GPU agrees with the host and with its spec reference", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(14);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const Shape& shape : {Shape{{40, 100}, 256}, Shape{{7}, 48}, Shape{{64, 300}, 2048}})
      for (const int64_t tokens : kEveryCount) {
        CAPTURE(dtype_name(dtype), shape.columns, tokens);
        const WeightList weights = weights_of(Precision::kNvfp4, random, shape);
        const Tensor codes = random_codes(random, tokens, shape.columns);
        const Tensor scales = random_scales(random, tokens, shape.columns);
        const Tensor small = scalar(0.0125f);
        const Tensor large = scalar(0.05f);
        const Tensor out(dtype, {tokens, total(shape.rows)});
        OpHarness op(LinearW4A4::kName);
        op.add(codes).add(scales);
        weights.add_to(op);
        op.add_list({small.view(), large.view()}).add(out);
        require_agreement(*device, op, LinearW4A4::kName, "flashinfer_cutlass", LinearW4A4::kOut, out.view());
        OnDevice on(*device, op.call(), LinearW4A4::kOut);
        REQUIRE(!find_kernel(LinearW4A4::kName, "flashinfer_cutlass")->run(on.call()));
        op.run_spec("flashinfer_cutlass");
        require_close(out.view(), on.fetch(), tolerance_for(LinearW4A4::kName, dtype));
      }
}

TEST_CASE("the W4A4 product of one row on a GPU shares long sums over clusters, and a NaN scale reaches all of it",
          "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(24);
  for (const bool spoiled : {false, true})
    for (const Shape& shape : {Shape{{32, 64}, 6144}, Shape{{33}, 1024}, Shape{{1000, 40}, 256}}) {
      CAPTURE(spoiled, shape.columns);
      const WeightList weights = weights_of(Precision::kNvfp4, random, shape);
      const Tensor codes = random_codes(random, 1, shape.columns);
      Tensor scales = random_scales(random, 1, shape.columns);
      if (spoiled) scales.view().as<uint8_t>()[shape.columns / 16 - 1] = 0x7F;
      const Tensor input_scale = scalar(0.0125f);
      const Tensor out(Dtype::kF32, {1, total(shape.rows)});
      OpHarness op(LinearW4A4::kName);
      op.add(codes).add(scales);
      weights.add_to(op);
      op.add_list({input_scale.view()}).add(out);
      require_agreement(*device, op, LinearW4A4::kName, "flashinfer_cutlass", LinearW4A4::kOut, out.view());
      CHECK(std::isnan(out.at(0)) == spoiled);
    }
}

TEST_CASE("expert products on a GPU agree with the host, idle experts and crowded ones included", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(15);
  for (const Precision precision : kEveryPrecision)
    for (const int64_t tokens : {0, 1, 16, 40, 300})
      for (const bool x_per_token : {true, false})
        for (const bool one_expert : {false, true})
          for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
            constexpr int64_t kWidth = 72, kColumns = 256, kTopK = 2;
            CAPTURE(static_cast<int>(precision), tokens, x_per_token, one_expert, dtype_name(dtype));
            const int64_t stacked = x_per_token ? 2 : 1;
            const Routing r(tokens, kTopK, random, one_expert);
            const WeightList weights = expert_weights(precision, random, stacked, kWidth, kColumns);
            const Tensor x = random.values(dtype, {x_per_token ? tokens : tokens * kTopK, kColumns});
            const Tensor out(dtype, {tokens * kTopK, stacked * kWidth});
            OpHarness op(ExpertLinear::kName);
            op.add(x).add(r.order).add(r.offsets);
            weights.add_to(op);
            op.add(out);
            set_experts(op, kTopK, stacked, x_per_token);
            require_agreement(*device, op, ExpertLinear::kName, weights.kernel(), ExpertLinear::kOut, out.view());
          }
}

TEST_CASE("the W4A4 expert products on a GPU agree with the host", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(16);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const int64_t tokens : {0, 1, 17, 300})
      for (const bool x_per_token : {true, false})
        for (const int64_t columns : {48, 256}) {
          constexpr int64_t kWidth = 40, kTopK = 3;
          CAPTURE(dtype_name(dtype), tokens, x_per_token, columns);
          const int64_t stacked = x_per_token ? 2 : 1;
          const Routing r(tokens, kTopK, random, false);
          const WeightList weights = expert_weights(Precision::kNvfp4, random, stacked, kWidth, columns);
          const int64_t x_rows = x_per_token ? tokens : tokens * kTopK;
          const Tensor codes = random_codes(random, x_rows, columns);
          const Tensor scales = random_scales(random, x_rows, columns);
          std::vector<Tensor> input_scales;
          for (int64_t i = 0; i < kExperts * stacked; ++i)
            input_scales.push_back(scalar(0.01f + 0.0001f * static_cast<float>((i * 7) % 31)));
          const Tensor out(dtype, {tokens * kTopK, stacked * kWidth});
          OpHarness op(ExpertLinearW4A4::kName);
          op.add(codes).add(scales).add(r.order).add(r.offsets);
          weights.add_to(op);
          op.add_list(views_of(input_scales)).add(out);
          set_experts(op, kTopK, stacked, x_per_token);
          require_agreement(*device, op, ExpertLinearW4A4::kName, "flashinfer_cutlass", ExpertLinearW4A4::kOut,
                            out.view());
        }
}

TEST_CASE("batched_linear on a GPU agrees with the host, both ways round and strided", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(17);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const Dtype weight_dtype : {Dtype::kBF16, Dtype::kF32})
      for (const bool kn : {true, false})
        for (const int64_t n : {136, 64, 9})
          for (const int64_t tokens : {0, 1, 5, 16, 17, 65, 130}) {
            constexpr int64_t kHeads = 3, kColumns = 48, kExtra = 16;
            CAPTURE(dtype_name(dtype), dtype_name(weight_dtype), kn, n, tokens);
            const Tensor x = random.values(dtype, {tokens, kHeads, kColumns + kExtra});
            // One head's rows lie among others, as W_UK and W_UV do in kv_b_proj.
            const Tensor w =
                random.values(weight_dtype, {kHeads, (kn ? kColumns : n) + kExtra, kn ? n : kColumns}, 0.1f);
            TensorView w_view = w.view();
            w_view.shape[1] -= kExtra;
            const Tensor out(dtype, {tokens, kHeads, n + kExtra});
            const TensorView out_view = slice_last(out.view(), 0, n);
            OpHarness op(BatchedLinear::kName);
            op.add_list({slice_last(x.view(), 0, kColumns)}).add_list({w_view}).add_list({out_view});
            op.attributes().set("weight_kn", kn);
            require_agreement(*device, op, BatchedLinear::kName, "bmm", BatchedLinear::kOut, out_view);
          }
}

TEST_CASE("a product is captured into a graph and replays on new activations", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(18);
  for (const int64_t tokens : {2, 100, 400}) {
    const WeightList weights = expert_weights(Precision::kNvfp4, random, 2, 64, 256);
    Routing r(tokens, 2, random, false);
    Tensor x = random.values(Dtype::kBF16, {tokens, 256});
    const Tensor out(Dtype::kBF16, {tokens * 2, 128});
    OpHarness op(ExpertLinear::kName);
    op.add(x).add(r.order).add(r.offsets);
    weights.add_to(op);
    op.add(out);
    set_experts(op, 2, 2, true);
    OnDevice on(*device, op.call(), ExpertLinear::kOut);
    const Kernel& kernel = *find_kernel(ExpertLinear::kName, "marlin");
    REQUIRE(!kernel.run(on.call()));
    REQUIRE_FALSE(device->wait());
    REQUIRE(device->begin_capture());
    REQUIRE(!kernel.run(on.call()));
    auto graph = device->end_capture();
    REQUIRE(graph);
    const Tensor fresh = random.values(Dtype::kBF16, {tokens, 256});
    std::memcpy(x.view().data, fresh.view().data, x.bytes());
    const Routing other(tokens, 2, random, false);
    std::memcpy(r.order.view().data, other.order.view().data, r.order.bytes());
    std::memcpy(r.offsets.view().data, other.offsets.view().data, r.offsets.bytes());
    device->copy(on.call().view(ExpertLinear::kX).data, x.view().data, x.bytes());
    device->copy(on.call().view(ExpertLinear::kOrder).data, r.order.view().data, r.order.bytes());
    device->copy(on.call().view(ExpertLinear::kOffsets).data, r.offsets.view().data, r.offsets.bytes());
    on.poison();
    REQUIRE(device->launch(**graph));
    REQUIRE(!op.run("marlin"));
    require_close(out.view(), on.fetch(), tolerance_for(ExpertLinear::kName, Dtype::kBF16));
  }
}

TEST_CASE("a product that never ran is not captured, and says so", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(19);
  const WeightList weights = expert_weights(Precision::kBf16, random, 1, 32, 64);
  const Routing r(4, 1, random, false);
  const Tensor x = random.values(Dtype::kBF16, {4, 64});
  const Tensor out(Dtype::kBF16, {4, 32});
  OpHarness op(ExpertLinear::kName);
  op.add(x).add(r.order).add(r.offsets);
  weights.add_to(op);
  op.add(out);
  set_experts(op, 1, 1, true);
  OnDevice on(*device, op.call(), ExpertLinear::kOut);
  REQUIRE(device->begin_capture());
  REQUIRE(!find_kernel(ExpertLinear::kName, "dense")->run(on.call()));
  const auto graph = device->end_capture();
  const char* refused = kernels::take_launch_error();
  REQUIRE(refused != nullptr);
  CHECK(std::string(refused).find("never run") != std::string::npos);
}

TEST_CASE("the checked expert product on a GPU records rows that do not exist and computes the others", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(20);
  for (const int64_t tokens : {4, 200, 700})
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
      const WeightList weights = expert_weights(Precision::kBf16, random, 1, 40, 64);
      const Routing r(tokens, 1, random, true);  // all of them expert 5's
      const Tensor x = random.values(dtype, {tokens, 64});
      const Tensor out(dtype, {tokens, 40});
      OpHarness op(ExpertLinear::kName);
      op.add(x).add(r.order).add(r.offsets);
      weights.add_to(op);
      op.add(out);
      set_experts(op, 1, 1, true);
      REQUIRE(!op.run("dense"));
      auto log_memory = device->allocate(sizeof(kernels::AccessLog));
      REQUIRE(log_memory);
      const auto run = [&] {
        OnDevice on(*device, op.call(), ExpertLinear::kOut);
        OpCall call = on.call();
        call.checked = true;
        call.launch.log = reinterpret_cast<kernels::AccessLog*>((*log_memory)->data());
        REQUIRE(!find_kernel(ExpertLinear::kName, "dense")->run(call));
        return on.fetch();
      };
      kernels::AccessLog log;
      const auto read_log = [&] {
        device->copy(reinterpret_cast<std::byte*>(&log), (*log_memory)->data(), sizeof log);
      };
      require_close(out.view(), run(), tolerance_for(ExpertLinear::kName, dtype));
      read_log();
      CHECK(log.count == 0);
      r.order.view().store_index(2, tokens + 5);
      const std::vector<std::byte> bytes = run();
      read_log();
      REQUIRE(log.count == 1);
      CHECK(log.first[0].operand == ExpertLinear::kOrder);
      CHECK(log.first[0].index == tokens + 5);
      CHECK(log.first[0].extent == tokens);
      CHECK(log.first[0].block == 5);
      std::memset(out.view().data + 2 * 40 * static_cast<int64_t>(dtype_bytes(dtype)), kPoison,
                  40 * dtype_bytes(dtype));
      require_close(out.view(), bytes, tolerance_for(ExpertLinear::kName, dtype));
    }
}

TEST_CASE("a NaN in a block scale, a weight or an activation stays where it belongs", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(21);
  for (const int64_t tokens : {1, 12, 40, 150}) {
    CAPTURE(tokens);
    WeightList nvfp4(Precision::kNvfp4, random, {96}, 256);
    nvfp4.scales(0).view().as<uint8_t>()[5 * 16 + 3] = 0x7F;
    WeightList fp8(Precision::kFp8, random, {96}, 256);
    fp8.values(0).view().as<uint8_t>()[70 * 256 + 9] = 0xFF;
    Tensor x = random.values(Dtype::kBF16, {tokens, 256});
    x.view().store((tokens - 1) * 256 + 77, std::nanf(""));
    const Tensor out(Dtype::kBF16, {tokens, 96});
    for (const WeightList* weights : {&nvfp4, &fp8}) {
      OpHarness op(Linear::kName);
      op.add(x);
      weights->add_to(op);
      op.add(out);
      require_agreement(*device, op, Linear::kName, weights->kernel(), Linear::kOut, out.view());
      CHECK(std::isnan(out.at((tokens - 1) * 96)));
    }
  }
}

TEST_CASE("which library serves dense products is told", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const std::string status = kernels::cublaslt_status();
  INFO(status);
  CHECK(status.find("cuBLASLt") != std::string::npos);
}
