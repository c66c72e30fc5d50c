// NVFP4 times one row of NVFP4 codes, in integers.
//
// An e2m1 value twice is one of 0, 1, 2, 3, 4, 6, 8, 12: a byte permutation looks four of them up at a time. A selector
// with its highest bit set repeats the (clear) sign of the byte instead, so that negative codes come out as 0, and the
// codes with all signs turned give the magnitudes of the negative ones alone. Two sums of mma.m16n8k32 over these are
// subtracted; all of it is exact.
//
// The row of x takes one column of the product; the others would be idle. So column n has x of the n-th of the 8 blocks
// of 16 that four lanes' pieces hold, and zeros else: sums of blocks come out apart, each in a lane that has its scales
// (of a lane's columns 2t and 2t + 1, the two blocks of its piece), and a scale is multiplied once a block.
#pragma once

#include "kernels/cuda_products.cuh"

namespace faultline::kernels::products {

// Bytes of four codes, the lowest 16 bits of `codes`: twice the magnitudes of the positive ones, 0 for the others.
__device__ inline uint32_t positive_bytes(uint32_t codes) {
  constexpr uint32_t kLower = 0x03020100u;
  constexpr uint32_t kUpper = 0x0C080604u;
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(kLower), "r"(kUpper), "r"(codes));
  return bytes;
}

constexpr uint32_t kCodeSigns = 0x88888888u;
constexpr int kHalfWord = 16;

// Four codes as signed bytes.
__device__ inline uint32_t signed_bytes(uint32_t codes) {
  constexpr uint32_t kByteSigns = 0x80808080u;
  return positive_bytes(codes) | ((kByteSigns - positive_bytes(codes ^ kCodeSigns)) ^ kByteSigns);  // none borrows
}

__device__ inline void multiply_bytes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline __half2 e4m3_halves(uint32_t two) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(two)));
  __half2 h;
  memcpy(&h, &halves, sizeof h);
  return h;
}

// A lane's share of x of one piece of four lanes: four codes (lane 4 c + t: those of chunk c of lane t's 32 columns),
// and the scales of its own two blocks.
struct CodesOfRow {
  uint32_t codes;
  uint32_t scales;
  __device__ static int byte_of_lane(int g, int t) { return t * kPieceBytes + g * 2; }
  // `column`: of the lanes' 128 columns the first, so that all that depends on the lane is in the pointers.
  __device__ void load(const uint8_t* x, const uint8_t* scales_at, int column, bool inside) {
    codes = inside ? *reinterpret_cast<const uint16_t*>(x + (static_cast<unsigned>(column) >> 1)) : 0;
    scales = inside ? *reinterpret_cast<const uint16_t*>(scales_at + (static_cast<unsigned>(column) >> 4)) : 0;
  }
};

// The sums of a warp's 32 weight rows. Products of scales are taken in fp16, exactly: x's are made smaller by 2^4 for
// that.
struct CodeSums {
  static constexpr int kTokens = 1;
  static constexpr int kInputs = 1;  // rows of x that a lane reads
  using X = CodesOfRow;
  static constexpr float kUp = 4.0f;  // 2^4 of the scales, over 2 of each code

  float sum[kRowBlocks * 2] = {};  // of rows g, g + 8, g + 16, g + 24: this lane's share

  __device__ void add(const Piece<WeightType::kFp4> (&w)[kRowBlocks][2], const X (&x)[kInputs]) {
    constexpr int kChunks = 4;  // of a block of 16
    constexpr float kScaleDown = 0x1p-4f;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int g = lane / 4;
    const int t = lane % 4;
    const uint32_t own = signed_bytes(x[0].codes);
    uint32_t b[kChunks][2];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const uint32_t chunk = __shfl_sync(0xFFFFFFFFu, own, (g % 2 * kChunks + i) * 4 + t);
      b[i][0] = g == 2 * t ? chunk : 0;
      b[i][1] = g == 2 * t + 1 ? chunk : 0;
    }
    const __half2 x_scale = __hmul2(e4m3_halves(x[0].scales), __float2half2_rn(kScaleDown));
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
      // The bits of 1.5 * 2^23 plus a small integer are the float of that value.
      constexpr int kFloatBits = 0x4B400000;
      int positive[4] = {kFloatBits, kFloatBits, kFloatBits, kFloatBits};
      int negative[4] = {};
      add_chunks<0>(w[r], b, positive, negative);
      add_chunks<1>(w[r], b, positive, negative);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 scale = __half22float2(__hmul2(e4m3_halves(w[r][i].scales), x_scale));
        const auto block = [&](int j) {
          return __int_as_float(positive[2 * i + j] - negative[2 * i + j]) - __int_as_float(kFloatBits);
        };
        sum[r * 2 + i] = fmaf(scale.x, block(0), sum[r * 2 + i]);
        sum[r * 2 + i] = fmaf(scale.y, block(1), sum[r * 2 + i]);
      }
    }
  }

  __device__ void end_step(const Product&, const DeviceWeight&, int64_t, int64_t) {}

  template <class Partial>
  __device__ void store(Partial& partial) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int i = 0; i < kRowBlocks * 2; ++i) {
      float total = sum[i];
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
      if (lane % 4 == i) partial[0][i * 8 + lane / 4] = total;
    }
  }

 private:
  // Chunks 2 kWord and 2 kWord + 1 of both blocks of a piece: words kWord and 2 + kWord.
  template <int kWord>
  __device__ static void add_chunks(const Piece<WeightType::kFp4> (&w)[2], const uint32_t (&b)[4][2],
                                    int (&positive)[4], int (&negative)[4]) {
    const uint32_t words[4] = {word<kWord>(w[0].codes), word<kWord>(w[1].codes), word<2 + kWord>(w[0].codes),
                               word<2 + kWord>(w[1].codes)};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t above[4];
      uint32_t below[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t codes = words[i] >> (half * kHalfWord);
        above[i] = positive_bytes(codes);
        below[i] = positive_bytes(codes ^ kCodeSigns);
      }
      multiply_bytes(positive, above, b[2 * kWord + half][0], b[2 * kWord + half][1]);
      multiply_bytes(negative, below, b[2 * kWord + half][0], b[2 * kWord + half][1]);
    }
  }
};

}  // namespace faultline::kernels::products
