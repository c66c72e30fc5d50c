// Every own kernel but the products and attention (cuda_attention_test.cpp) on a GPU: each build against the spec
// reference and the kernel on the CPU.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "gpu_twin.h"
#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;

namespace {

constexpr Dtype kActivations[] = {Dtype::kBF16, Dtype::kF32};
const float kNan = std::nanf("");

// Random values of any float type that a checkpoint may hold.
Tensor stored_values(Random& random, Dtype dtype, std::initializer_list<int64_t> shape) {
  if (dtype != Dtype::kF16) return random.values(dtype, shape);
  Tensor halves(dtype, shape);
  for (int64_t i = 0; i < halves.view().elements(); ++i)
    halves.view().as<F16>()[i] = F16{static_cast<uint16_t>(random.below(2) * 0x8000 + random.below(0x4400))};
  return halves;
}

void poison(Tensor& tensor) {
  tensor.fill(0xFF);
}

Tensor distinct_slots(Random& random, int64_t rows, int64_t slots) {
  std::vector<int32_t> all = random.shuffled(slots);
  return integers({rows}, {all.begin(), all.begin() + rows});
}

// Scores, lengths and whatever a transform needs; token t belongs to request tokens - 1 - t.
struct Selection {
  Selection(int64_t topk_, int64_t transform, int64_t columns, const std::vector<int32_t>& lengths_of, uint32_t seed)
      : random(seed),
        topk(topk_),
        tokens(static_cast<int64_t>(lengths_of.size())),
        scores(random.values(Dtype::kF32, {tokens, columns})),
        lengths(integers({tokens}, lengths_of)),
        page_table(Dtype::kI32, {tokens, columns}),
        rows(Dtype::kI32, {tokens}),
        offsets(Dtype::kI32, {tokens}),
        out(Dtype::kI32, {tokens, topk}) {
    const std::vector<int32_t> slots = random.shuffled(columns);
    for (int64_t r = 0; r < tokens; ++r) {
      rows.view().store_index(r, tokens - 1 - r);
      offsets.view().store_index(r, 100000 * r);
      for (int64_t c = 0; c < columns; ++c)
        page_table.view().store_index(r * columns + c, slots[static_cast<size_t>(c)] + columns * r);
    }
    poison(out);
    op.add(scores).add(lengths).add(page_table).add(rows).add(offsets).add(out);
    op.attributes().set("topk", topk).set("transform", transform);
  }
  // The selection contract, and min(length, topk) different entries with -1 behind them.
  void check(const Tensor& got) {
    op.replace(ops::TopK::kOut, got);
    const auto problem = op_kind(ops::TopK::kName).selection(op.call(), tokens);
    INFO((problem ? problem->message : std::string()));
    CHECK_FALSE(problem);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t live = std::clamp<int64_t>(lengths.integer(t), 0, topk);
      std::set<int64_t> entries;
      bool tail = true;
      for (int64_t i = 0; i < topk; ++i) {
        if (i < live)
          entries.insert(got.integer(t * topk + i));
        else
          tail = tail && got.integer(t * topk + i) == -1;
      }
      CHECK(static_cast<int64_t>(entries.size()) == live);
      CHECK(tail);
    }
    op.replace(ops::TopK::kOut, out);
  }
  Tensor run(Device& device, GpuBuild build) {
    Tensor got(out);
    CHECK(run_on_gpu(device, op, ops::TopK::kName, "fast_topk", build, {{ops::TopK::kOut, &got}}).log.count == 0);
    return got;
  }

  Random random;
  int64_t topk;
  int64_t tokens;
  Tensor scores, lengths, page_table, rows, offsets, out;
  OpHarness op{ops::TopK::kName};
};

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

TEST_CASE("index scores on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  using S = ops::IndexScores;
  constexpr int64_t kSlots = 512;
  constexpr int64_t kColumns = 300;
  struct Shape {
    int64_t heads, dim;
  };
  uint32_t seed = 8;
  for (const Format format : {Format::kIndexFp8, Format::kIndexF32})
    for (const Dtype dtype : kActivations)
      for (const Shape shape : {Shape{32, 128}, Shape{16, 32}, Shape{64, 128}})
        for (const std::vector<int32_t>& lengths_of :
             {std::vector<int32_t>{}, {100}, {1, 63, 64, 65, 0, 300, 128, 129, 7, 299, 300, 64, 2, 3, 4, 5, 6, 250}})
          for (const bool prefill : {false, true}) {
            Random random(seed++);
            const auto tokens = static_cast<int64_t>(lengths_of.size());
            const CacheGeometry geometry = geometry_of(format, kSlots, shape.dim, 0);
            const Tensor q = random.values(dtype, {tokens, shape.heads, shape.dim});
            const Tensor weights = random.values(Dtype::kF32, {tokens, shape.heads});
            const Tensor pool = random_pool(geometry, random);
            Tensor page_table(Dtype::kI32, {tokens + 1, kColumns});
            for (int64_t r = 0; r <= tokens; ++r) {
              const std::vector<int32_t> slots = random.shuffled(kSlots);
              for (int64_t c = 0; c < kColumns; ++c)
                page_table.view().store_index(r * kColumns + c, slots[static_cast<size_t>(c)]);
            }
            Tensor rows(Dtype::kI32, {tokens});
            // Requests of one token each, or three that share the tokens.
            for (int64_t t = 0; t < tokens; ++t) rows.view().store_index(t, prefill ? t / 7 : tokens - t);
            const Tensor lengths = integers({tokens}, lengths_of);
            Tensor out(Dtype::kF32, {tokens, kColumns});
            for (int64_t i = 0; i < out.view().elements(); ++i) out.view().store(i, 77);
            OpHarness op(S::kName);
            op.add(q).add(weights).add_cache(pool, geometry).add(page_table).add(rows).add(lengths).add(out);
            INFO(format_name(format) << " " << shape.heads << " " << tokens);
            require_gpu_agreement(*device, op, S::kName, "mqa_logits", {{S::kOut, &out}});
            if (tokens < 2) continue;

            // A NaN key is a NaN score and harms no other; a slot past the pool is recorded by the checked build.
            const int64_t spoiled = page_table.integer(rows.integer(5) * kColumns + 33);
            const int64_t at = slot_bytes(geometry, spoiled)[0].begin;
            for (int64_t i = 0; i < 4; ++i) pool.view().as<uint8_t>()[at + i] = 0x7F;
            if (format == Format::kIndexF32) pool.view().as<uint8_t>()[at + 2] = 0xFF;
            for (const GpuBuild build : kEveryGpuBuild) {
              Tensor got(out);
              run_on_gpu(*device, op, S::kName, "mqa_logits", build, {{S::kOut, &got}});
              bool right = true;
              for (int64_t c = 0; c < kColumns; ++c)
                right = right && std::isnan(got.at(5 * kColumns + c)) ==
                                     (page_table.integer(rows.integer(5) * kColumns + c) == spoiled);
              CHECK(right);
            }
            page_table.view().store_index(rows.integer(5) * kColumns + 34, kSlots + 3);
            Tensor got(out);
            const GpuRun run = run_on_gpu(*device, op, S::kName, "mqa_logits", GpuBuild::kChecked, {{S::kOut, &got}});
            CHECK(run.log.count > 0);
            CHECK(run.log.first[0].operand == S::kCache);
            CHECK(run.log.first[0].extent == geometry.total_bytes());
            CHECK(std::isnan(got.at(5 * kColumns + 34)));
          }
}

TEST_CASE("top-k on a GPU selects among the best, whatever the lengths", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  for (const int64_t transform : {0, 1, 2}) {
    for (const int64_t topk : {16, 100, 2048}) {
      const auto k = static_cast<int32_t>(topk);
      Selection s(topk, transform, 9000, {1, 0, k - 1, k, k + 1, k + 64, 63, 64, 65, 4096, 5000, 9000}, 20);
      for (const GpuBuild build : kEveryGpuBuild) s.check(s.run(*device, build));
      Selection none(topk, transform, 10, {}, 21);
      for (const GpuBuild build : kEveryGpuBuild) none.check(none.run(*device, build));
      Selection one(topk, transform, 4096, {4096}, 22);
      for (const GpuBuild build : kEveryGpuBuild) one.check(one.run(*device, build));
    }
  }
  // Ties, infinities and zeros of both signs.
  Selection tied(100, 0, 4096, {4096, 4000, 200, 150}, 23);
  for (int64_t i = 0; i < 4 * 4096; ++i) {
    const int64_t kind = tied.random.below(6);
    tied.scores.view().store(i, kind == 0 ? INFINITY : kind == 1 ? -INFINITY : kind == 2 ? -0.0f : 0.5f);
  }
  for (const GpuBuild build : kEveryGpuBuild) tied.check(tied.run(*device, build));
  // NaN sorts by its bits: a row of them gives k distinct keys, and other rows are not harmed.
  for (const float nan : {kNan, -kNan}) {
    Selection spoiled(16, 0, 3000, {3000, 3000}, 24);
    for (int64_t c = 0; c < 3000; ++c) spoiled.scores.view().store(c, nan);
    for (const GpuBuild build : kEveryGpuBuild) {
      const Tensor got = spoiled.run(*device, build);
      std::set<int64_t> entries;
      for (int64_t i = 0; i < 16; ++i) entries.insert(got.integer(i));
      CHECK(entries.size() == 16);
      CHECK(*entries.begin() >= 0);
      CHECK(*entries.rbegin() < 3000);
      spoiled.op.replace(ops::TopK::kOut, got);
      const auto problem = op_kind(ops::TopK::kName).selection(spoiled.op.call(), 2);
      REQUIRE(problem);
      CHECK(problem->at < 16);
      spoiled.op.replace(ops::TopK::kOut, spoiled.out);
    }
  }
  Selection past(16, 0, 40, {40}, 25);
  past.lengths.view().store_index(0, 43);
  Tensor got(past.out);
  const GpuRun run =
      run_on_gpu(*device, past.op, ops::TopK::kName, "fast_topk", GpuBuild::kChecked, {{ops::TopK::kOut, &got}});
  CHECK(run.log.count > 0);
  CHECK(run.log.first[0].operand == ops::TopK::kScores);
  CHECK(run.log.first[0].extent == 40);
  CHECK(run.log.first[0].index >= 40);
}

TEST_CASE("the router on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  using R = ops::Router;
  Random random(30);
  struct Shape {
    int64_t experts, k, groups, kept;
  };
  for (const Dtype dtype : kActivations)
    for (const Shape shape : {Shape{256, 8, 1, 1}, Shape{16, 4, 4, 2}, Shape{16, 4, 1, 1}, Shape{100, 6, 1, 1}})
      for (const int64_t rows : {0, 1, 129})
        for (const bool norm : {true, false}) {
          Tensor logits = random.values(dtype, {rows, shape.experts});
          for (int64_t e = 0; rows == 129 && e < shape.experts; ++e) {
            logits.view().store(e, kNan);                   // nothing but NaN: the lowest ids
            logits.view().store(shape.experts + e, 0.25f);  // ties: the lowest ids
            if (e % 3 == 0) logits.view().store(2 * shape.experts + e, kNan);
          }
          Tensor bias(Dtype::kF32, {shape.experts});
          for (int64_t e = 0; e < shape.experts; ++e)
            bias.view().store(e, rows == 129 ? 7.0f : 7 + 0.1f * random.normal());
          Tensor ids(Dtype::kI32, {rows, shape.k});
          Tensor weights(Dtype::kF32, {rows, shape.k});
          poison(ids);
          poison(weights);
          OpHarness op(R::kName);
          op.add(logits).add(bias).add(ids).add(weights);
          op.attributes().set("k", shape.k).set("n_group", shape.groups).set("topk_group", shape.kept);
          op.attributes().set("norm_topk", norm).set("scaling", 2.5);
          INFO(shape.experts << " " << rows);
          // Nearly equal choices may change places (exp differs in its last bits), so ids are held to the selection.
          for (const GpuBuild build : kEveryGpuBuild) {
            Tensor got_ids(ids);
            Tensor got_weights(weights);
            const GpuRun run = run_on_gpu(*device, op, R::kName, "moe_fused_gate", build,
                                          {{R::kIds, &got_ids}, {R::kWeights, &got_weights}});
            CHECK(run.log.count == 0);
            Tensor expected_ids(ids);
            Tensor expected_weights(weights);
            op.replace(R::kIds, expected_ids);
            op.replace(R::kWeights, expected_weights);
            op.run_model();
            int64_t moved = 0;
            bool close = true;
            for (int64_t i = 0; i < rows * shape.k; ++i) {
              if (got_ids.integer(i) != expected_ids.integer(i)) {
                ++moved;
                continue;
              }
              const float want = expected_weights.at(i);
              close =
                  close && (std::isnan(want) ? std::isnan(got_weights.at(i))
                                             : std::abs(got_weights.at(i) - want) <= 1e-5f * std::abs(want) + 1e-7f);
            }
            CHECK(close);
            CHECK(moved <= rows / 20);
            op.replace(R::kIds, got_ids);
            op.replace(R::kWeights, got_weights);
            if (rows < 129) CHECK_FALSE(op_kind(R::kName).selection(op.call(), rows));
            for (int64_t r = 0; r < rows; ++r) {
              std::set<int64_t> unique;
              for (int64_t j = 0; j < shape.k; ++j) unique.insert(got_ids.integer(r * shape.k + j));
              if (static_cast<int64_t>(unique.size()) != shape.k) FAIL("row " << r << " has an expert twice");
            }
          }
        }
}

TEST_CASE("sorting by expert and combining on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(31);
  struct Shape {
    int64_t tokens, k, experts;
  };
  for (const Shape shape : {Shape{0, 8, 256}, Shape{1, 8, 256}, Shape{16, 8, 256}, Shape{5, 2, 3}, Shape{129, 4, 16},
                            Shape{4096, 8, 256}, Shape{777, 6, 100}}) {
    Tensor ids(Dtype::kI32, {shape.tokens, shape.k});
    for (int64_t t = 0; t < shape.tokens; ++t) {
      const int64_t first = random.below(shape.experts);
      for (int64_t j = 0; j < shape.k; ++j) ids.view().store_index(t * shape.k + j, (first + j * j) % shape.experts);
    }
    Tensor order(Dtype::kI32, {shape.tokens * shape.k});
    Tensor offsets(Dtype::kI32, {shape.experts + 1});
    poison(order);
    poison(offsets);
    OpHarness op(ops::MoePermute::kName);
    op.add(ids).add(order).add(offsets);
    INFO(shape.tokens << " " << shape.k << " " << shape.experts);
    require_gpu_agreement(*device, op, ops::MoePermute::kName, "moe_align",
                          {{ops::MoePermute::kOrder, &order}, {ops::MoePermute::kOffsets, &offsets}});
    if (shape.tokens < 2) continue;
    ids.view().store_index(3, shape.experts + 2);
    Tensor got_order(order);
    Tensor got_offsets(offsets);
    const GpuRun run = run_on_gpu(*device, op, ops::MoePermute::kName, "moe_align", GpuBuild::kChecked,
                                  {{ops::MoePermute::kOrder, &got_order}, {ops::MoePermute::kOffsets, &got_offsets}});
    CHECK(run.log.count > 0);
    CHECK(run.log.first[0].operand == ops::MoePermute::kIds);
    CHECK(run.log.first[0].index == shape.experts + 2);
    CHECK(run.log.first[0].extent == shape.experts);
  }
  for (const Dtype dtype : kActivations)
    for (const int64_t tokens : {0, 1, 33})
      for (const int64_t k : {1, 8, 3})
        for (const int64_t columns : {20, 512, 6144}) {
          const Tensor x = random.values(dtype, {tokens * k, columns});
          const Tensor weights = random.values(Dtype::kF32, {tokens, k});
          Tensor out(dtype, {tokens, columns});
          poison(out);
          OpHarness op(ops::MoeCombine::kName);
          op.add(x).add(weights).add(out);
          require_gpu_agreement(*device, op, ops::MoeCombine::kName, "moe_finalize", {{ops::MoeCombine::kOut, &out}});
        }
}

TEST_CASE("softmax, sampling and argmax on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  Random random(32);
  for (const Dtype dtype : kActivations)
    for (const int64_t vocabulary : {1, 3, 300, 5000, 154880})
      for (const int64_t rows : {0, 1, 3})
        for (const double top_p : {1.0, 0.95, 1e-12}) {
          const Tensor logits = random.values(dtype, {rows, vocabulary}, 3);
          Tensor probs(Dtype::kF32, {rows, vocabulary});
          poison(probs);
          OpHarness op(ops::Softmax::kName);
          op.add(logits).add(probs).attributes().set("temperature", 0.8).set("top_p", top_p);
          INFO(vocabulary << " " << rows << " " << top_p);
          require_gpu_agreement(*device, op, ops::Softmax::kName, "softmax", {{ops::Softmax::kProbs, &probs}});

          REQUIRE(!op.run("softmax"));
          Tensor uniform(Dtype::kF32, {rows});
          for (int64_t r = 0; r < rows; ++r) uniform.view().store(r, static_cast<float>(random.below(1000)) / 1000);
          Tensor tokens(Dtype::kI32, {rows});
          for (const char* kernel : {"pytorch", "flashinfer"}) {
            poison(tokens);
            OpHarness sample(ops::Sample::kName);
            sample.add(probs).add(uniform).add(tokens);
            require_gpu_agreement(*device, sample, ops::Sample::kName, kernel, {{ops::Sample::kTokens, &tokens}});
          }
          poison(tokens);
          OpHarness argmax(ops::Argmax::kName);
          argmax.add(logits).add(tokens);
          require_gpu_agreement(*device, argmax, ops::Argmax::kName, "argmax", {{ops::Argmax::kTokens, &tokens}});
        }
}

TEST_CASE("rows that are not numbers, ties and draws past the mass on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  constexpr int64_t kVocabulary = 154880;
  Random random(33);
  Tensor logits = random.values(Dtype::kBF16, {6, kVocabulary}, 2);
  logits.view().store(77, kNan);
  logits.view().store(kVocabulary + 100000, INFINITY);
  for (int64_t c = 0; c < kVocabulary; ++c) {
    logits.view().store(2 * kVocabulary + c, -INFINITY);
    logits.view().store(3 * kVocabulary + c, 1.5f);  // ties: the lower ids stay
    logits.view().store(4 * kVocabulary + c, c == 5 ? -1.0f : -INFINITY);
  }
  for (const double top_p : {1.0, 0.5}) {
    Tensor probs(Dtype::kF32, {6, kVocabulary});
    poison(probs);
    OpHarness op(ops::Softmax::kName);
    op.add(logits).add(probs).attributes().set("temperature", 1.0).set("top_p", top_p);
    Tensor twin(probs);
    op.replace(ops::Softmax::kProbs, twin);
    REQUIRE(!op.run("softmax"));
    op.replace(ops::Softmax::kProbs, probs);
    for (const GpuBuild build : kEveryGpuBuild) {
      Tensor got(probs);
      run_on_gpu(*device, op, ops::Softmax::kName, "softmax", build, {{ops::Softmax::kProbs, &got}});
      INFO(build_name(build) << " " << top_p);
      CHECK(difference(values_of(got, nullptr), values_of(twin, nullptr),
                       tolerance_for(ops::Softmax::kName, Dtype::kF32)) == "");
    }
  }
  Tensor tokens(Dtype::kI32, {6});
  OpHarness argmax(ops::Argmax::kName);
  argmax.add(logits).add(tokens);
  for (int64_t c = 0; c < kVocabulary; ++c) logits.view().store(2 * kVocabulary + c, kNan);
  require_gpu_agreement(*device, argmax, ops::Argmax::kName, "argmax", {{ops::Argmax::kTokens, &tokens}});

  Tensor probs(Dtype::kF32, {2, 1000});
  for (int64_t i = 0; i < 2000; ++i) probs.view().store(i, i < 1000 ? 0.0005f : 0.001f);
  Tensor uniform(Dtype::kF32, {2});
  uniform.view().store(0, 0.9f);
  uniform.view().store(1, 0.0f);
  Tensor drawn(Dtype::kI32, {2});
  OpHarness sample(ops::Sample::kName);
  sample.add(probs).add(uniform).add(drawn);
  require_gpu_agreement(*device, sample, ops::Sample::kName, "flashinfer", {{ops::Sample::kTokens, &drawn}});
}

// A process of its own for a fault that ends it: the case below, run by the next one.
TEST_CASE("a NaN probability ends the process", "[.device-assert]") {
  const auto device = gpu();
  const Tensor probs = [] {
    Tensor tensor(Dtype::kF32, {1, 300});
    for (int64_t i = 0; i < 300; ++i) tensor.view().store(i, i == 211 ? kNan : 0.003f);
    return tensor;
  }();
  const Tensor uniform = scalar(0.5f);
  const Tensor token(Dtype::kI32, {1});
  OpHarness op(ops::Sample::kName);
  op.add(probs).add(uniform).add(token);
  const bool plain = std::getenv("FAULTLINE_TEST_PLAIN") != nullptr;
  GpuCall call(*device, op.call());
  REQUIRE(!find_kernel(ops::Sample::kName, "pytorch")->run(call.call(plain ? GpuBuild::kPlain : GpuBuild::kFast)));
  const auto fault = device->wait();
  REQUIRE(fault);
  CHECK(fault->verdict == "device-assert");
}

TEST_CASE("an invalid probability asserts in the pytorch kernel alone; its checked build records it", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  for (const char* environment : {"", "FAULTLINE_TEST_PLAIN=1 "}) {
    const std::string command =
        std::string(environment) + "/proc/" + std::to_string(getpid()) + "/exe '[.device-assert]' 2>&1";
    std::FILE* pipe = popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string output;
    std::array<char, 256> line{};
    while (std::fgets(line.data(), line.size(), pipe) != nullptr) output += line.data();
    INFO(output);
    CHECK(pclose(pipe) == 0);
    CHECK(output.find("probability tensor contains either `inf`, `nan` or element < 0") != std::string::npos);
  }
  const auto device = gpu();
  for (const float bad : {kNan, INFINITY, -0.1f}) {
    Tensor probs(Dtype::kF32, {2, 300});
    for (int64_t i = 0; i < 600; ++i) probs.view().store(i, i == 300 + 211 ? bad : 1.0f / 300);
    Tensor uniform(Dtype::kF32, {2});
    uniform.view().store(0, 0.25f);
    uniform.view().store(1, 0.25f);
    Tensor tokens(Dtype::kI32, {2});
    OpHarness op(ops::Sample::kName);
    op.add(probs).add(uniform).add(tokens);
    const GpuRun run =
        run_on_gpu(*device, op, ops::Sample::kName, "pytorch", GpuBuild::kChecked, {{ops::Sample::kTokens, &tokens}});
    CHECK(run.log.count == 1);
    CHECK(run.log.first[0].is_write == kernels::kFailedAssertion);
    CHECK(run.log.first[0].operand == ops::Sample::kProbs);
    CHECK(run.log.first[0].index == 300 + 211);
    for (const GpuBuild build : kEveryGpuBuild) {
      const GpuRun silent =
          run_on_gpu(*device, op, ops::Sample::kName, "flashinfer", build, {{ops::Sample::kTokens, &tokens}});
      CHECK(silent.log.count == 0);
    }
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
