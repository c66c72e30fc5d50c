#include "op_harness.h"
#include "ops/kinds.h"

using namespace faultline;
using namespace faultline::test;
using ops::IndexScores;

namespace {

constexpr int64_t kSlots = 256;
constexpr int64_t kColumns = 140;

// Requests of the lengths given, one token each, over a pool of random keys.
struct Case {
  Case(Dtype dtype, Format format, int64_t heads, int64_t dim, const std::vector<int32_t>& lengths_of, uint32_t seed)
      : random(seed),
        tokens(static_cast<int64_t>(lengths_of.size())),
        geometry(geometry_of(format, kSlots, dim, 0)),
        q(random.values(dtype, {tokens, heads, dim})),
        weights(random.values(Dtype::kF32, {tokens, heads})),
        pool(random_pool(geometry, random)),
        page_table(Dtype::kI32, {tokens + 1, kColumns}),
        rows(Dtype::kI32, {tokens}),
        lengths(integers({tokens}, lengths_of)),
        out(Dtype::kF32, {tokens, kColumns}),
        op(IndexScores::kName) {
    for (int64_t r = 0; r <= tokens; ++r) {
      const std::vector<int32_t> slots = random.shuffled(kSlots);
      for (int64_t c = 0; c < kColumns; ++c)
        page_table.view().store_index(r * kColumns + c, slots[static_cast<size_t>(c)]);
    }
    for (int64_t t = 0; t < tokens; ++t)
      rows.view().store_index(t, tokens - t);  // requests in another order than tokens
    for (int64_t i = 0; i < out.view().elements(); ++i) out.view().store(i, 77);
    op.add(q).add(weights).add_cache(pool, geometry).add(page_table).add(rows).add(lengths).add(out);
  }

  Random random;
  int64_t tokens;
  CacheGeometry geometry;
  Tensor q;
  Tensor weights;
  Tensor pool;
  Tensor page_table;
  Tensor rows;
  Tensor lengths;
  Tensor out;
  OpHarness op;
};

}  // namespace

TEST_CASE("index scores agree with their reference around the block of 64 keys, and leave columns past the length") {
  for (const Format format : {Format::kIndexF32, Format::kIndexFp8})
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
      INFO(format_name(format));
      Case c(dtype, format, 16, 32, {1, 63, 64, 65, 0, 140}, 1);
      c.op.require_agreement("mqa_logits", IndexScores::kOut, c.out);
      for (int64_t t = 0; t < c.tokens; ++t)
        for (int64_t column = 0; column < kColumns; ++column)
          CHECK((c.out.at(t * kColumns + column) == 77) == (column >= c.lengths.integer(t)));
    }
}

TEST_CASE("index scores at the real head size, for one token and for none") {
  Case one(Dtype::kBF16, Format::kIndexFp8, 32, 128, {100}, 2);
  one.op.require_agreement("mqa_logits", IndexScores::kOut, one.out);
  Case none(Dtype::kBF16, Format::kIndexFp8, 32, 128, {}, 2);
  none.op.require_agreement("mqa_logits", IndexScores::kOut, none.out);
}

TEST_CASE("a score is the head-weighted sum of rectified dots") {
  Case c(Dtype::kF32, Format::kIndexF32, 4, 4, {1}, 3);
  const float key[] = {1, 2, 0, 0};
  encode_slot(c.geometry, c.pool.view().data, c.page_table.integer(kColumns), key, false);
  for (int64_t h = 0; h < 4; ++h) {
    c.weights.view().store(h, 10);
    for (int64_t d = 0; d < 4; ++d) c.q.view().store(h * 4 + d, h == 0 ? -1.0f : 1.0f);
  }
  REQUIRE(!c.op.run("mqa_logits"));
  CHECK(c.out.at(0) == Approx(3 * (3 * 0.5) * 10 * 0.5));  // head 0 is below 0
}

TEST_CASE("a NaN key gives NaN scores, a page index past the pool is recorded") {
  Case c(Dtype::kBF16, Format::kIndexFp8, 16, 32, {8}, 4);
  c.pool.view().as<uint8_t>()[slot_bytes(c.geometry, c.page_table.integer(kColumns + 2))[0].begin] = 0x7F;
  REQUIRE(!c.op.run("mqa_logits"));
  for (int64_t column = 0; column < 8; ++column) CHECK(std::isnan(c.out.at(column)) == (column == 2));
  CHECK(c.op.run_checked("mqa_logits").count == 0);
  c.page_table.view().store_index(kColumns + 5, kSlots);
  const kernels::AccessLog log = c.op.run_checked("mqa_logits");
  CHECK(log.count > 0);
  CHECK(log.first[0].operand == IndexScores::kCache);
  CHECK(log.first[0].extent == c.geometry.total_bytes());
  CHECK(std::isnan(c.out.at(5)));
  CHECK(std::isfinite(c.out.at(6)));
}

TEST_CASE("queries in FP8 are quantised a head, their scale in the head's weight, with either kind of scale") {
  for (const bool ue8m0 : {false, true})
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
      Case c(dtype, Format::kIndexFp8, 4, 32, {1, 65, 140}, 51);
      REQUIRE(!c.op.run("mqa_logits"));
      const Tensor unquantised(c.out);
      c.op.attributes().set("query_fp8", true).set("query_ue8m0", ue8m0);
      c.op.require_agreement("mqa_logits", IndexScores::kOut, c.out);
      CHECK_FALSE(c.out.same_bytes(unquantised));

      // The same scores from a query that was quantised beforehand.
      Tensor rounded(Dtype::kF32, {c.tokens, 4, 32});
      std::vector<float> head(32);
      for (int64_t i = 0; i < c.tokens * 4; ++i) {
        for (int64_t d = 0; d < 32; ++d) head[static_cast<size_t>(d)] = c.q.at(i * 32 + d);
        const float scale = quantize_index_values(head.data(), 32, ue8m0);
        for (int64_t d = 0; d < 32; ++d) rounded.view().store(i * 32 + d, head[static_cast<size_t>(d)] * scale);
      }
      Tensor expected(c.out);
      c.op.attributes().set("query_fp8", false);
      c.op.replace(IndexScores::kQ, rounded);
      c.op.replace(IndexScores::kOut, expected);
      c.op.run_model();
      const Tolerance tolerance = tolerance_for(IndexScores::kName, Dtype::kF32);
      for (int64_t i = 0; i < c.out.view().elements(); ++i)
        CHECK(std::abs(c.out.at(i) - expected.at(i)) <= tolerance.atol + tolerance.rtol * std::abs(expected.at(i)));
    }
}
