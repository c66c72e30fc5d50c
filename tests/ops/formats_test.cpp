#include "ops/formats.h"

#include <set>

#include "op_harness.h"

using namespace faultline;
using namespace faultline::test;

namespace {

constexpr Format kCacheFormats[] = {Format::kKvF32,      Format::kKvBf16,   Format::kKvPacked,
                                    Format::kKvPlainFp8, Format::kIndexF32, Format::kIndexFp8};

CacheGeometry small(Format format, int64_t slots = 8, int64_t page_size = 4) {
  const bool index = format == Format::kIndexF32 || format == Format::kIndexFp8;
  return geometry_of(format, slots, 32, index ? 0 : 16, page_size);
}

std::vector<float> round_trip(const CacheGeometry& geometry, const std::vector<float>& values, bool floorless = false) {
  Tensor pool(Dtype::kU8, {geometry.total_bytes()});
  encode_slot(geometry, pool.view().data, 3, values.data(), floorless);
  std::vector<float> decoded(values.size());
  decode_slot(geometry, pool.view().data, 3, decoded.data());
  return decoded;
}

std::vector<float> random_row(const CacheGeometry& geometry, Random& random) {
  std::vector<float> values(static_cast<size_t>(geometry.width()));
  for (float& value : values) value = random.normal();
  return values;
}

}  // namespace

TEST_CASE("each format has a name of its own") {
  std::set<std::string_view> names{format_name(Format::kPlain), format_name(Format::kNvfp4)};
  for (const Format format : kCacheFormats) names.insert(format_name(format));
  CHECK(names.size() == 8);
  CHECK(format_name(Format::kKvPacked) == "kv_packed");
}

TEST_CASE("rows have the byte counts of the real model's caches") {
  CHECK(geometry_of(Format::kKvBf16, 64, 512, 64).row_bytes() == 1152);
  CHECK(geometry_of(Format::kKvPacked, 64, 512, 64).row_bytes() == 656);
  CHECK(geometry_of(Format::kKvPlainFp8, 64, 512, 64).row_bytes() == 576);
  CHECK(geometry_of(Format::kKvF32, 64, 512, 64).row_bytes() == 2304);
  CHECK(geometry_of(Format::kIndexFp8, 64, 128, 0).total_bytes() == 8448);
  CHECK(geometry_of(Format::kIndexF32, 64, 128, 0).row_bytes() == 512);
}

TEST_CASE("the bytes of all slots are disjoint and cover the pool") {
  for (const Format format : kCacheFormats) {
    const CacheGeometry geometry = small(format);
    std::vector<int> owners(static_cast<size_t>(geometry.total_bytes()), 0);
    for (int64_t slot = 0; slot < geometry.slots; ++slot)
      for (const ByteRange& range : slot_bytes(geometry, slot))
        for (int64_t at = range.begin; at < range.end; ++at) ++owners[static_cast<size_t>(at)];
    INFO(format_name(format));
    CHECK(std::all_of(owners.begin(), owners.end(), [](int count) { return count == 1; }));
  }
}

TEST_CASE("a slot decodes to what was encoded, within its format") {
  Random random(1);
  for (const Format format : kCacheFormats) {
    const CacheGeometry geometry = small(format);
    const std::vector<float> values = random_row(geometry, random);
    const std::vector<float> decoded = round_trip(geometry, values);
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < values.size(); ++i) {
      // Half a step of e4m3 is 2^-4 of a value; below 2^-6 of the scale's unit the steps are even.
      double allowed = std::abs(values[i]) / 16 + largest * 1e-4;
      if (format == Format::kKvF32 || format == Format::kIndexF32) allowed = 0;
      if (format == Format::kKvBf16 || (format == Format::kKvPacked && i >= 32)) allowed = std::abs(values[i]) / 256;
      if (format == Format::kKvPlainFp8) allowed = std::abs(values[i]) / 16 + 0x1p-10;
      INFO(format_name(format) << " " << i);
      CHECK(std::abs(values[i] - decoded[i]) <= allowed);
    }
  }
}

TEST_CASE("encoding a slot touches no byte of another") {
  Random random(2);
  for (const Format format : kCacheFormats) {
    const CacheGeometry geometry = small(format);
    Tensor pool(Dtype::kU8, {geometry.total_bytes()});
    pool.fill(0xA5);
    encode_slot(geometry, pool.view().data, 5, random_row(geometry, random).data(), false);
    std::vector<bool> own(static_cast<size_t>(geometry.total_bytes()), false);
    for (const ByteRange& range : slot_bytes(geometry, 5))
      for (int64_t at = range.begin; at < range.end; ++at) own[static_cast<size_t>(at)] = true;
    INFO(format_name(format));
    for (int64_t at = 0; at < geometry.total_bytes(); ++at)
      if (!own[static_cast<size_t>(at)]) CHECK(pool.view().as<uint8_t>()[at] == 0xA5);
  }
}

TEST_CASE("a packed row is codes, then four scales, then bf16") {
  const CacheGeometry geometry = small(Format::kKvPacked);
  std::vector<float> values(48, 1.0f);
  for (size_t i = 8; i < 16; ++i) values[i] = -2.0f;
  values[32] = 3.0f;
  Tensor pool(Dtype::kU8, {geometry.total_bytes()});
  encode_slot(geometry, pool.view().data, 0, values.data(), true);
  const uint8_t* row = pool.view().as<uint8_t>();
  float scales[4];
  std::memcpy(scales, row + 32, sizeof scales);
  CHECK(row[0] == 0x7E);
  CHECK(row[8] == 0xFE);
  CHECK(scales[0] == 1.0f / 448);
  CHECK(scales[1] == 2.0f / 448);
  Bf16 rope;
  std::memcpy(&rope, row + 48, sizeof rope);
  CHECK(to_float(rope) == 3.0f);
}

TEST_CASE("a group of zeros becomes NaN codes without a floor, and zeros with one") {
  const CacheGeometry geometry = small(Format::kKvPacked);
  std::vector<float> values(48, 1.0f);
  for (size_t i = 16; i < 24; ++i) values[i] = 0.0f;
  Tensor pool(Dtype::kU8, {geometry.total_bytes()});
  encode_slot(geometry, pool.view().data, 0, values.data(), true);
  const uint8_t* row = pool.view().as<uint8_t>();
  for (int i = 0; i < 32; ++i) CHECK((row[i] == 0x7F) == (i >= 16 && i < 24));
  const std::vector<float> floored = round_trip(geometry, values, false);
  for (size_t i = 16; i < 24; ++i) CHECK(floored[i] == 0.0f);
}

TEST_CASE("index keys always have the floor") {
  const CacheGeometry geometry = small(Format::kIndexFp8);
  for (const float value : round_trip(geometry, std::vector<float>(32, 0.0f), true)) CHECK(value == 0.0f);
}

TEST_CASE("a NaN is stored as a NaN and does not spoil its group's scale") {
  for (const Format format : kCacheFormats) {
    const CacheGeometry geometry = small(format);
    std::vector<float> values(static_cast<size_t>(geometry.width()), 1.0f);
    values[2] = -std::nanf("");
    const std::vector<float> decoded = round_trip(geometry, values);
    INFO(format_name(format));
    for (size_t i = 0; i < values.size(); ++i) CHECK(std::isnan(decoded[i]) == (i == 2));
  }
}

TEST_CASE("plain fp8 saturates at 448") {
  const CacheGeometry geometry = small(Format::kKvPlainFp8);
  std::vector<float> values(48, 1e6f);
  values[1] = -1e6f;
  const std::vector<float> decoded = round_trip(geometry, values);
  CHECK(decoded[0] == 448.0f);
  CHECK(decoded[1] == -448.0f);
}

TEST_CASE("a reader with a longer stride takes packed rows as plain codes") {
  Random random(3);
  const CacheGeometry packed = small(Format::kKvPacked);
  const Tensor pool = random_pool(packed, random);
  CacheGeometry plain = small(Format::kKvPlainFp8);
  plain.row_stride_bytes = packed.row_bytes();
  CHECK(plain.total_bytes() == packed.total_bytes());
  std::vector<float> decoded(48);
  decode_slot(plain, pool.view().data, 6, decoded.data());
  const uint8_t* row = pool.view().as<uint8_t>() + 6 * packed.row_bytes();
  for (size_t i = 0; i < 48; ++i) {
    const float expected = e4m3_to_float(row[i]);
    CHECK((decoded[i] == expected || (std::isnan(decoded[i]) && std::isnan(expected))));
  }
}
