#include "check/layout.h"

#include <cmath>

#include "call_fixture.h"

using namespace faultline;

namespace {

CacheGeometry geometry_of(Format format) {
  CacheGeometry geometry;
  geometry.format = format;
  geometry.slots = 8;
  geometry.page_size = 4;
  geometry.latent = 8;
  geometry.rope = 4;
  return geometry;
}

}  // namespace

TEST_CASE("a packed cache read as plain e4m3 is a layout conflict at the first element that decodes differently") {
  const CacheGeometry written = geometry_of(Format::kKvPacked);
  CacheGeometry read = geometry_of(Format::kKvPlainFp8);
  read.row_stride_bytes = written.row_bytes();
  CallFixture f;
  const TensorView cache = f.cache(written);
  const std::vector<float> row = {1, 2, 3, 4, 5, 6, 7, 8, 0.5f, 0.25f, 1, 2};
  encode_slot(written, cache.data, 5, row.data(), false);
  f.add_cache(cache, read);
  const auto found = find_layout_conflict(f.call().argument(0), written, 0, {5});
  REQUIRE(found);
  CHECK(found->kind == "layout");
  CHECK(found->index.front() == 5);
  CHECK(found->count > 1);
  CHECK(found->detail.find("kv_packed") != std::string::npos);

  SECTION("an element that decodes to NaN is preferred") {
    cache.data[written.row_bytes() * 5 + written.latent] = std::byte{0x7F};  // a scale's byte, read as e4m3
    const auto nan = find_layout_conflict(f.call().argument(0), written, 0, {5});
    REQUIRE(nan);
    CHECK(nan->value == "nan");
    CHECK(nan->index == std::vector<int64_t>{5, 8});
  }
  SECTION("no slot is read, nothing can differ") {
    CHECK_FALSE(find_layout_conflict(f.call().argument(0), written, 0, {}));
  }
}

TEST_CASE("the same format is silent") {
  const Format format = GENERATE(Format::kKvPacked, Format::kKvPlainFp8, Format::kKvBf16, Format::kKvF32);
  const CacheGeometry geometry = geometry_of(format);
  CallFixture f;
  f.add_cache(f.cache(geometry), geometry);
  CHECK_FALSE(find_layout_conflict(f.call().argument(0), geometry, 0, {0, 1, 2}));
}
