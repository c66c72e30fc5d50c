#include "check/poison.h"

#include <cmath>

#include "call_fixture.h"

using namespace faultline;

namespace {

const OperandSpec kOut{"out", Direction::kOut, Content::kValues, Region{Rows::kTokens}, {}, false};

}  // namespace

TEST_CASE("an element that a kernel left alone is unwritten, wherever it is") {
  const Dtype dtype = GENERATE(Dtype::kF32, Dtype::kBF16);
  CallFixture f;
  const TensorView out = f.tensor(dtype, {3, 4});
  f.add(out);
  poison_output(f.call(), kOut, 0, 0);
  for (int64_t i = 0; i < 12; ++i)
    if (i != 6) out.store(i, 1.0f);
  const auto found = find_unwritten(f.call(), kOut, 0, LiveCounts{3, 3});
  REQUIRE(found);
  CHECK(found->kind == "unwritten");
  CHECK(found->index == std::vector<int64_t>{1, 2});
  CHECK(found->count == 1);
}

TEST_CASE("a written tensor is silent, also where it holds NaN or was computed from the sentinel") {
  const Dtype dtype = GENERATE(Dtype::kF32, Dtype::kBF16);
  CallFixture f;
  const TensorView out = f.tensor(dtype, {2, 2});
  f.add(out);
  poison_output(f.call(), kOut, 0, 0);
  const float sentinel = out.load(0);
  REQUIRE(std::isnan(sentinel));
  out.store(0, sentinel * 2.0f);  // arithmetic on a signalling NaN makes it quiet
  out.store(1, NAN);
  out.store(2, 0.0f);
  out.store(3, -1.0f);
  CHECK_FALSE(find_unwritten(f.call(), kOut, 0, LiveCounts{2, 2}));
}

TEST_CASE("rows past the live ones and columns past a row's length are declared, not excused") {
  CallFixture f;
  const TensorView out = f.tensor(Dtype::kF32, {3, 4});
  f.add(out);
  f.add(f.integers({3}, {4, 2, 4}));
  OperandSpec spec = kOut;
  spec.region.lengths_operand = 1;
  poison_output(f.call(), spec, 0, 0);
  for (const int64_t i : {0, 1, 2, 3, 4, 5})
    out.store(i, 1.0f);  // row 0 whole, row 1 up to its length; row 2 is padding
  CHECK_FALSE(find_unwritten(f.call(), spec, 0, LiveCounts{2, 2}));
  CHECK(find_unwritten(f.call(), spec, 0, LiveCounts{3, 3}));
}

TEST_CASE("code bytes are shown unwritten by two runs over two poisons") {
  CallFixture f;
  const TensorView codes = f.tensor(Dtype::kU8, {2, 3});
  f.add(codes);
  OperandSpec spec = kOut;
  spec.content = Content::kFp4Codes;
  REQUIRE(needs_two_poisons(spec, f.call().argument(0)));
  const auto run = [&](bool leave_one) {
    for (int i = 0; i < 6; ++i)
      if (!leave_one || i != 4)
        codes.as<uint8_t>()[i] = kCodePoison[0];  // a legal code that looks like the first poison
  };
  const bool leave_one = GENERATE(false, true);
  poison_output(f.call(), spec, 0, 0);
  run(leave_one);
  const std::vector<std::byte> first(codes.data, codes.data + 6);
  poison_output(f.call(), spec, 0, 1);
  run(leave_one);
  const auto found = find_unwritten_codes(f.call(), spec, 0, LiveCounts{2, 2}, first.data());
  REQUIRE(found.has_value() == leave_one);
  if (found) CHECK(found->index == std::vector<int64_t>{1, 1});
}

TEST_CASE("of a cache only the slots of the call are poisoned and must be written") {
  CacheGeometry geometry;
  geometry.format = Format::kKvBf16;
  geometry.slots = 8;
  geometry.page_size = 4;
  geometry.latent = 4;
  geometry.rope = 2;
  CallFixture f;
  const TensorView cache = f.cache(geometry);
  f.add_cache(cache, geometry);
  f.add(f.integers({2}, {5, 2}));
  OperandSpec spec = kOut;
  spec.content = Content::kCache;
  spec.region.slots_operand = 1;
  poison_output(f.call(), spec, 0, 0);
  CHECK(cache.data[0] == std::byte{0});  // slot 0 is nobody's business
  const std::vector<float> row(6, 1.0f);
  encode_slot(geometry, cache.data, 5, row.data(), false);
  const auto found = find_unwritten(f.call(), spec, 0, LiveCounts{2, 1});
  REQUIRE(found);
  CHECK(found->index.front() == 2);
  CHECK(found->count == 6);
  encode_slot(geometry, cache.data, 2, row.data(), false);
  CHECK_FALSE(find_unwritten(f.call(), spec, 0, LiveCounts{2, 1}));
}
