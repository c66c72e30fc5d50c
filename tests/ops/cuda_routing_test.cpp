// The indexer, top-k, the router and the sort by expert on a GPU: each build against the spec reference, the selection
// contract and the kernel on the CPU.
#include <algorithm>
#include <set>

#include "gpu_twin.h"
#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;

namespace {

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

TEST_CASE("index scores of FP8 queries on a GPU, few and many, and first met in a capture", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  using S = ops::IndexScores;
  constexpr int64_t kSlots = 512;
  constexpr int64_t kColumns = 200;
  uint32_t seed = 80;
  // In the order of this list: the first case of many tokens finds no memory for its codes, being captured.
  for (const bool captured : {true, false})
    for (const int64_t heads : {16, 32, 64})
      for (const int64_t tokens : {1, 7, 64, 65, 150})
        for (const bool ue8m0 : {false, true}) {
          if (captured && (heads != 32 || tokens != 65)) continue;
          CAPTURE(captured, heads, tokens, ue8m0);
          Random random(seed++);
          const CacheGeometry geometry = geometry_of(Format::kIndexFp8, kSlots, 128, 0);
          Tensor q = random.values(Dtype::kBF16, {tokens, heads, 128}, 3);
          for (int64_t d = 0; d < 128; ++d) q.view().store(d, 0);  // a head of zeros: the floor of the scale
          const Tensor weights = random.values(Dtype::kF32, {tokens, heads});
          const Tensor pool = random_pool(geometry, random);
          Tensor page_table(Dtype::kI32, {3, kColumns});
          for (int64_t r = 0; r < 3; ++r) {
            const std::vector<int32_t> slots = random.shuffled(kSlots);
            for (int64_t c = 0; c < kColumns; ++c)
              page_table.view().store_index(r * kColumns + c, slots[static_cast<size_t>(c)]);
          }
          Tensor rows(Dtype::kI32, {tokens});
          Tensor lengths(Dtype::kI32, {tokens});
          for (int64_t t = 0; t < tokens; ++t) {
            rows.view().store_index(t, t * 3 / tokens);
            lengths.view().store_index(t, random.below(kColumns + 1));
          }
          Tensor out(Dtype::kF32, {tokens, kColumns});
          for (int64_t i = 0; i < out.view().elements(); ++i) out.view().store(i, 77);
          OpHarness op(S::kName);
          op.add(q).add(weights).add_cache(pool, geometry).add(page_table).add(rows).add(lengths).add(out);
          op.attributes().set("query_fp8", 1).set("query_ue8m0", ue8m0 ? 1 : 0);
          if (!captured) {
            require_gpu_agreement(*device, op, S::kName, "mqa_logits", {{S::kOut, &out}});
            continue;
          }
          const GpuCall call(*device, op.call());
          REQUIRE(device->begin_capture());
          REQUIRE(!find_kernel(S::kName, "mqa_logits")->run(call.call(GpuBuild::kFast)));
          auto graph = device->end_capture();
          REQUIRE(graph);
          REQUIRE(device->launch(**graph));
          REQUIRE(!device->wait());
          REQUIRE(kernels::take_launch_error() == nullptr);
          Tensor got(out);
          call.fetch(S::kOut, got);
          op.run_model();
          CHECK(difference(values_of(got, nullptr), values_of(out, nullptr), tolerance_for(S::kName, Dtype::kF32)) ==
                "");
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
