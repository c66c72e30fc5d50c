// What the product bodies share on the device: decoding of weights into bf16 pairs, tensor core instructions, which
// rows and which matrix a block has.
//
// Fragments of mma.m16n8k16 (PTX ISA, "Matrix fragments for mma.m16n8k16"): lane = 4 g + t holds of A rows g and g + 8,
// columns 2t, 2t+1, 2t+8, 2t+9; of B the same columns of K and column g; of C rows g, g + 8 and columns 2t, 2t+1. The
// weights are A and x is B. A sum over K may run in any order, so a lane's columns are taken from one 16-byte piece of
// its weight row (32 codes of NVFP4, 16 of FP8, 8 bf16) and the same columns of x; four lanes cover 64 bytes of a row.
// A piece is worked off in groups of 8 columns, two instructions each.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "kernels/cuda_products.h"

namespace faultline::kernels::products {

constexpr int kWarp = 32;
constexpr int kGroup = 8;        // columns of x in 16 bytes
constexpr int kPieceBytes = 16;  // of one weight row, one lane
constexpr int kRowBytes = 64;    // of one weight row, the four lanes that share it
constexpr int kWarpRows = 32;    // weight rows a warp keeps: two blocks of 16
constexpr int kRowBlocks = 2;
constexpr int kLogMaxClusters = 3;  // CUDA programming guide: the portable cluster size

// Codes are decoded to 2^-8 of their value: they are placed as bf16 bits of 2^-126 of it (the smallest exponents), and
// scales are multiplied by 2^118, which bf16 can hold. The epilogue multiplies by 2^8; all of it is exact.
constexpr float kScaleUp = 0x1p118f;
constexpr float kCodesUp = 0x1p8f;

__device__ inline uint4 load_once(const void* pointer) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer));
  return v;
}

__device__ inline uint4 shared_vector(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ inline uint32_t shared_half(uint32_t address) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
  return v;
}

__device__ inline void mma(float (&c)[4], const uint32_t a0, const uint32_t a1, const uint32_t a2, const uint32_t a3,
                           const uint32_t b0, const uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ inline uint32_t pair_of(float low, float high) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// Two e4m3 bytes as floats.
__device__ inline float2 e4m3_pair(uint32_t two) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(two)));
  __half2 h;
  memcpy(&h, &halves, sizeof h);
  return __half22float2(h);
}

// An e4m3 scale 2^118 times, in both halves.
__device__ inline void fp4_scale_pairs(uint32_t two, uint32_t& first, uint32_t& second) {
  const float2 s = e4m3_pair(two);
  first = pair_of(s.x * kScaleUp, s.x * kScaleUp);
  second = pair_of(s.y * kScaleUp, s.y * kScaleUp);
}

// Eight codes times their scale: pairs of columns (0,4) (1,5) (2,6) (3,7). One multiplication copies a code to both
// places, its sign to bit 15 and its magnitude to bits 8..6 of a half (12 and 6 up from bits 3..0), the rest is masked.
__device__ inline void decode_fp4(uint32_t w, uint32_t scale, uint32_t (&out)[4]) {
  constexpr uint32_t kLow = 0x000F000Fu;
  constexpr uint32_t kHigh = 0x00F000F0u;
  constexpr uint32_t kLowPlaces = (1u << 12) | (1u << 6);
  constexpr uint32_t kHighPlaces = kLowPlaces >> 4;
  constexpr uint32_t kKept = 0x81C081C0u;
  const uint32_t upper = w >> 8;
  out[0] = multiply_pairs((w & kLow) * kLowPlaces & kKept, scale);
  out[1] = multiply_pairs((w & kHigh) * kHighPlaces & kKept, scale);
  out[2] = multiply_pairs((upper & kLow) * kLowPlaces & kKept, scale);
  out[3] = multiply_pairs((upper & kHigh) * kHighPlaces & kKept, scale);
}

// x in the order of decode_fp4's pairs.
__device__ inline void interleave(const uint4& x, uint32_t (&out)[4]) {
  out[0] = __byte_perm(x.x, x.z, 0x5410);
  out[1] = __byte_perm(x.x, x.z, 0x7632);
  out[2] = __byte_perm(x.y, x.w, 0x5410);
  out[3] = __byte_perm(x.y, x.w, 0x7632);
}

template <int kIndex>
__device__ inline uint32_t word(const uint4& v) {
  if constexpr (kIndex == 0) return v.x;
  if constexpr (kIndex == 1) return v.y;
  if constexpr (kIndex == 2) return v.z;
  if constexpr (kIndex == 3) return v.w;
}

// How each precision is read and decoded. kColumns: of a piece; decode<group> gives four bf16 pairs.
template <WeightType kType>
struct Piece;

template <>
struct Piece<WeightType::kFp4> {
  static constexpr int kColumns = 32;
  static constexpr int kGroups = 4;
  static constexpr bool kInterleaved = true;
  uint4 codes;
  uint32_t scales;  // two e4m3

  __device__ void load(const uint8_t* values, const uint8_t* scales_at, int column, bool inside) {
    codes = inside ? load_once(values + column / 2) : make_uint4(0, 0, 0, 0);
    scales = inside ? __ldg(reinterpret_cast<const uint16_t*>(scales_at + column / kFp4Block)) : 0;
  }
  __device__ void load_shared(uint32_t at, uint32_t scales_at) {
    codes = shared_vector(at);
    scales = shared_half(scales_at);
  }
  template <int kAt>
  __device__ void decode(uint32_t (&out)[4]) const {
    uint32_t first, second;
    fp4_scale_pairs(scales, first, second);
    decode_fp4(word<kAt>(codes), kAt < 2 ? first : second, out);
  }
};

template <>
struct Piece<WeightType::kFp8> {
  static constexpr int kColumns = 16;
  static constexpr int kGroups = 2;
  static constexpr bool kInterleaved = false;
  uint4 codes;

  __device__ void load(const uint8_t* values, const uint8_t*, int column, bool inside) {
    codes = inside ? load_once(values + column) : make_uint4(0, 0, 0, 0);
  }
  __device__ void load_shared(uint32_t at, uint32_t) { codes = shared_vector(at); }
  template <int kAt>
  __device__ void decode(uint32_t (&out)[4]) const {
    const uint32_t low = word<kAt * 2>(codes);
    const uint32_t high = word<kAt * 2 + 1>(codes);
    const float2 a = e4m3_pair(low), b = e4m3_pair(low >> 16), c = e4m3_pair(high), d = e4m3_pair(high >> 16);
    out[0] = pair_of(a.x, a.y);
    out[1] = pair_of(b.x, b.y);
    out[2] = pair_of(c.x, c.y);
    out[3] = pair_of(d.x, d.y);
  }
};

template <>
struct Piece<WeightType::kBf16> {
  static constexpr int kColumns = 8;
  static constexpr int kGroups = 1;
  static constexpr bool kInterleaved = false;
  uint4 values_;

  __device__ void load(const uint8_t* values, const uint8_t*, int column, bool inside) {
    values_ = inside ? load_once(values + column * 2) : make_uint4(0, 0, 0, 0);
  }
  __device__ void load_shared(uint32_t at, uint32_t) { values_ = shared_vector(at); }
  template <int kAt>
  __device__ void decode(uint32_t (&out)[4]) const {
    out[0] = values_.x;
    out[1] = values_.y;
    out[2] = values_.z;
    out[3] = values_.w;
  }
};

// The matrix that a tile of `tile_rows` weight rows belongs to, and where its results go.
struct WeightTile {
  DeviceWeight weight;
  int32_t rows;        // of the matrix
  int32_t first;       // the tile's first row in it
  int64_t out_column;  // of that row
};

__device__ inline WeightTile weight_tile(const Product& p, int tile, int tile_rows, int group, int64_t head) {
  WeightTile result;
  int part = 0;
  int64_t column = 0;
  for (; part < p.parts - 1; ++part) {
    const int tiles = (p.part_rows[part] + tile_rows - 1) / tile_rows;
    if (tile < tiles) break;
    tile -= tiles;
    column += p.part_rows[part];
  }
  result.weight = p.table != nullptr ? p.table[group * p.parts + part] : p.inline_weights[part];
  result.weight.values += head * p.weight_batch;
  result.rows = p.part_rows[part];
  result.first = tile * tile_rows;
  result.out_column = column + result.first;
  return result;
}

__host__ __device__ inline int weight_tiles(const Product& p, int tile_rows) {
  int tiles = 0;
  for (int part = 0; part < p.parts; ++part) tiles += (p.part_rows[part] + tile_rows - 1) / tile_rows;
  return tiles;
}

// Row `entry` of an item: its row of out, -1 where it is left out.
__device__ inline int32_t out_row(const Product& p, int32_t entry) {
  return p.groups > 0 ? p.order[entry] : entry;
}

// What multiplies a sum, besides the 2^8 of decoded codes: scales that are read from memory.
__device__ inline float epilogue_factor(const Product& p, const DeviceWeight& weight) {
  float factor = 1;
  if (p.type == WeightType::kFp4) factor = *weight.global;
  if (p.fp8_scaling == Fp8Scaling::kTensor) factor = *reinterpret_cast<const float*>(weight.scales);
  if (p.input_scales[0] != nullptr) {
    float largest = *p.input_scales[0];
    for (int i = 1; i < kMostParts; ++i) {
      if (p.input_scales[i] == nullptr) break;
      const float value = *p.input_scales[i];
      if (value > largest || value != value) largest = value;
    }
    factor *= largest;
  }
  return factor;
}

// The e4m3 factor of a group of 128 columns, where FP8 comes in blocks.
__device__ inline float fp8_block_scale(const Product& p, const DeviceWeight& weight, int64_t row, int64_t column) {
  if (p.fp8_scaling != Fp8Scaling::kBlocks) return 1;
  return *reinterpret_cast<const float*>(weight.scales + row / kFp8Block * weight.scale_stride +
                                         column / kFp8Block * static_cast<int64_t>(sizeof(float)));
}

__device__ inline void store_out(const Product& p, int64_t head, int64_t row, int64_t column, float value) {
  uint8_t* out = static_cast<uint8_t*>(p.out) + head * p.out_batch;
  if (p.out_f32)
    reinterpret_cast<float*>(out)[row * p.out_stride + column] = value;
  else
    reinterpret_cast<__nv_bfloat16*>(out)[row * p.out_stride + column] = __float2bfloat16_rn(value);
}

// Keeps a refused launch for take_launch_error.
void check_launch(const char* body, cudaError_t error);

void launch_skinny(const LaunchContext& context, const Product& product);
void launch_tiles(const LaunchContext& context, const Product& product, void* prepared);
void launch_plain(const LaunchContext& context, const Product& product);
void launch_heads(const LaunchContext& context, const Product& product);

// Rows of x that a tiles block takes of this product, and the bytes of x prepared for it.
int tile_rows(const Product& product);
int64_t prepared_bytes_of(const Product& product);

constexpr int kSkinnyRows = 16;    // rows of x that a skinny block takes
constexpr int kTileRows = 128;     // the same of the tiles body
constexpr int kPromotedRows = 64;  // the same where sums are carried on in float
constexpr int kPlainRows = 64;
constexpr int64_t kMostHeadRows = 512;  // K of the heads body

}  // namespace faultline::kernels::products
