#include "op_harness.h"
#include "ops/kinds.h"

using namespace faultline;
using namespace faultline::test;
using ops::CacheGather;
using ops::CacheRequantize;
using ops::CacheWrite;

namespace {

struct Writer {
  const char* kernel;
  Format format;
  int64_t rope;
};
constexpr Writer kWriters[] = {{"store_kv", Format::kKvF32, 16},
                               {"store_kv", Format::kKvBf16, 16},
                               {"quantize_k_cache", Format::kKvPacked, 16},
                               {"store_kv_fp8", Format::kKvPlainFp8, 16},
                               {"store_index_k", Format::kIndexF32, 0},
                               {"store_index_k", Format::kIndexFp8, 0}};
constexpr int64_t kLatent = 32;

// Ten slots of a pool of 16 (pages of 8), in no order.
const std::vector<int32_t> kSlots = {3, 15, 0, 8, 7, 9, 1, 12, 4, 10};

}  // namespace

TEST_CASE("every writer stores what encode_slot defines, bit by bit, and touches no other slot") {
  Random random(1);
  for (const Writer& writer : kWriters)
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
      for (const int64_t rows : {0, 1, 10}) {
        INFO(writer.kernel << " " << format_name(writer.format) << " " << rows);
        const CacheGeometry geometry = geometry_of(writer.format, 16, kLatent, writer.rope, 8);
        const Tensor x = random.values(dtype, {rows, geometry.width()}, 5);
        const Tensor slots = integers({rows}, {kSlots.begin(), kSlots.begin() + rows});
        Tensor pool(Dtype::kU8, {geometry.total_bytes()});
        pool.fill(0x3C);
        OpHarness op(CacheWrite::kName);
        op.add(x).add(slots).add_cache(pool, geometry).attributes().set("floorless", true);
        Tensor expected(pool);
        op.require_agreement(writer.kernel, CacheWrite::kCache, pool);
        op.replace(CacheWrite::kCache, expected);
        op.run_model();
        CHECK(pool.same_bytes(expected));
      }
}

TEST_CASE("a packed row at the real head sizes agrees with encode_slot") {
  Random random(2);
  const CacheGeometry geometry = geometry_of(Format::kKvPacked, 64, 512, 64);
  const Tensor x = random.values(Dtype::kBF16, {3, 576});
  const Tensor slots = integers({3}, {63, 0, 17});
  Tensor pool(Dtype::kU8, {geometry.total_bytes()});
  OpHarness op(CacheWrite::kName);
  op.add(x).add(slots).add_cache(pool, geometry).attributes().set("floorless", true);
  Tensor expected(pool);
  op.require_agreement("quantize_k_cache", CacheWrite::kCache, pool);
  op.replace(CacheWrite::kCache, expected);
  op.run_model();
  CHECK(pool.same_bytes(expected));
}

TEST_CASE("a block of zeros packed without a floor holds the code 0x7F, with one it holds zeros") {
  const CacheGeometry geometry = geometry_of(Format::kKvPacked, 16, kLatent, 16, 8);
  Tensor x(Dtype::kBF16, {1, 48});
  for (int64_t i = 0; i < 48; ++i) x.view().store(i, i < 8 ? 0.0f : 1.0f);
  const Tensor slots = integers({1}, {5});
  Tensor pool(Dtype::kU8, {geometry.total_bytes()});
  OpHarness op(CacheWrite::kName);
  op.add(x).add(slots).add_cache(pool, geometry).attributes().set("floorless", true);
  REQUIRE(!op.run("quantize_k_cache"));
  const uint8_t* row = pool.view().as<uint8_t>() + 5 * geometry.row_bytes();
  for (int i = 0; i < 32; ++i) CHECK((row[i] == 0x7F) == (i < 8));
  op.attributes().set("floorless", false);
  REQUIRE(!op.run("quantize_k_cache"));
  for (int i = 0; i < 8; ++i) CHECK(row[i] == 0);
}

TEST_CASE("a slot past the pool or before it is recorded by the checked build, which drops the write") {
  for (const Writer& writer : kWriters) {
    INFO(writer.kernel << " " << format_name(writer.format));
    const CacheGeometry geometry = geometry_of(writer.format, 16, kLatent, writer.rope, 8);
    Random random(3);
    const Tensor x = random.values(Dtype::kBF16, {3, geometry.width()});
    const Tensor slots = integers({3}, {2, 16, -1});
    Tensor pool(Dtype::kU8, {geometry.total_bytes()});
    OpHarness op(CacheWrite::kName);
    op.add(x).add(slots).add_cache(pool, geometry).attributes().set("floorless", true);
    const kernels::AccessLog log = op.run_checked(writer.kernel);
    CHECK(log.count >= 2);
    CHECK(log.first[0].operand == CacheWrite::kCache);
    CHECK(log.first[0].is_write == 1);
    CHECK(log.first[0].extent == geometry.total_bytes());
    Tensor expected(Dtype::kU8, {geometry.total_bytes()});
    op.replace(CacheWrite::kCache, expected);
    op.run_model();
    // Row 0 arrived; an index page's slot -1 lies outside as well.
    std::vector<float> a(static_cast<size_t>(geometry.width()));
    std::vector<float> b(a.size());
    decode_slot(geometry, pool.view().data, 2, a.data());
    decode_slot(geometry, expected.view().data, 2, b.data());
    CHECK(a == b);
  }
}

TEST_CASE("a gather decodes the listed rows of every format, and no more than the lengths sum to") {
  Random random(4);
  for (const Format format : {Format::kKvF32, Format::kKvBf16, Format::kKvPacked, Format::kKvPlainFp8})
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
      INFO(format_name(format));
      const CacheGeometry geometry = geometry_of(format, 16, kLatent, 16, 8);
      const Tensor pool = random_pool(geometry, random);
      const Tensor slots = integers({10}, kSlots);
      const Tensor seq_lens = integers({3}, {4, 0, 2});
      Tensor out(dtype, {10, 48});
      for (int64_t i = 0; i < 480; ++i) out.view().store(i, 77);
      OpHarness op(CacheGather::kName);
      op.add_cache(pool, geometry).add(slots).add(seq_lens).add(out);
      op.require_agreement("dequantize_k_cache_paged", CacheGather::kOut, out);
      CHECK(out.at(5 * 48) != 77);
      for (int64_t i = 6 * 48; i < 480; ++i) CHECK(out.at(i) == 77);
    }
}

TEST_CASE("a gather trusts its slots: the checked build records one past the pool and gives NaN") {
  Random random(5);
  const CacheGeometry geometry = geometry_of(Format::kKvPacked, 16, kLatent, 16, 8);
  const Tensor pool = random_pool(geometry, random);
  const Tensor slots = integers({2}, {4, 99});
  const Tensor seq_lens = integers({1}, {2});
  Tensor out(Dtype::kF32, {2, 48});
  OpHarness op(CacheGather::kName);
  op.add_cache(pool, geometry).add(slots).add(seq_lens).add(out);
  const kernels::AccessLog log = op.run_checked("dequantize_k_cache_paged");
  CHECK(log.count > 0);
  CHECK(log.first[0].operand == CacheGather::kCache);
  CHECK(log.first[0].is_write == 0);
  for (int64_t c = 0; c < 48; ++c) {
    CHECK(std::isfinite(out.at(c)));
    CHECK(std::isnan(out.at(48 + c)));
  }
}

TEST_CASE("requantizing packs the whole pool, without a floor") {
  Random random(6);
  for (const Format format : {Format::kKvBf16, Format::kKvF32}) {
    const CacheGeometry from = geometry_of(format, 16, kLatent, 16, 8);
    const CacheGeometry to = geometry_of(Format::kKvPacked, 16, kLatent, 16, 8);
    Tensor pool = random_pool(from, random);
    const std::vector<float> zeros(48, 0.0f);
    encode_slot(from, pool.view().data, 11, zeros.data(), false);
    const Tensor slots = integers({2}, {1, 2});
    const Tensor seq_lens = integers({1}, {2});
    Tensor packed(Dtype::kU8, {to.total_bytes()});
    OpHarness op(CacheRequantize::kName);
    op.add_cache(pool, from).add(slots).add(seq_lens).add_cache(packed, to);
    Tensor expected(packed);
    Tensor checked(packed);
    op.replace(CacheRequantize::kPacked, expected);
    op.run_spec("quantize_k_cache");
    op.replace(CacheRequantize::kPacked, checked);
    CHECK(op.run_checked("quantize_k_cache").count == 0);
    op.replace(CacheRequantize::kPacked, packed);
    REQUIRE(!op.run("quantize_k_cache"));
    CHECK(packed.same_bytes(expected));
    CHECK(packed.same_bytes(checked));
    CHECK(packed.view().as<uint8_t>()[11 * to.row_bytes()] == 0x7F);
    // A row of zeros is zeros to the model.
    op.replace(CacheRequantize::kPacked, expected);
    op.run_model();
    CHECK(expected.view().as<uint8_t>()[11 * to.row_bytes()] == 0);
    CHECK(packed.view().as<uint8_t>()[12 * to.row_bytes()] != 0x7F);
  }
}

TEST_CASE("requantizing refuses a pool that is packed already") {
  const CacheGeometry packed = geometry_of(Format::kKvPacked, 8, kLatent, 16, 8);
  const Tensor pool(Dtype::kU8, {packed.total_bytes()});
  const Tensor out(Dtype::kU8, {packed.total_bytes()});
  const Tensor slots = integers({1}, {1});
  OpHarness op(CacheRequantize::kName);
  op.add_cache(pool, packed).add(slots).add(slots).add_cache(out, packed);
  const KernelResult fault = op.run("quantize_k_cache");
  REQUIRE(fault);
  CHECK(fault->verdict == "launch-failure");
}

TEST_CASE("index keys with power-of-two scales: the smallest power that holds the key, and the same codes' meaning") {
  constexpr int64_t kDim = 32;
  const CacheGeometry geometry = geometry_of(Format::kIndexFp8, 64, kDim, 0, 64);
  const auto scale_at = [&](const Tensor& pool, int64_t slot) {
    float scale = 0;
    std::memcpy(&scale, pool.view().data + slot_bytes(geometry, slot)[1].begin, sizeof scale);
    return scale;
  };
  Random random(41);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
    Tensor x = random.values(dtype, {4, kDim}, 5);
    for (int64_t d = 0; d < kDim; ++d) {
      x.view().store(d, 0);                                  // below the floor of 1e-4
      x.view().store(kDim + d, d == 3 ? -448.0f : 1.0f);     // amax / 448 = 1, a power already
      x.view().store(2 * kDim + d, d == 3 ? 450.0f : 1.0f);  // just above
    }
    const Tensor slots = integers({4}, {0, 1, 2, 63});
    Tensor pool(Dtype::kU8, {geometry.total_bytes()});
    pool.fill(0);
    OpHarness op(CacheWrite::kName);
    op.add(x).add(slots).add_cache(pool, geometry).attributes().set("ue8m0", true);
    op.require_agreement("store_index_k", CacheWrite::kCache, pool);
    Tensor expected(pool);
    op.replace(CacheWrite::kCache, expected);
    op.run_model();
    CHECK(pool.same_bytes(expected));
    CHECK(scale_at(pool, 0) == 0x1p-22f);  // 1e-4 / 448 = 2.2e-7
    CHECK(scale_at(pool, 1) == 1.0f);
    CHECK(scale_at(pool, 2) == 2.0f);
    std::vector<float> decoded(kDim);
    decode_slot(geometry, pool.view().data, 63, decoded.data());
    const float scale = scale_at(pool, 63);
    int exponent = 0;
    CHECK(std::frexp(scale, &exponent) == 0.5f);
    for (int64_t d = 0; d < kDim; ++d) {
      const float value = x.at(3 * kDim + d);
      CHECK(std::abs(decoded[static_cast<size_t>(d)] - value) <= std::abs(value) * 0x1p-4f + scale * 0x1p-9f);
    }
  }
}
