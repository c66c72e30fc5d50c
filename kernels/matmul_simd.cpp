#include "kernels/matmul_simd.h"

#include <algorithm>

#include "base/codec.h"

// Highway compiles the rest of this file once an instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul_simd.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which decides what highway.h defines.
#include <hwy/highway.h>

// Sums of a tile live in registers only when every loop over them is unrolled, which -O2 alone does not do.
#undef FAULTLINE_UNROLL
#define FAULTLINE_UNROLL _Pragma("GCC unroll 16")

HWY_BEFORE_NAMESPACE();
namespace faultline::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A vector of floats lies within one block of 16 columns, so that one scale covers it.
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
using FloatVector = hn::Vec<Floats>;
constexpr int64_t kBlock = 16;

HWY_INLINE int64_t float_lanes() {
  return static_cast<int64_t>(hn::Lanes(Floats()));
}

alignas(16) constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void DecodeE2m1Doubled(const uint8_t* HWY_RESTRICT codes, int64_t columns, int8_t* HWY_RESTRICT out) {
  int64_t column = 0;
#if HWY_TARGET != HWY_SCALAR
  // Each byte as 16 bits, low nibble in the low half, high nibble in the other; then all through a table of 16.
  const hn::ScalableTag<uint16_t> pairs;
  const hn::Repartition<uint8_t, decltype(pairs)> bytes;
  const hn::Rebind<uint8_t, decltype(pairs)> packed;
  const auto table = hn::LoadDup128(bytes, reinterpret_cast<const uint8_t*>(kDoubled));
  const auto nibbles = hn::Set(pairs, uint16_t{0x0F0F});
  const auto lanes = static_cast<int64_t>(hn::Lanes(bytes));
  auto* to = reinterpret_cast<uint8_t*>(out);
  for (; column + lanes <= columns; column += lanes) {
    const auto wide = hn::PromoteTo(pairs, hn::LoadU(packed, codes + column / 2));
    const auto split = hn::And(hn::Or(wide, hn::ShiftLeft<4>(wide)), nibbles);
    hn::StoreU(hn::TableLookupBytes(table, hn::BitCast(bytes, split)), bytes, to + column);
  }
#endif
  for (; column < columns; column += 2) {
    out[column] = kDoubled[codes[column / 2] & 15];
    out[column + 1] = kDoubled[codes[column / 2] >> 4];
  }
}

// Loaders: `lanes` consecutive weights of one row as floats, and one alone for the tail.
struct LoadFloats {
  const float* row;
  HWY_INLINE FloatVector operator()(int64_t c) const { return hn::LoadU(Floats(), row + c); }
  HWY_INLINE float one(int64_t c) const { return row[c]; }
};
struct LoadBf16 {
  const uint16_t* row;
  HWY_INLINE FloatVector operator()(int64_t c) const {
    const hn::Rebind<uint16_t, Floats> halves;
    return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), hn::LoadU(halves, row + c))));
  }
  HWY_INLINE float one(int64_t c) const { return to_float(Bf16{row[c]}); }
};
struct LoadDoubled {
  const int8_t* row;
  const float* half_scales;
  HWY_INLINE FloatVector operator()(int64_t c) const {
    const hn::Rebind<int8_t, Floats> bytes;
    const auto value = hn::ConvertTo(Floats(), hn::PromoteTo(Ints(), hn::LoadU(bytes, row + c)));
    return hn::Mul(value, hn::Set(Floats(), half_scales[static_cast<uint64_t>(c) / kBlock]));
  }
  HWY_INLINE float one(int64_t c) const {
    return static_cast<float>(row[c]) * half_scales[static_cast<uint64_t>(c) / kBlock];
  }
};

// kWeights x kRows sums, each in one vector: as many as hide the latency of an addition and still fit the registers.
template <int kWeights, int kRows, class Loader>
HWY_INLINE void DotTile(const float* HWY_RESTRICT x, int64_t x_stride, const Loader* loaders, int64_t columns,
                        float* HWY_RESTRICT out, int64_t out_stride) {
  const Floats floats;
  const int64_t lanes = float_lanes();
  FloatVector sums[kWeights * kRows];
  FAULTLINE_UNROLL
  for (auto& sum : sums) sum = hn::Zero(floats);
  int64_t c = 0;
  for (; c + lanes <= columns; c += lanes) {
    FloatVector w[kWeights];
    FAULTLINE_UNROLL
    for (int i = 0; i < kWeights; ++i) w[i] = loaders[i](c);
    FAULTLINE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto value = hn::LoadU(floats, x + r * x_stride + c);
      FAULTLINE_UNROLL
      for (int i = 0; i < kWeights; ++i) sums[r * kWeights + i] = hn::MulAdd(w[i], value, sums[r * kWeights + i]);
    }
  }
  FAULTLINE_UNROLL
  for (int r = 0; r < kRows; ++r) FAULTLINE_UNROLL
  for (int i = 0; i < kWeights; ++i) {
    float sum = hn::GetLane(hn::SumOfLanes(floats, sums[r * kWeights + i]));
    for (int64_t tail = c; tail < columns; ++tail) sum += loaders[i].one(tail) * x[r * x_stride + tail];
    out[r * out_stride + i] = sum;
  }
}

template <int kWeights, class Loader>
HWY_INLINE void DotRows(const float* x, int64_t x_stride, int64_t rows, const Loader* loaders, int64_t columns,
                        float* out, int64_t out_stride) {
  int64_t r = 0;
  for (; r + 3 <= rows; r += 3)
    DotTile<kWeights, 3>(x + r * x_stride, x_stride, loaders, columns, out + r * out_stride, out_stride);
  if (rows - r == 2)
    DotTile<kWeights, 2>(x + r * x_stride, x_stride, loaders, columns, out + r * out_stride, out_stride);
  if (rows - r == 1)
    DotTile<kWeights, 1>(x + r * x_stride, x_stride, loaders, columns, out + r * out_stride, out_stride);
}

template <class Loader>
HWY_INLINE void DotWeights(const float* x, int64_t x_stride, int64_t rows, const Loader* loaders, int64_t weights,
                           int64_t columns, float* out, int64_t out_stride) {
  if (weights == kTileWeights) {
    DotRows<kTileWeights>(x, x_stride, rows, loaders, columns, out, out_stride);
    return;
  }
  for (int64_t i = 0; i < weights; ++i) DotRows<1>(x, x_stride, rows, loaders + i, columns, out + i, out_stride);
}

void DotF32(const float* x, int64_t x_stride, int64_t rows, const float* w, int64_t w_stride, int64_t weights,
            int64_t columns, float* out, int64_t out_stride) {
  LoadFloats loaders[kTileWeights];
  for (int64_t i = 0; i < weights; ++i) loaders[i] = LoadFloats{w + i * w_stride};
  DotWeights(x, x_stride, rows, loaders, weights, columns, out, out_stride);
}

void DotBf16(const float* x, int64_t x_stride, int64_t rows, const uint16_t* w, int64_t w_stride, int64_t weights,
             int64_t columns, float* out, int64_t out_stride) {
  LoadBf16 loaders[kTileWeights];
  for (int64_t i = 0; i < weights; ++i) loaders[i] = LoadBf16{w + i * w_stride};
  DotWeights(x, x_stride, rows, loaders, weights, columns, out, out_stride);
}

void DotDoubled(const float* x, int64_t x_stride, int64_t rows, const int8_t* w, const float* half_scales,
                int64_t weights, int64_t columns, float* out, int64_t out_stride) {
  LoadDoubled loaders[kTileWeights];
  for (int64_t i = 0; i < weights; ++i) loaders[i] = LoadDoubled{w + i * columns, half_scales + i * (columns / kBlock)};
  DotWeights(x, x_stride, rows, loaders, weights, columns, out, out_stride);
}

// out[r][n..] = sum_k x[r][k] * w[k][n..]: kVectors of columns stay in registers while k runs.
template <int kVectors, int kRows, class Loader>
HWY_INLINE void ColumnsTile(const float* HWY_RESTRICT x, int64_t x_stride, const Loader& first, int64_t w_stride,
                            int64_t k, int64_t column, float* HWY_RESTRICT out, int64_t out_stride) {
  const Floats floats;
  const int64_t lanes = float_lanes();
  FloatVector sums[kVectors * kRows];
  FAULTLINE_UNROLL
  for (auto& sum : sums) sum = hn::Zero(floats);
  for (int64_t i = 0; i < k; ++i) {
    const Loader loader{first.row + i * w_stride};
    FloatVector w[kVectors];
    FAULTLINE_UNROLL
    for (int v = 0; v < kVectors; ++v) w[v] = loader(column + v * lanes);
    FAULTLINE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto value = hn::Set(floats, x[r * x_stride + i]);
      FAULTLINE_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[r * kVectors + v] = hn::MulAdd(w[v], value, sums[r * kVectors + v]);
    }
  }
  FAULTLINE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FAULTLINE_UNROLL
    for (int v = 0; v < kVectors; ++v)
      hn::StoreU(sums[r * kVectors + v], floats, out + r * out_stride + column + v * lanes);
  }
}

template <int kRows, class Loader>
HWY_INLINE void ColumnsRows(const float* x, int64_t x_stride, const Loader& first, int64_t w_stride, int64_t k,
                            int64_t columns, float* out, int64_t out_stride) {
  const int64_t lanes = float_lanes();
  int64_t c = 0;
  for (; c + 4 * lanes <= columns; c += 4 * lanes)
    ColumnsTile<4, kRows>(x, x_stride, first, w_stride, k, c, out, out_stride);
  for (; c + lanes <= columns; c += lanes) ColumnsTile<1, kRows>(x, x_stride, first, w_stride, k, c, out, out_stride);
  for (; c < columns; ++c)
    for (int r = 0; r < kRows; ++r) {
      float sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += Loader{first.row + i * w_stride}.one(c) * x[r * x_stride + i];
      out[r * out_stride + c] = sum;
    }
}

template <class Loader>
HWY_INLINE void Columns(const float* x, int64_t x_stride, int64_t rows, const Loader& first, int64_t w_stride,
                        int64_t k, int64_t columns, float* out, int64_t out_stride) {
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2)
    ColumnsRows<2>(x + r * x_stride, x_stride, first, w_stride, k, columns, out + r * out_stride, out_stride);
  if (r < rows)
    ColumnsRows<1>(x + r * x_stride, x_stride, first, w_stride, k, columns, out + r * out_stride, out_stride);
}

void ColumnsF32(const float* x, int64_t x_stride, int64_t rows, const float* w, int64_t w_stride, int64_t k,
                int64_t columns, float* out, int64_t out_stride) {
  Columns(x, x_stride, rows, LoadFloats{w}, w_stride, k, columns, out, out_stride);
}

void ColumnsBf16(const float* x, int64_t x_stride, int64_t rows, const uint16_t* w, int64_t w_stride, int64_t k,
                 int64_t columns, float* out, int64_t out_stride) {
  Columns(x, x_stride, rows, LoadBf16{w}, w_stride, k, columns, out, out_stride);
}

#if HWY_TARGET == HWY_SCALAR
template <int kWeights, int kRows>
HWY_INLINE void CodesTile(const int16_t* x, const float* x_scales, const int8_t* w, const float* w_scales,
                          int64_t columns, float* out, int64_t out_stride) {
  const int64_t blocks = columns / kBlock;
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kWeights; ++i) {
      float sum = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        int exact = 0;
        for (int64_t c = b * kBlock; c < (b + 1) * kBlock; ++c) exact += w[i * columns + c] * x[r * columns + c];
        sum += static_cast<float>(exact) * (w_scales[i * blocks + b] * x_scales[r * blocks + b]);
      }
      out[r * out_stride + i] = sum;
    }
}
#else
template <int kWeights, int kRows>
HWY_INLINE void CodesTile(const int16_t* HWY_RESTRICT x, const float* HWY_RESTRICT x_scales,
                          const int8_t* HWY_RESTRICT w, const float* HWY_RESTRICT w_scales, int64_t columns,
                          float* HWY_RESTRICT out, int64_t out_stride) {
  using Sums = hn::CappedTag<float, 8>;
  using SumInts = hn::RebindToSigned<Sums>;
  using Pairs = hn::Repartition<int16_t, SumInts>;
  const Sums floats;
  const SumInts ints;
  const Pairs pairs;
  const hn::Rebind<int8_t, Pairs> bytes;
  const auto lanes = static_cast<int64_t>(hn::Lanes(pairs));
  const int64_t blocks = columns / kBlock;
  hn::Vec<Sums> sums[kWeights * kRows];
  FAULTLINE_UNROLL
  for (auto& sum : sums) sum = hn::Zero(floats);
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t c = b * kBlock; c < (b + 1) * kBlock; c += lanes) {
      hn::Vec<Pairs> wide[kWeights];
      FAULTLINE_UNROLL
      for (int i = 0; i < kWeights; ++i) wide[i] = hn::PromoteTo(pairs, hn::LoadU(bytes, w + i * columns + c));
      FAULTLINE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const auto value = hn::LoadU(pairs, x + r * columns + c);
        FAULTLINE_UNROLL
        for (int i = 0; i < kWeights; ++i) {
          auto high = hn::Zero(ints);
          const auto low = hn::ReorderWidenMulAccumulate(ints, wide[i], value, hn::Zero(ints), high);
          const auto exact = hn::ConvertTo(floats, hn::Add(low, high));
          const float scale = w_scales[i * blocks + b] * x_scales[r * blocks + b];
          sums[r * kWeights + i] = hn::MulAdd(exact, hn::Set(floats, scale), sums[r * kWeights + i]);
        }
      }
    }
  FAULTLINE_UNROLL
  for (int r = 0; r < kRows; ++r) FAULTLINE_UNROLL
  for (int i = 0; i < kWeights; ++i)
    out[r * out_stride + i] = hn::GetLane(hn::SumOfLanes(floats, sums[r * kWeights + i]));
}
#endif

template <int kWeights>
HWY_INLINE void CodesRows(const int16_t* x, const float* x_scales, int64_t rows, const int8_t* w, const float* w_scales,
                          int64_t columns, float* out, int64_t out_stride) {
  const int64_t blocks = columns / kBlock;
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2)
    CodesTile<kWeights, 2>(x + r * columns, x_scales + r * blocks, w, w_scales, columns, out + r * out_stride,
                           out_stride);
  if (r < rows)
    CodesTile<kWeights, 1>(x + r * columns, x_scales + r * blocks, w, w_scales, columns, out + r * out_stride,
                           out_stride);
}

void DotCodes(const int16_t* x, const float* x_scales, int64_t rows, const int8_t* w, const float* w_scales,
              int64_t weights, int64_t columns, float* out, int64_t out_stride) {
  if (weights == kTileWeights) {
    CodesRows<kTileWeights>(x, x_scales, rows, w, w_scales, columns, out, out_stride);
    return;
  }
  for (int64_t i = 0; i < weights; ++i)
    CodesRows<1>(x, x_scales, rows, w + i * columns, w_scales + i * (columns / kBlock), columns, out + i, out_stride);
}

template <class Loader>
HWY_INLINE void StoreAll(const Loader& loader, int64_t count, float* HWY_RESTRICT out) {
  const int64_t lanes = float_lanes();
  int64_t c = 0;
  for (; c + lanes <= count; c += lanes) hn::StoreU(loader(c), Floats(), out + c);
  for (; c < count; ++c) out[c] = loader.one(c);
}

struct LoadF16 {
  const uint16_t* row;
  HWY_INLINE FloatVector operator()(int64_t c) const {
    const hn::Rebind<hwy::float16_t, Floats> halves;
    return hn::PromoteTo(Floats(), hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(row + c)));
  }
  HWY_INLINE float one(int64_t c) const { return to_float(F16{row[c]}); }
};
void F16ToFloats(const uint16_t* values, int64_t count, float* out) {
  StoreAll(LoadF16{values}, count, out);
}

// e4m3 is float with a bias of 7 and 3 bits of mantissa: moved to a float's place and scaled by 2^(127 - 7), subnormals
// come out right as well.
struct LoadE4m3 {
  const uint8_t* row;
  HWY_INLINE FloatVector operator()(int64_t c) const {
    const Words words;
    const hn::Rebind<uint8_t, Floats> bytes;
    const auto code = hn::PromoteTo(words, hn::LoadU(bytes, row + c));
    const auto magnitude = hn::And(code, hn::Set(words, 0x7Fu));
    const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(words, 0x80u)));
    const auto scaled = hn::Mul(hn::BitCast(Floats(), hn::ShiftLeft<20>(magnitude)), hn::Set(Floats(), 0x1p120f));
    const auto value = hn::Or(hn::BitCast(words, scaled), sign);
    const auto is_nan = hn::Eq(magnitude, hn::Set(words, 0x7Fu));
    return hn::BitCast(Floats(), hn::IfThenElse(is_nan, hn::Set(words, 0x7FC00000u), value));
  }
  HWY_INLINE float one(int64_t c) const { return e4m3_to_float(row[c]); }
};
void E4m3ToFloats(const uint8_t* values, int64_t count, float* out) {
  StoreAll(LoadE4m3{values}, count, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace faultline::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace faultline::kernels {

HWY_EXPORT(DecodeE2m1Doubled);
HWY_EXPORT(DotF32);
HWY_EXPORT(DotBf16);
HWY_EXPORT(DotDoubled);
HWY_EXPORT(DotCodes);
HWY_EXPORT(ColumnsF32);
HWY_EXPORT(ColumnsBf16);
HWY_EXPORT(F16ToFloats);
HWY_EXPORT(E4m3ToFloats);

void decode_e2m1_doubled(const uint8_t* codes, int64_t columns, int8_t* out) {
  HWY_DYNAMIC_DISPATCH(DecodeE2m1Doubled)(codes, columns, out);
}
void f16_to_floats(const uint16_t* values, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(F16ToFloats)(values, count, out);
}
void e4m3_to_floats(const uint8_t* values, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(E4m3ToFloats)(values, count, out);
}
void dot_f32(const float* x, int64_t x_stride, int64_t rows, const float* w, int64_t w_stride, int64_t weights,
             int64_t columns, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(DotF32)(x, x_stride, rows, w, w_stride, weights, columns, out, out_stride);
}
void dot_bf16(const float* x, int64_t x_stride, int64_t rows, const uint16_t* w, int64_t w_stride, int64_t weights,
              int64_t columns, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(DotBf16)(x, x_stride, rows, w, w_stride, weights, columns, out, out_stride);
}
void dot_doubled(const float* x, int64_t x_stride, int64_t rows, const int8_t* w, const float* half_scales,
                 int64_t weights, int64_t columns, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(DotDoubled)(x, x_stride, rows, w, half_scales, weights, columns, out, out_stride);
}
void dot_codes(const int16_t* x, const float* x_quarter_scales, int64_t rows, const int8_t* w, const float* w_scales,
               int64_t weights, int64_t columns, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(DotCodes)(x, x_quarter_scales, rows, w, w_scales, weights, columns, out, out_stride);
}

void columns_f32(const float* x, int64_t x_stride, int64_t rows, const float* w, int64_t w_stride, int64_t k,
                 int64_t columns, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(ColumnsF32)(x, x_stride, rows, w, w_stride, k, columns, out, out_stride);
}
void columns_bf16(const float* x, int64_t x_stride, int64_t rows, const uint16_t* w, int64_t w_stride, int64_t k,
                  int64_t columns, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(ColumnsBf16)(x, x_stride, rows, w, w_stride, k, columns, out, out_stride);
}

}  // namespace faultline::kernels
#endif  // HWY_ONCE
