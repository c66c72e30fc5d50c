// The kernels of what works row by row, of caches and of batches on a GPU: each build against the spec reference and
// the kernel on the CPU. Attention, routing and sampling have files of their own.
#include <algorithm>

#include "gpu_twin.h"
#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;

namespace {

// Random values of any float type that a checkpoint may hold.
Tensor stored_values(Random& random, Dtype dtype, std::initializer_list<int64_t> shape) {
  if (dtype != Dtype::kF16) return random.values(dtype, shape);
  Tensor halves(dtype, shape);
  for (int64_t i = 0; i < halves.view().elements(); ++i)
    halves.view().as<F16>()[i] = F16{static_cast<uint16_t>(random.below(2) * 0x8000 + random.below(0x4400))};
  return halves;
}

Tensor distinct_slots(Random& random, int64_t rows, int64_t slots) {
  std::vector<int32_t> all = random.shuffled(slots);
  return integers({rows}, {all.begin(), all.begin() + rows});
}

}  // namespace

TEST_CASE("prepare on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  using P = ops::Prepare;
  Random random(1);
  const int64_t columns = 300;
  Tensor req_to_token(Dtype::kI32, {5, columns});
  for (int64_t i = 0; i < 5 * columns; ++i) req_to_token.view().store_index(i, random.below(100000));
  const Tensor req_pool = integers({3}, {4, 0, 2});
  const Tensor seq_lens = integers({3}, {129, 300, 2});
  const Tensor starts = integers({4}, {0, 70, 71, 73});
  std::vector<Tensor> outs;
  for (int i = 0; i < 3; ++i) outs.emplace_back(Dtype::kI32, std::initializer_list<int64_t>{73});
  outs.emplace_back(Dtype::kI32, std::initializer_list<int64_t>{3, columns});
  outs.emplace_back(Dtype::kI32, std::initializer_list<int64_t>{73});
  outs.emplace_back(Dtype::kI32, std::initializer_list<int64_t>{3 * columns});
  OpHarness op(P::kName);
  op.add(req_to_token).add(req_pool).add(seq_lens).add(starts);
  std::vector<std::pair<int, Tensor*>> outputs;
  for (size_t i = 0; i < outs.size(); ++i) {
    poison(outs[i]);
    op.add(outs[i]);
    outputs.emplace_back(P::kPositions + static_cast<int>(i), &outs[i]);
  }
  const Tensor live = integers({1}, {2});
  op.add(live);
  require_gpu_agreement(*device, op, P::kName, "prepare", outputs);
}

TEST_CASE("copies, sums and activations on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(2);
  for (const Dtype dtype : kActivations)
    for (const int64_t rows : {0, 1, 7, 65})
      for (const int64_t columns : {1, 48, 200, 2048, 6144}) {
        if (rows == 65 && columns == 6144) continue;
        Tensor out(dtype, {rows, columns});
        poison(out);
        const Tensor a = random.values(dtype, {rows, columns});
        const Tensor b = random.values(dtype, {rows, columns});
        OpHarness add(ops::Add::kName);
        add.add(a).add(b).add(out);
        require_gpu_agreement(*device, add, ops::Add::kName, "add", {{ops::Add::kOut, &out}});

        const Tensor both = random.values(dtype, {rows, 2 * columns}, 3);
        OpHarness silu(ops::SiluMul::kName);
        silu.add(both).add(out);
        require_gpu_agreement(*device, silu, ops::SiluMul::kName, "silu_and_mul", {{ops::SiluMul::kOut, &out}});

        const Tensor table = random.values(dtype, {9, columns});
        Tensor ids(Dtype::kI32, {rows});
        for (int64_t r = 0; r < rows; ++r) ids.view().store_index(r, random.below(9));
        OpHarness gather(ops::GatherRows::kName);
        gather.add(table).add(ids).add(out);
        require_gpu_agreement(*device, gather, ops::GatherRows::kName, "gather_rows", {{ops::GatherRows::kOut, &out}});
        for (const Dtype stored : {Dtype::kBF16, Dtype::kF16, Dtype::kF32}) {
          const Tensor weights = stored_values(random, stored, {9, columns});
          OpHarness embed(ops::Embed::kName);
          embed.add(ids).add(weights).add(out);
          require_gpu_agreement(*device, embed, ops::Embed::kName, "embed", {{ops::Embed::kOut, &out}});
        }
      }
}

TEST_CASE("norms on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(3);
  for (const Dtype dtype : kActivations)
    for (const Dtype stored : {Dtype::kBF16, Dtype::kF32, Dtype::kF16})
      for (const int64_t rows : {0, 1, 65})
        for (const int64_t columns : {1, 48, 128, 512, 2048, 6144}) {
          const Tensor x = random.values(dtype, {rows, columns}, 3);
          const Tensor weight = stored_values(random, stored, {columns});
          const Tensor bias = stored_values(random, stored, {columns});
          Tensor out(dtype, {rows, columns});
          poison(out);
          OpHarness rms(ops::RmsNorm::kName);
          rms.add(x).add(weight).add(out).attributes().set("eps", 1e-5);
          require_gpu_agreement(*device, rms, ops::RmsNorm::kName, "rmsnorm", {{ops::RmsNorm::kOut, &out}});
          OpHarness layer(ops::LayerNorm::kName);
          layer.add(x).add(weight).add(bias).add(out).attributes().set("eps", 1e-6);
          require_gpu_agreement(*device, layer, ops::LayerNorm::kName, "layernorm", {{ops::LayerNorm::kOut, &out}});
        }
}

TEST_CASE("norms and rotary embedding of columns of a wider tensor on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(4);
  const int64_t rows = 5;
  const Tensor kv = random.values(Dtype::kBF16, {rows, 576});
  const Tensor weight = random.values(Dtype::kBF16, {512});
  const auto check = [&](OpHarness& op, const std::string& kind, const std::string& kernel, int operand,
                         const TensorView& target, int64_t live) {
    op.run_model();
    for (const GpuBuild build : kEveryGpuBuild) {
      GpuCall call(*device, op.call());
      REQUIRE(!find_kernel(kind, kernel)->run(call.call(build)));
      REQUIRE(!device->wait());
      Tensor got(Dtype::kBF16, {target.extent()});
      call.fetch(operand, got);
      const Tolerance tolerance = tolerance_for(kind, Dtype::kBF16);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < live; ++c) {
          const int64_t at = target.offset(r) + c;
          CHECK(std::abs(got.at(at) - target.load(at)) <= tolerance.atol + tolerance.rtol * std::abs(target.load(at)));
        }
    }
  };
  Tensor rows_out(Dtype::kBF16, {rows, 576});
  const TensorView latent = slice_last(rows_out.view(), 0, 512);
  OpHarness norm(ops::RmsNorm::kName);
  norm.add_list({slice_last(kv.view(), 0, 512)}).add(weight).add_list({latent}).attributes().set("eps", 1e-5);
  check(norm, ops::RmsNorm::kName, "rmsnorm", ops::RmsNorm::kOut, latent, 512);
  const TensorView rope = split_last(slice_last(rows_out.view(), 512, 64), 1, 64);
  OpHarness rotate(ops::Rope::kName);
  const Tensor positions = integers({rows}, {0, 1, 17, 4095, 200000});
  rotate.add_list({split_last(slice_last(kv.view(), 512, 64), 1, 64)}).add(positions).add_list({rope});
  rotate.attributes().set("theta", 1e6).set("rope_dim", 64).set("interleaved", true).set("enabled", true);
  check(rotate, ops::Rope::kName, "rope", ops::Rope::kOut, rope, 64);
}

TEST_CASE("rotary embedding on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(5);
  struct Shape {
    int64_t heads, dim, rope_dim;
  };
  for (const Dtype dtype : kActivations)
    for (const Shape shape : {Shape{64, 64, 64}, Shape{32, 128, 64}, Shape{1, 128, 64}, Shape{3, 20, 12}})
      for (const int64_t tokens : {0, 1, 6})
        for (const bool interleaved : {true, false})
          for (const bool enabled : {true, false}) {
            const Tensor x = random.values(dtype, {tokens, shape.heads, shape.dim});
            Tensor positions(Dtype::kI32, {tokens});
            for (int64_t t = 0; t < tokens; ++t) positions.view().store_index(t, t < 2 ? t : random.below(200000));
            Tensor out(dtype, {tokens, shape.heads, shape.dim});
            poison(out);
            OpHarness op(ops::Rope::kName);
            op.add(x).add(positions).add(out);
            op.attributes().set("theta", 1e6).set("rope_dim", shape.rope_dim);
            op.attributes().set("interleaved", interleaved).set("enabled", enabled);
            require_gpu_agreement(*device, op, ops::Rope::kName, "rope", {{ops::Rope::kOut, &out}});
          }
}

TEST_CASE("the FP4 quantiser on a GPU gives the reference's bytes", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(6);
  using Q = ops::QuantizeFp4;
  std::vector<Tensor> scalars;
  for (int i = 0; i < 513; ++i)
    scalars.push_back(scalar(0.001f + 0.003f * static_cast<float>(random.below(1000)) / 999));
  for (const Dtype dtype : kActivations)
    for (const int64_t rows : {0, 1, 129})
      for (const int64_t columns : {16, 80, 2048})
        for (const size_t count : {size_t{1}, size_t{2}, scalars.size()}) {
          Tensor x = random.values(dtype, {rows, columns}, 3);
          if (rows == 129)
            for (int64_t i = 0; i < 40; ++i)
              x.view().store(random.below(rows * columns), i < 10 ? kNan : i < 20 ? -INFINITY : i < 30 ? 1e30f : 0.0f);
          std::vector<TensorView> list = views_of(scalars);
          list.resize(count);
          if (rows == 1) std::rotate(list.begin(), list.end() - 1, list.end());  // at no regular distances
          Tensor codes(Dtype::kU8, {rows, columns / 2});
          Tensor scales(Dtype::kF8E4M3, {rows, columns / 16});
          poison(codes);
          poison(scales);
          OpHarness op(Q::kName);
          op.add(x).add_list(list).add(codes).add(scales);
          require_gpu_agreement(*device, op, Q::kName, "fp4_quantize", {{Q::kCodes, &codes}, {Q::kScales, &scales}});
        }
  // An input scale of 0 is not guarded; a NaN among the scales wins.
  for (const float value : {0.0f, kNan}) {
    const Tensor x = random.values(Dtype::kBF16, {2, 32});
    const Tensor bad = scalar(value);
    Tensor codes(Dtype::kU8, {2, 16});
    Tensor scales(Dtype::kF8E4M3, {2, 2});
    OpHarness op(Q::kName);
    op.add(x).add_list({bad.view(), bad.view()}).add(codes).add(scales);
    require_gpu_agreement(*device, op, Q::kName, "fp4_quantize", {{Q::kCodes, &codes}, {Q::kScales, &scales}});
  }
}

TEST_CASE("cache writers, gathers and the pool's packer on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(7);
  struct Writer {
    const char* kernel;
    Format format;
  };
  constexpr Writer kWriters[] = {{"store_kv", Format::kKvF32},
                                 {"store_kv", Format::kKvBf16},
                                 {"quantize_k_cache", Format::kKvPacked},
                                 {"store_kv_fp8", Format::kKvPlainFp8},
                                 {"store_index_k", Format::kIndexF32},
                                 {"store_index_k", Format::kIndexFp8}};
  for (const Writer& writer : kWriters)
    for (const Dtype dtype : kActivations)
      for (const bool real : {false, true})
        for (const int64_t rows : {0, 1, 63, 65})
          for (const bool floorless : {true, false}) {
            const bool index = writer.format == Format::kIndexF32 || writer.format == Format::kIndexFp8;
            const CacheGeometry geometry =
                geometry_of(writer.format, 128, real ? (index ? 128 : 512) : 32, index ? 0 : (real ? 64 : 16));
            Tensor x = random.values(dtype, {rows, geometry.width()}, 5);
            if (rows > 1)
              for (int64_t c = 0; c < geometry.latent; ++c) x.view().store(geometry.width() + c, 0);
            const Tensor slots = distinct_slots(random, rows, geometry.slots);
            Tensor pool(Dtype::kU8, {geometry.total_bytes()});
            pool.fill(0x3C);
            OpHarness op(ops::CacheWrite::kName);
            op.add(x).add(slots).add_cache(pool, geometry).attributes().set("floorless", floorless);
            INFO(format_name(writer.format) << " " << rows << " " << real);
            require_gpu_agreement(*device, op, ops::CacheWrite::kName, writer.kernel,
                                  {{ops::CacheWrite::kCache, &pool}});
          }
  for (const Format format : {Format::kKvF32, Format::kKvBf16, Format::kKvPacked, Format::kKvPlainFp8})
    for (const Dtype dtype : kActivations)
      for (const bool real : {false, true}) {
        const CacheGeometry geometry = geometry_of(format, 128, real ? 512 : 32, real ? 64 : 16);
        const Tensor pool = random_pool(geometry, random);
        const Tensor slots = distinct_slots(random, 100, 128);
        const Tensor lens = integers({2}, {65, 30});
        Tensor out(dtype, {100, geometry.width()});
        out.fill(0x42);
        OpHarness op(ops::CacheGather::kName);
        op.add_cache(pool, geometry).add(slots).add(lens).add(out);
        require_gpu_agreement(*device, op, ops::CacheGather::kName, "dequantize_k_cache_paged",
                              {{ops::CacheGather::kOut, &out}});
        if (format != Format::kKvF32 && format != Format::kKvBf16) continue;
        const CacheGeometry to = geometry_of(Format::kKvPacked, 128, geometry.latent, geometry.rope);
        Tensor packed(Dtype::kU8, {to.total_bytes()});
        poison(packed);
        OpHarness pack(ops::CacheRequantize::kName);
        pack.add_cache(pool, geometry).add(slots).add(lens).add_cache(packed, to);
        require_gpu_agreement(*device, pack, ops::CacheRequantize::kName, "quantize_k_cache",
                              {{ops::CacheRequantize::kPacked, &packed}});
      }
}

TEST_CASE("a bad index on a GPU is recorded with block and thread, its write dropped", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(34);
  const Tensor x = random.values(Dtype::kBF16, {3, 100});
  const Tensor rows = integers({2}, {1, 7});
  Tensor out(Dtype::kBF16, {2, 100});
  OpHarness op(ops::GatherRows::kName);
  op.add(x).add(rows).add(out);
  const GpuRun run = run_on_gpu(*device, op, ops::GatherRows::kName, "gather_rows", GpuBuild::kChecked,
                                {{ops::GatherRows::kOut, &out}});
  CHECK(run.log.count == 100);
  for (int i = 0; i < kernels::AccessLog::kCapacity; ++i) {
    const kernels::BadAccess& bad = run.log.first[i];
    CHECK(bad.operand == ops::GatherRows::kX);
    CHECK(bad.is_write == kernels::kBadRead);
    CHECK(bad.extent == 300);
    CHECK(bad.index / 100 == 7);
    CHECK(bad.block == 1);
    CHECK(bad.index % 100 % 128 == bad.thread);
  }
  for (int64_t c = 0; c < 100; ++c) {
    CHECK(out.at(c) == x.at(100 + c));
    CHECK(std::isnan(out.at(100 + c)));
  }

  const CacheGeometry geometry = geometry_of(Format::kKvBf16, 64, 32, 16);
  const Tensor values = random.values(Dtype::kBF16, {2, 48});
  const Tensor slots = integers({2}, {64, 5});
  Tensor pool(Dtype::kU8, {geometry.total_bytes()});
  pool.fill(0x3C);
  const Tensor before(pool);
  OpHarness write(ops::CacheWrite::kName);
  write.add(values).add(slots).add_cache(pool, geometry);
  const GpuRun dropped = run_on_gpu(*device, write, ops::CacheWrite::kName, "store_kv", GpuBuild::kChecked,
                                    {{ops::CacheWrite::kCache, &pool}});
  CHECK(dropped.log.count == 48);
  CHECK(dropped.log.first[0].operand == ops::CacheWrite::kCache);
  CHECK(dropped.log.first[0].is_write == kernels::kBadWrite);
  CHECK(dropped.log.first[0].block == 0);
  for (int64_t i = 0; i < geometry.total_bytes(); ++i)
    if (i / geometry.row_bytes() != 5) CHECK(pool.view().as<uint8_t>()[i] == before.view().as<uint8_t>()[i]);
}

TEST_CASE("launches that overlap keep their order, eagerly and in a captured graph", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  constexpr int64_t kRows = 3;
  constexpr int64_t kColumns = 6144;
  constexpr int kSteps = 60;
  Random random(40);
  // x = norm(x + y), sixty times over the same three buffers, with a copy among them.
  const Tensor start = random.values(Dtype::kBF16, {kRows, kColumns});
  const Tensor y = random.values(Dtype::kBF16, {kRows, kColumns});
  const Tensor weight = random.values(Dtype::kBF16, {kColumns});
  Tensor x(start);
  Tensor sum(Dtype::kBF16, {kRows, kColumns});
  OpHarness add(ops::Add::kName);
  add.add(x).add(y).add(sum);
  OpHarness norm(ops::RmsNorm::kName);
  norm.add(sum).add(weight).add(x).attributes().set("eps", 1e-5);
  const size_t bytes = x.bytes();
  const auto buffer = [&](const Tensor& tensor) {
    auto allocated = device->allocate(tensor.bytes());
    REQUIRE(allocated);
    device->copy((*allocated)->data(), tensor.view().data, tensor.bytes());
    return std::move(*allocated);
  };
  const auto gpu_start = buffer(start);
  const auto gpu_x = buffer(x);
  const auto gpu_sum = buffer(sum);
  const auto gpu_y = buffer(y);
  const auto gpu_weight = buffer(weight);
  const auto on = [](const Tensor& tensor, const std::unique_ptr<Buffer>& memory) {
    TensorView view = tensor.view();
    view.data = memory->data();
    return view;
  };
  const auto run = [&](bool plain) {
    const auto launch = [&](const OpHarness& op, const char* kind, const char* kernel, std::vector<TensorView> views) {
      std::vector<Argument> arguments(views.size());
      for (size_t i = 0; i < views.size(); ++i) arguments[i].views = std::span<const TensorView>(&views[i], 1);
      OpCall call = op.call();
      call.arguments = arguments;
      call.launch.cuda = true;
      call.launch.stream = device->stream();
      call.launch.plain = plain;
      REQUIRE(!find_kernel(kind, kernel)->run(call));
    };
    device->copy_async(gpu_x->data(), gpu_start->data(), bytes);
    for (int step = 0; step < kSteps; ++step) {
      launch(add, ops::Add::kName, "add", {on(x, gpu_x), on(y, gpu_y), on(sum, gpu_sum)});
      launch(norm, ops::RmsNorm::kName, "rmsnorm", {on(sum, gpu_sum), on(weight, gpu_weight), on(x, gpu_x)});
      if (step == kSteps / 2) device->copy_async(gpu_x->data(), gpu_start->data(), bytes);
    }
  };
  const auto fetch = [&] {
    REQUIRE(!device->wait());
    REQUIRE(kernels::take_launch_error() == nullptr);
    Tensor got(x);
    device->copy(got.view().data, gpu_x->data(), bytes);
    return got;
  };
  for (const bool plain : {false, true}) {
    run(plain);
    const Tensor eager = fetch();
    REQUIRE(device->begin_capture());
    run(plain);
    auto graph = device->end_capture();
    REQUIRE(graph);
    for (int replay = 0; replay < 5; ++replay) {
      REQUIRE(device->launch(**graph));
      CHECK(fetch().same_bytes(eager));
    }
    for (int step = 0; step < kSteps; ++step) {
      if (step == 0 || step == kSteps / 2 + 1) std::memcpy(x.view().data, start.view().data, bytes);
      REQUIRE(!add.run("add"));
      REQUIRE(!norm.run("rmsnorm"));
    }
    double error = 0;
    double size = 0;
    for (int64_t i = 0; i < x.view().elements(); ++i) {
      error += std::pow(static_cast<double>(eager.at(i)) - x.at(i), 2);
      size += std::pow(static_cast<double>(x.at(i)), 2);
    }
    CHECK(error <= 1e-3 * size);
  }
}
