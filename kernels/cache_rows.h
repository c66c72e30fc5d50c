// Rows of the paged caches as kernels see them: bytes, read and written through views, so that a slot past the pool
// shows.
//
//   kF32, kBf16     latent + rope values
//   kPacked         latent e4m3 codes, kPackedGroups fp32 scales (one a quarter of the latent), rope values in bf16
//                   (656 bytes at 512 + 64; SGLang v0.5.9, layers/attention/nsa/quant_k_cache.py; FlashMLA,
//                   tests/quant.py)
//   kPlainFp8       latent + rope e4m3 codes, no scale
//   kIndexFp8       pages of page_size keys: page_size x latent codes, then page_size fp32 scales (8448 bytes at 64 x
//   128;
//                   SGLang, mem_cache/memory_pool.py). The other formats have one row after another, whatever the page.
#pragma once

#include "kernels/operand.h"

namespace faultline::kernels {

inline constexpr int kPackedGroups = 4;            // scales a packed row
inline constexpr float kE4m3Largest = 448.0f;      // the scale maps the largest magnitude of a group to it
inline constexpr int64_t kMaskedSlot = INT64_MIN;  // a key that is not read
inline constexpr float kIndexAmaxFloor =
    1e-4f;  // of index keys (SGLang, jit_kernel/csrc/nsa/fused_store_index_cache.cuh)

enum class RowFormat : uint8_t { kF32, kBf16, kPacked, kPlainFp8, kIndexFp8 };

struct CacheLayout {
  RowFormat format = RowFormat::kBf16;
  int64_t slots = 0;
  int64_t page_size = 64;
  int64_t latent = 0;
  int64_t rope = 0;
  int64_t row_stride = 0;  // bytes from one slot to the next (kIndexFp8: a page's bytes / page_size)

  FAULTLINE_HD int64_t width() const { return latent + rope; }
  FAULTLINE_HD int64_t row(int64_t slot) const { return slot * row_stride; }
  FAULTLINE_HD int64_t packed_scale(int64_t slot, int64_t group) const {
    return row(slot) + latent + group * static_cast<int64_t>(sizeof(float));
  }
  FAULTLINE_HD int64_t packed_rope(int64_t slot) const { return packed_scale(slot, kPackedGroups); }
  FAULTLINE_HD int64_t index_codes(int64_t slot) const {
    return slot / page_size * page_size * row_stride + slot % page_size * latent;
  }
  FAULTLINE_HD int64_t index_scale(int64_t slot) const {
    return slot / page_size * page_size * row_stride + page_size * latent +
           slot % page_size * static_cast<int64_t>(sizeof(float));
  }
};

// The power of two at or above a positive, normal float; inf stays inf.
FAULTLINE_HD inline float power_of_two_at_least(float value) {
  constexpr uint32_t kMantissa = 0x007FFFFFu;
  const uint32_t bits = float_bits(value);
  return float_from_bits((bits & kMantissa) == 0 ? bits : (bits & ~kMantissa) + kMantissa + 1);
}

// The scale of an index key (and of an index query in FP8) whose largest magnitude is `amax`: amax / 448 in float as
// SGLang's fused store has it, or the power of two above amax * (1 / 448) as its act_quant with scale_fmt ue8m0
// (layers/attention/nsa/tilelang_kernel.py: the product is with the reciprocal).
FAULTLINE_HD inline float index_scale_of(float amax, bool ue8m0) {
  const float largest = amax > kIndexAmaxFloor ? amax : kIndexAmaxFloor;
  return ue8m0 ? power_of_two_at_least(largest * (1.0f / kE4m3Largest)) : largest / kE4m3Largest;
}

// A code of its own type, so that a bad read of one is NaN and not a zero.
struct E4m3 {
  uint8_t code;
};
using faultline::to_float;  // the overload below would hide the others
FAULTLINE_HD inline float to_float(E4m3 value) {
  return e4m3_to_float(value.code);
}
template <>
struct BadValue<E4m3> {
  FAULTLINE_HD static E4m3 get() { return E4m3{0x7F}; }
};

// Every NaN has one code: conversion instructions drop the sign that x86 gives to 0 * inf.
FAULTLINE_HD inline E4m3 to_e4m3(float value) {
  return value != value ? E4m3{0x7F} : E4m3{float_to_e4m3(clamp_e4m3(value))};
}

template <bool kChecked>
using Pool = View<uint8_t, kChecked>;

// `count` stored values of one type, from a byte offset, as floats times `scale`.
template <class Stored, bool kChecked>
FAULTLINE_HD void read_run(const Pool<kChecked>& pool, int64_t at, int64_t count, float scale, float* out) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = to_float(pool.template load_as<Stored>(at + i * static_cast<int64_t>(sizeof(Stored)))) * scale;
}

// Columns [begin, end) of one slot as floats.
template <bool kChecked>
FAULTLINE_HD void read_columns(const Pool<kChecked>& pool, const CacheLayout& layout, int64_t slot, int64_t begin,
                               int64_t end, float* out) {
  const int64_t count = end - begin;
  switch (layout.format) {
    case RowFormat::kF32:
      read_run<float>(pool, layout.row(slot) + begin * 4, count, 1.0f, out);
      return;
    case RowFormat::kBf16:
      read_run<Bf16>(pool, layout.row(slot) + begin * 2, count, 1.0f, out);
      return;
    case RowFormat::kPlainFp8:
      read_run<E4m3>(pool, layout.row(slot) + begin, count, 1.0f, out);
      return;
    case RowFormat::kIndexFp8:
      read_run<E4m3>(pool, layout.index_codes(slot) + begin, count,
                     pool.template load_as<float>(layout.index_scale(slot)), out);
      return;
    case RowFormat::kPacked:
      break;
  }
  const int64_t group_size = layout.latent / kPackedGroups;
  int64_t column = begin;
  while (column < end && column < layout.latent) {
    const int64_t group = column / group_size;
    const int64_t group_end = (group + 1) * group_size < end ? (group + 1) * group_size : end;
    const float scale = pool.template load_as<float>(layout.packed_scale(slot, group));
    read_run<E4m3>(pool, layout.row(slot) + column, group_end - column, scale, out + (column - begin));
    column = group_end;
  }
  if (column < end)
    read_run<Bf16>(pool, layout.packed_rope(slot) + (column - layout.latent) * 2, end - column, 1.0f,
                   out + (column - begin));
}

// The threads of a block share the rows of `count` slots: `rows` is [count][width] in shared memory. A masked slot
// gives zeros.
template <bool kChecked, class Block>
FAULTLINE_HD void stage_rows(Block& block, const Pool<kChecked>& pool, const CacheLayout& layout, const int64_t* slots,
                             int64_t count, float* rows) {
  constexpr int64_t kColumns = 64;  // a thread's piece: one cache line or more in every format
  const int64_t width = layout.width();
  const int64_t pieces = (width + kColumns - 1) / kColumns;
  block.for_each_thread([&](int t) {
    for (int64_t item = t; item < count * pieces; item += block.threads()) {
      const int64_t j = item / pieces;
      const int64_t begin = item % pieces * kColumns;
      const int64_t end = begin + kColumns < width ? begin + kColumns : width;
      float* out = rows + j * width + begin;
      if (slots[j] == kMaskedSlot) {
        for (int64_t c = 0; c < end - begin; ++c) out[c] = 0;
      } else {
        read_columns<kChecked>(pool, layout, slots[j], begin, end, out);
      }
    }
  });
}

}  // namespace faultline::kernels
