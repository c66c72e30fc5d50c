// CUDA-only bodies of what changes formats: the FP4 quantiser, the cache writers and the gather, on bf16 activations.
// Each gives the bytes of its single-source body (quantize_fp4.h, cache_write.h, cache_gather.h).
#include <type_traits>

#include "kernels/cache_gather.h"
#include "kernels/cache_write.h"
#include "kernels/cuda_vector.cuh"
#include "kernels/quantize_fp4.h"

namespace faultline::kernels {
namespace {

constexpr int64_t kElement = sizeof(Bf16);
constexpr int kWarp = 32;
constexpr unsigned kEveryLane = 0xFFFFFFFFu;

// --- quantize_fp4: a thread a block of 16 columns; blocks go on over the rest, so that the input scales are read once

using Quantizer = QuantizeFp4Body<Bf16, false>;
constexpr int kBlockColumns = Quantizer::kBlockColumns;

// Input scales at regular distances, as those of a layer's experts mostly are: an argument of 8 KiB takes a launch
// longer than the rest of it.
struct RegularScales {
  static constexpr int kSeries = 2;  // one scalar a projection, taking turns
  int32_t count = 0;
  const float* first[kSeries] = {};
  int64_t distance = 0;  // elements
  __device__ const float* at_index(int i) const { return first[i % kSeries] + i / kSeries * distance; }

  // Whether all of `scales` lie so.
  static bool of(const InputScales& scales, RegularScales& result) {
    result.count = scales.count;
    result.first[0] = scales.at[0];
    result.first[1] = scales.count > 1 ? scales.at[1] : scales.at[0];
    result.distance = scales.count > kSeries ? scales.at[kSeries] - scales.at[0] : 0;
    for (int i = 0; i < scales.count; ++i)
      if (scales.at[i] != result.first[i % kSeries] + i / kSeries * result.distance) return false;
    return true;
  }
};
// The same at any distances, as differences from the lowest address: an argument of 2 KiB.
struct NearScales {
  static constexpr int kCapacity = 512;  // 256 experts, two projections
  int32_t count = 0;
  const float* first = nullptr;
  uint32_t distance[kCapacity];  // elements
  __device__ const float* at_index(int i) const { return first + distance[i]; }

  static bool of(const InputScales& scales, NearScales& result) {
    if (scales.count > kCapacity) return false;
    const auto address = [&](int i) { return reinterpret_cast<uintptr_t>(scales.at[i]); };
    uintptr_t lowest = address(0);
    for (int i = 1; i < scales.count; ++i) lowest = address(i) < lowest ? address(i) : lowest;
    result.count = scales.count;
    result.first = reinterpret_cast<const float*>(lowest);
    for (int i = 0; i < scales.count; ++i) {
      const uintptr_t elements = (address(i) - lowest) / sizeof(float);
      if (elements > UINT32_MAX || (address(i) - lowest) % sizeof(float) != 0) return false;
      result.distance[i] = static_cast<uint32_t>(elements);
    }
    return true;
  }
};
struct ListedScales : InputScales {
  __device__ const float* at_index(int i) const { return at[i]; }
};

template <class Scales>
struct Quantization {
  const Bf16* x;
  uint8_t* codes;
  uint8_t* scales;
  int row_blocks;
  int blocks;
  int64_t x_stride;
  int64_t codes_stride;
  int64_t scales_stride;
  Scales input_scales;
};

// 1 / the largest of the input scales, a NaN winning; for every thread.
template <class Scales>
__device__ float inverse_input_scale(const Scales& scales, float* partial) {
  float largest = -INFINITY;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < scales.count; i += kPieceThreads) {
    const float value = *scales.at_index(i);
    if (value > largest || value != value) largest = value;
  }
  const auto merge = [](float a, float b) { return a > b || a != a ? a : b; };
  for (int step = kWarp / 2; step > 0; step /= 2) largest = merge(largest, __shfl_xor_sync(kEveryLane, largest, step));
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = largest;
  __syncthreads();
  for (int w = 0; w < kPieceThreads / kWarp; ++w) largest = merge(largest, partial[w]);
  return 1.0f / largest;
}

template <class Scales>
__global__ void __launch_bounds__(kPieceThreads) quantize_blocks(const __grid_constant__ Quantization<Scales> q) {
  admit_next();
  __shared__ float partial[kPieceThreads / kWarp];
  const float global = inverse_input_scale(q.input_scales, partial);  // of weights, which no kernel writes
  await_earlier();
  int block = static_cast<int>(blockIdx.x * kPieceThreads + threadIdx.x);
  const auto step = static_cast<int>(gridDim.x * kPieceThreads);
  uint4 first{};
  uint4 second{};
  const auto fetch = [&] {
    const Bf16* from = q.x + block / q.row_blocks * q.x_stride + block % q.row_blocks * kBlockColumns;
    first = load_bits(from);
    second = load_bits(from + kVector);
  };
  if (block < q.blocks) fetch();
  while (block < q.blocks) {
    const int64_t row = block / q.row_blocks;
    const int column_block = block % q.row_blocks;
    const Eight halves[2] = {unpack(first), unpack(second)};
    block += step;
    if (block < q.blocks) fetch();
    float amax = fabsf(halves[0].v[0]);
#pragma unroll
    for (int i = 1; i < kBlockColumns; ++i) amax = fmaxf(amax, fabsf(halves[i / kVector].v[i % kVector]));
    const uint8_t rounded = float_to_e4m3(clamp_e4m3(global * amax / Quantizer::kLargestCode));
    const uint8_t code = e4m3_is_nan(rounded) ? Quantizer::kE4m3Nan : rounded;
    q.scales[row * q.scales_stride + column_block] = code;
    const float scale = e4m3_to_float(code);
    const float factor = scale == 0.0f ? 0.0f : global / scale;
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kBlockColumns; ++i)
      words[i / kVector] |= static_cast<uint32_t>(float_to_e2m1(halves[i / kVector].v[i % kVector] * factor))
                            << (i % kVector * 4);
    *reinterpret_cast<uint2*>(q.codes + row * q.codes_stride + column_block * kBlockColumns / 2) =
        uint2{words[0], words[1]};
  }
}

// --- cache writers

__device__ __forceinline__ uint32_t four_codes(float a, float b, float c, float d) {
  return static_cast<uint32_t>(to_e4m3(a).code) | static_cast<uint32_t>(to_e4m3(b).code) << 8 |
         static_cast<uint32_t>(to_e4m3(c).code) << 16 | static_cast<uint32_t>(to_e4m3(d).code) << 24;
}

// A thread eight columns of a row, stored as floats, bf16 or codes.
__global__ void __launch_bounds__(kPieceThreads)
    store_rows(const __grid_constant__ CacheWriteOperands<Bf16> o, int pieces) {
  begin_dependent();
  const int piece = static_cast<int>(blockIdx.x * kPieceThreads + threadIdx.x);
  if (piece >= pieces) return;
  const int row_pieces = static_cast<int>(o.layout.width()) / kVector;
  const int64_t row = piece / row_pieces;
  const int column = piece % row_pieces * kVector;
  const uint4 bits = load_bits(o.x.data + row * o.x_stride + column);
  uint8_t* to = o.pool.data + o.layout.row(o.slots.data[row * o.slot_stride]);
  if (o.layout.format == RowFormat::kBf16) {
    *reinterpret_cast<uint4*>(to + column * 2) = bits;
    return;
  }
  const Eight e = unpack(bits);
  if (o.layout.format == RowFormat::kF32) {
    reinterpret_cast<float4*>(to + column * 4)[0] = float4{e.v[0], e.v[1], e.v[2], e.v[3]};
    reinterpret_cast<float4*>(to + column * 4)[1] = float4{e.v[4], e.v[5], e.v[6], e.v[7]};
  } else {
    *reinterpret_cast<uint2*>(to + column) =
        uint2{four_codes(e.v[0], e.v[1], e.v[2], e.v[3]), four_codes(e.v[4], e.v[5], e.v[6], e.v[7])};
  }
}

constexpr int kLaneColumns = 4;                            // of a group of 128 columns that a warp shares
constexpr int kGroupColumns = kWarp * kLaneColumns;        // the packed format's group, and an index key
constexpr int kPackThreads = (kPackedGroups + 1) * kWarp;  // a warp a group, and one for the rope part

struct Four {
  float v[kLaneColumns];
};
__device__ __forceinline__ Four load_four(const Bf16* from) {
  const uint2 bits = *reinterpret_cast<const uint2*>(from);
  return Four{{low_bf16(bits.x), high_bf16(bits.x), low_bf16(bits.y), high_bf16(bits.y)}};
}
// The largest magnitude of a warp's values; NaN is passed over.
__device__ __forceinline__ float warp_amax(const Four& f) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) largest = fmaxf(largest, fabsf(f.v[i]));
  for (int step = kWarp / 2; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kEveryLane, largest, step));
  return largest;
}
__device__ __forceinline__ uint32_t codes_of(const Four& f, float inverse) {
  return four_codes(f.v[0] * inverse, f.v[1] * inverse, f.v[2] * inverse, f.v[3] * inverse);
}

// One block a row.
__global__ void __launch_bounds__(kPackThreads) pack_rows(const __grid_constant__ CacheWriteOperands<Bf16> o) {
  begin_dependent();
  const int64_t row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t slot = o.slots.data != nullptr ? o.slots.data[row * o.slot_stride] : row;
  const Bf16* from = o.x.data + row * o.x_stride + group * kGroupColumns;
  if (group == kPackedGroups) {
    reinterpret_cast<uint32_t*>(o.pool.data + o.layout.packed_rope(slot))[lane] =
        reinterpret_cast<const uint32_t*>(from)[lane];
    return;
  }
  const Four values = load_four(from + lane * kLaneColumns);
  const float amax = warp_amax(values);
  const float scale = (o.floorless || amax > kPackedAmaxFloor ? amax : kPackedAmaxFloor) / kE4m3Largest;
  if (lane == 0) *reinterpret_cast<float*>(o.pool.data + o.layout.packed_scale(slot, group)) = scale;
  reinterpret_cast<uint32_t*>(o.pool.data + o.layout.row(slot) + group * kGroupColumns)[lane] =
      codes_of(values, 1.0f / scale);
}

// One warp a row.
__global__ void __launch_bounds__(kPieceThreads) store_index_keys(const __grid_constant__ CacheWriteOperands<Bf16> o) {
  begin_dependent();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kPieceThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= o.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t slot = o.slots.data[row * o.slot_stride];
  const Four values = load_four(o.x.data + row * o.x_stride + lane * kLaneColumns);
  const float amax = warp_amax(values);
  const float scale = index_scale_of(amax, o.ue8m0);
  if (lane == 0) *reinterpret_cast<float*>(o.pool.data + o.layout.index_scale(slot)) = scale;
  reinterpret_cast<uint32_t*>(o.pool.data + o.layout.index_codes(slot))[lane] = codes_of(values, 1.0f / scale);
}

// --- cache_gather: a thread eight columns of a row

__global__ void __launch_bounds__(kPieceThreads)
    gather_rows(const __grid_constant__ CacheGatherOperands<Bf16> o, int pieces) {
  begin_dependent();
  const int piece = static_cast<int>(blockIdx.x * kPieceThreads + threadIdx.x);
  if (piece >= pieces) return;
  const int row_pieces = static_cast<int>(o.layout.width()) / kVector;
  const int64_t row = piece / row_pieces;
  const int column = piece % row_pieces * kVector;
  int64_t live = 0;
  for (int64_t r = 0; r < o.requests; ++r) live += o.seq_lens.data[r];
  if (row >= live) return;
  const int64_t slot = o.slots.data[row];
  const uint8_t* from = o.pool.data + o.layout.row(slot);
  Bf16* to = o.out.data + row * o.out_stride + column;
  if (o.layout.format == RowFormat::kF32) {
    store_eight(to, load_eight(reinterpret_cast<const float*>(from) + column));
    return;
  }
  const bool rope = o.layout.format == RowFormat::kPacked && column >= o.layout.latent;
  if (o.layout.format == RowFormat::kBf16 || rope) {
    const uint8_t* at =
        rope ? o.pool.data + o.layout.packed_rope(slot) + (column - o.layout.latent) * 2 : from + column * 2;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(at);
    return;
  }
  const uint2 codes = *reinterpret_cast<const uint2*>(from + column);
  float scale = 1.0f;
  if (o.layout.format == RowFormat::kPacked)
    scale = *reinterpret_cast<const float*>(o.pool.data +
                                            o.layout.packed_scale(slot, column / (o.layout.latent / kPackedGroups)));
  Eight e;
#pragma unroll
  for (int i = 0; i < kVector; i += 2) {
    const uint32_t word = i < kVector / 2 ? codes.x : codes.y;
    const float2 pair = decode_e4m3_pair(static_cast<uint16_t>(word >> (i % 4 * 8) & 0xFFFFu));
    e.v[i] = pair.x * scale;
    e.v[i + 1] = pair.y * scale;
  }
  store_eight(to, e);
}

}  // namespace

bool cuda_faster(const LaunchContext& context, Grid grid, const Quantizer& body) {
  constexpr int kBlocksEach = 8;  // thread blocks a multiprocessor
  const int64_t count = grid.x * body.columns / kBlockColumns;
  const unsigned enough = piece_blocks(count);
  const auto most = static_cast<unsigned>(gpu_limits().multiprocessors * kBlocksEach);
  constexpr uintptr_t kCodesAlignment = 8;
  if (enough == 0 || most == 0 || body.columns % kBlockColumns != 0 || body.input_scales.count == 0 ||
      !aligned_for_vectors(body.x.data, body.x_stride * kElement) ||
      (reinterpret_cast<uintptr_t>(body.codes.data) | static_cast<uintptr_t>(body.codes_stride)) % kCodesAlignment != 0)
    return false;
  const unsigned blocks = enough < most ? enough : most;
  const auto launch = [&](const auto& scales) {
    using Scales = std::remove_cvref_t<decltype(scales)>;
    start(context, "quantize_fp4", quantize_blocks<Scales>, blocks, kPieceThreads, 0,
          Quantization<Scales>{body.x.data, body.codes.data, body.scales.data,
                               static_cast<int>(body.columns / kBlockColumns), static_cast<int>(count), body.x_stride,
                               body.codes_stride, body.scales_stride, scales});
  };
  RegularScales regular;
  NearScales near;
  if (RegularScales::of(body.input_scales, regular))
    launch(regular);
  else if (NearScales::of(body.input_scales, near))
    launch(near);
  else
    launch(ListedScales{body.input_scales});
  return true;
}

bool cuda_faster(const LaunchContext& context, Grid, const StoreRowsBody<Bf16, false>& body) {
  const CacheWriteOperands<Bf16>& o = body.operands;
  const unsigned blocks = piece_blocks(o.rows * o.layout.width() / kVector);
  if (blocks == 0 || o.layout.width() % kVector != 0 || !aligned_for_vectors(o.x.data, o.x_stride * kElement) ||
      !aligned_for_vectors(o.pool.data, o.layout.row_stride))
    return false;
  start(context, "store_kv", store_rows, blocks, kPieceThreads, 0, o,
        static_cast<int>(o.rows * o.layout.width() / kVector));
  return true;
}

bool cuda_faster(const LaunchContext& context, Grid, const PackRowsBody<Bf16, false>& body) {
  const CacheWriteOperands<Bf16>& o = body.operands;
  constexpr int64_t kLargestGrid = 2147483647;
  if (o.rows <= 0 || o.rows > kLargestGrid || o.layout.latent != kPackedGroups * kGroupColumns ||
      o.layout.rope != 2 * kWarp || !aligned_for_vectors(o.x.data, o.x_stride * kElement) ||
      !aligned_for_vectors(o.pool.data, o.layout.row_stride))
    return false;
  start(context, "quantize_k_cache", pack_rows, static_cast<unsigned>(o.rows), kPackThreads, 0, o);
  return true;
}

bool cuda_faster(const LaunchContext& context, Grid, const StoreIndexKeysBody<Bf16, false>& body) {
  const CacheWriteOperands<Bf16>& o = body.operands;
  const unsigned blocks = piece_blocks(o.rows * kWarp);
  if (blocks == 0 || o.layout.latent != kGroupColumns || !aligned_for_vectors(o.x.data, o.x_stride * kElement) ||
      !aligned_for_vectors(o.pool.data, o.layout.page_size * o.layout.row_stride))
    return false;
  start(context, "store_index_k", store_index_keys, blocks, kPieceThreads, 0, o);
  return true;
}

bool cuda_faster(const LaunchContext& context, Grid, const CacheGatherBody<Bf16, false>& body) {
  const CacheGatherOperands<Bf16>& o = body.operands;
  const unsigned blocks = piece_blocks(o.rows * o.layout.width() / kVector);
  if (blocks == 0 || o.layout.latent % (kPackedGroups * kVector) != 0 || o.layout.rope % kVector != 0 ||
      o.layout.format == RowFormat::kIndexFp8 || !aligned_for_vectors(o.out.data, o.out_stride * kElement) ||
      !aligned_for_vectors(o.pool.data, o.layout.row_stride))
    return false;
  start(context, "dequantize_k_cache", gather_rows, blocks, kPieceThreads, 0, o,
        static_cast<int>(o.rows * o.layout.width() / kVector));
  return true;
}

}  // namespace faultline::kernels
