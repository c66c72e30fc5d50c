#include "ops/formats.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace faultline {
namespace {

constexpr float kLargestCode = 448.0f;  // e4m3's largest finite magnitude, which a group's amax is mapped to
constexpr float kAmaxFloor = 1e-4f;
constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kBf16Bytes = sizeof(Bf16);

template <class T>
T read(const std::byte* at) {
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
void write(std::byte* at, T value) {
  memcpy(at, &value, sizeof value);
}

// What a conversion instruction makes of a float: saturated, and every NaN 0x7F whatever its sign.
uint8_t saturated_code(float value) {
  return std::isnan(value) ? uint8_t{0x7F} : float_to_e4m3(clamp_e4m3(value));
}

// fmax semantics: a NaN among the values does not become the scale.
float largest_magnitude(const float* values, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::fmax(largest, std::fabs(values[i]));
  return largest;
}

// Codes of one group that shares a scale. The server multiplies with the reciprocal, so a scale of 0 gives 0 * inf =
// NaN.
void encode_scaled(const float* values, int64_t count, float scale, std::byte* codes) {
  const float inverse = 1.0f / scale;
  for (int64_t i = 0; i < count; ++i) codes[i] = std::byte{saturated_code(values[i] * inverse)};
}

// The same with the scale that maps `amax` to the largest code. Returns the scale.
float encode_group(const float* values, int64_t count, float amax, std::byte* codes) {
  const float scale = amax / kLargestCode;
  encode_scaled(values, count, scale, codes);
  return scale;
}

// 2^ceil(log2(value)) of a positive float; inf and NaN stay what they are.
float rounded_up_to_power(float value) {
  if (!std::isfinite(value)) return value;
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);  // in [0.5, 1)
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

float index_scale(const float* values, int64_t count, bool ue8m0) {
  const float amax = std::max(largest_magnitude(values, count), kAmaxFloor);
  return ue8m0 ? rounded_up_to_power(amax * (1.0f / kLargestCode)) : amax / kLargestCode;
}

void decode_codes(const std::byte* codes, int64_t count, float scale, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = e4m3_to_float(std::to_integer<uint8_t>(codes[i])) * scale;
}

}  // namespace

std::string_view format_name(Format format) {
  switch (format) {
    case Format::kPlain:
      return "plain";
    case Format::kNvfp4:
      return "nvfp4";
    case Format::kKvF32:
      return "kv_f32";
    case Format::kKvBf16:
      return "kv_bf16";
    case Format::kKvPacked:
      return "kv_packed";
    case Format::kKvPlainFp8:
      return "kv_plain_fp8";
    case Format::kIndexF32:
      return "index_f32";
    case Format::kIndexFp8:
      return "index_fp8";
  }
  return "?";
}

int64_t CacheGeometry::row_bytes() const {
  switch (format) {
    case Format::kKvF32:
    case Format::kIndexF32:
      return width() * kFloatBytes;
    case Format::kKvBf16:
      return width() * kBf16Bytes;
    case Format::kKvPacked:
      return latent + kPackedScales * kFloatBytes + rope * kBf16Bytes;
    case Format::kKvPlainFp8:
      return width();
    case Format::kIndexFp8:
      return latent + kFloatBytes;
    case Format::kPlain:
    case Format::kNvfp4:
      break;
  }
  FAULTLINE_CHECK(!"a cache has no such format");
  return 0;
}

std::array<ByteRange, 2> slot_bytes(const CacheGeometry& geometry, int64_t slot) {
  if (geometry.format == Format::kIndexFp8) {
    const int64_t page = slot / geometry.page_size * geometry.page_size * geometry.row_bytes();
    const int64_t offset = slot % geometry.page_size;
    const int64_t codes = page + offset * geometry.latent;
    const int64_t scale = page + geometry.page_size * geometry.latent + offset * kFloatBytes;
    return {ByteRange{codes, codes + geometry.latent}, ByteRange{scale, scale + kFloatBytes}};
  }
  const int64_t begin = slot * geometry.stride_bytes();
  return {ByteRange{begin, begin + geometry.row_bytes()}, ByteRange{}};
}

void decode_slot(const CacheGeometry& geometry, const std::byte* cache, int64_t slot, float* out) {
  const auto [row_range, scale_range] = slot_bytes(geometry, slot);
  const std::byte* row = cache + row_range.begin;
  switch (geometry.format) {
    case Format::kKvF32:
    case Format::kIndexF32:
      for (int64_t i = 0; i < geometry.width(); ++i) out[i] = read<float>(row + i * kFloatBytes);
      return;
    case Format::kKvBf16:
      for (int64_t i = 0; i < geometry.width(); ++i) out[i] = to_float(read<Bf16>(row + i * kBf16Bytes));
      return;
    case Format::kKvPlainFp8:
      decode_codes(row, geometry.width(), 1.0f, out);
      return;
    case Format::kIndexFp8:
      decode_codes(row, geometry.latent, read<float>(cache + scale_range.begin), out);
      return;
    case Format::kKvPacked: {
      const int64_t group = geometry.latent / kPackedScales;
      const std::byte* scales = row + geometry.latent;
      const std::byte* rope = scales + kPackedScales * kFloatBytes;
      for (int64_t g = 0; g < kPackedScales; ++g)
        decode_codes(row + g * group, group, read<float>(scales + g * kFloatBytes), out + g * group);
      for (int64_t i = 0; i < geometry.rope; ++i)
        out[geometry.latent + i] = to_float(read<Bf16>(rope + i * kBf16Bytes));
      return;
    }
    case Format::kPlain:
    case Format::kNvfp4:
      break;
  }
  FAULTLINE_CHECK(!"a cache has no such format");
}

float quantize_index_values(float* values, int64_t count, bool ue8m0) {
  const float scale = index_scale(values, count, ue8m0);
  const float inverse = 1.0f / scale;
  for (int64_t i = 0; i < count; ++i) values[i] = e4m3_to_float(saturated_code(values[i] * inverse));
  return scale;
}

void encode_slot(const CacheGeometry& geometry, std::byte* cache, int64_t slot, const float* values, bool floorless,
                 bool ue8m0) {
  const auto [row_range, scale_range] = slot_bytes(geometry, slot);
  std::byte* row = cache + row_range.begin;
  switch (geometry.format) {
    case Format::kKvF32:
    case Format::kIndexF32:
      for (int64_t i = 0; i < geometry.width(); ++i) write(row + i * kFloatBytes, values[i]);
      return;
    case Format::kKvBf16:
      for (int64_t i = 0; i < geometry.width(); ++i) write(row + i * kBf16Bytes, to_bf16(values[i]));
      return;
    case Format::kKvPlainFp8:
      for (int64_t i = 0; i < geometry.width(); ++i) row[i] = std::byte{saturated_code(values[i])};
      return;
    case Format::kIndexFp8: {
      const float scale = index_scale(values, geometry.latent, ue8m0);
      encode_scaled(values, geometry.latent, scale, row);
      write(cache + scale_range.begin, scale);
      return;
    }
    case Format::kKvPacked: {
      const int64_t group = geometry.latent / kPackedScales;
      std::byte* scales = row + geometry.latent;
      std::byte* rope = scales + kPackedScales * kFloatBytes;
      for (int64_t g = 0; g < kPackedScales; ++g) {
        const float found = largest_magnitude(values + g * group, group);
        const float amax = floorless ? found : std::max(found, kAmaxFloor);
        write(scales + g * kFloatBytes, encode_group(values + g * group, group, amax, row + g * group));
      }
      for (int64_t i = 0; i < geometry.rope; ++i) write(rope + i * kBf16Bytes, to_bf16(values[geometry.latent + i]));
      return;
    }
    case Format::kPlain:
    case Format::kNvfp4:
      break;
  }
  FAULTLINE_CHECK(!"a cache has no such format");
}

}  // namespace faultline
