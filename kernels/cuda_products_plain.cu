// Products in float on the ordinary cores (cuda_products.h, "plain" and "heads").
//
// plain  Block: 64 weight rows x 64 rows of x, 256 threads of 4 x 4 sums; 16 columns at a time are decoded to floats in
//        shared memory. Takes everything: any dtype, alignment, number of columns, and w[k][n].
// heads  w[k][n] with few rows of x. Block: 128 columns n of one head, all K rows over 8 warps; a lane keeps 8 columns
//        (16 bytes of a row of w) for up to 8 rows of x; the warps' sums meet in shared memory.
#include <algorithm>

#include "kernels/cuda_dependent.cuh"
#include "kernels/cuda_products.cuh"

namespace faultline::kernels::products {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;
constexpr int kDepth = 16;
constexpr int kSide = 4;  // sums a thread, each way
static_assert(kTile == kPlainRows);

__device__ float activation(const Product& p, int64_t head, int64_t row, int64_t column) {
  if (p.x_type == ActivationType::kFp4) {
    const uint8_t byte = p.x[row * p.x_stride + column / 2];
    const uint8_t scale = p.x_scales[row * p.x_scales_stride + column / kFp4Block];
    return e2m1_to_float(column % 2 == 0 ? byte & 15u : byte >> 4) * e4m3_to_float(scale);
  }
  const uint8_t* x = p.x + head * p.x_batch;
  if (p.x_type == ActivationType::kF32) return reinterpret_cast<const float*>(x)[row * p.x_stride + column];
  return to_float(reinterpret_cast<const Bf16*>(x)[row * p.x_stride + column]);
}

__device__ float weight_value(const Product& p, const DeviceWeight& w, int64_t row, int64_t column) {
  if (p.weight_kn) {
    const int64_t swap = row;
    row = column;
    column = swap;
  }
  const uint8_t* at = w.values + row * w.stride;
  switch (p.type) {
    case WeightType::kF32:
      return reinterpret_cast<const float*>(at)[column];
    case WeightType::kBf16:
      return to_float(reinterpret_cast<const Bf16*>(at)[column]);
    case WeightType::kF16:
      return to_float(reinterpret_cast<const F16*>(at)[column]);
    case WeightType::kFp8:
      return e4m3_to_float(at[column]) * fp8_block_scale(p, w, row, column);
    case WeightType::kFp4: {
      const uint8_t byte = at[column / 2];
      return e2m1_to_float(column % 2 == 0 ? byte & 15u : byte >> 4) *
             e4m3_to_float(w.scales[row * w.scale_stride + column / kFp4Block]);
    }
  }
  return 0;
}

__global__ void __launch_bounds__(kThreads) plain(const __grid_constant__ Product p) {
  __shared__ float x_tile[kDepth][kTile + 1];
  __shared__ float w_tile[kDepth][kTile + 1];
  __shared__ int32_t x_rows[kTile];
  const auto at = static_cast<int32_t>(blockIdx.y);
  PlanItem item;
  if (p.groups > 0) {
    if (at >= *p.plan_items) return;
    item = p.plan[at];
  } else {
    item = PlanItem{0, at * kTile, min(static_cast<int32_t>(p.rows) - at * kTile, kTile)};
  }
  const int thread = static_cast<int>(threadIdx.x);
  const auto head = static_cast<int64_t>(blockIdx.z);
  const WeightTile w = weight_tile(p, static_cast<int>(blockIdx.x), kTile, item.group, head);
  if (thread < kTile)
    x_rows[thread] = thread < item.count ? max(out_row(p, item.begin + thread), 0) / p.rows_per_x : -1;

  const int row = thread / (kTile / kSide) * kSide;     // of x
  const int column = thread % (kTile / kSide) * kSide;  // of out
  float sum[kSide][kSide] = {};
  for (int64_t k = 0; k < p.columns; k += kDepth) {
    __syncthreads();
    for (int i = thread; i < kTile * kDepth; i += kThreads) {
      const int r = i / kDepth;
      const int c = i % kDepth;
      const bool inside = k + c < p.columns;
      x_tile[c][r] = inside && x_rows[r] >= 0 ? activation(p, head, x_rows[r], k + c) : 0.0f;
      w_tile[c][r] = inside && w.first + r < w.rows ? weight_value(p, w.weight, w.first + r, k + c) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < kDepth; ++c)
#pragma unroll
      for (int i = 0; i < kSide; ++i)
#pragma unroll
        for (int j = 0; j < kSide; ++j) sum[i][j] = fmaf(x_tile[c][row + i], w_tile[c][column + j], sum[i][j]);
  }
  const float factor = epilogue_factor(p, w.weight);
  for (int i = 0; i < kSide; ++i) {
    if (row + i >= item.count) break;
    const int32_t to = out_row(p, item.begin + row + i);
    if (to < 0) continue;
    for (int j = 0; j < kSide; ++j)
      if (w.first + column + j < w.rows) store_out(p, head, to, w.out_column + column + j, sum[i][j] * factor);
  }
}

constexpr int kHeadWarps = kThreads / kWarp;
constexpr int kHeadLanes = 16;                     // that share a row of w
constexpr int kHeadColumns = kHeadLanes * kGroup;  // columns of out a block
constexpr int kHeadRows = kThreads / kHeadLanes;   // rows of w a block takes at once

// `x_values`: kTokens floats for each of the K rows.
template <int kTokens>
__global__ void __launch_bounds__(kThreads, 2) heads(const __grid_constant__ Product p) {
  constexpr int kLoads = kTokens == 1 ? 12 : 6;  // of a lane, under way together
  extern __shared__ __align__(16) float x_values[];
  __shared__ float partial[kHeadWarps][kTokens][kHeadColumns];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const auto head = static_cast<int64_t>(blockIdx.z);
  const int first_column = static_cast<int>(blockIdx.x) * kHeadColumns;
  const int column = first_column + thread % kHeadLanes * kGroup;
  const int token = static_cast<int>(blockIdx.y) * kTokens;
  const int row = thread / kHeadLanes;
  const auto rows = static_cast<int>(p.columns);
  const DeviceWeight& matrix = p.inline_weights[0];
  const uint8_t* w = matrix.values + head * p.weight_batch + column * 2;
  const bool inside = column < p.part_rows[0];
  const auto load = [&](uint4(&to)[kLoads], int from) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int k = from + i * kHeadRows + row;
      to[i] = inside && k < rows ? load_once(w + k * matrix.stride) : make_uint4(0, 0, 0, 0);
    }
  };
  admit_next();
  uint4 raw[kLoads];
  load(raw, 0);  // weights, which no kernel writes
  await_earlier();
  const auto* x = reinterpret_cast<const __nv_bfloat16*>(p.x + head * p.x_batch);
  for (int i = thread; i < rows * kTokens; i += kThreads) {
    const int n = i / rows;
    const int k = i % rows;
    x_values[k * kTokens + n] = token + n < p.rows ? __bfloat162float(x[(token + n) * p.x_stride + k]) : 0.0f;
  }
  __syncthreads();
  float sum[kTokens][kGroup] = {};
  for (int from = 0; from < rows; from += kLoads * kHeadRows) {
    if (from > 0) load(raw, from);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int k = min(from + i * kHeadRows + row, rows - 1);
      const uint32_t words[] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
#pragma unroll
      for (int n = 0; n < kTokens; ++n) {
        const float value = x_values[k * kTokens + n];
#pragma unroll
        for (int j = 0; j < kGroup / 2; ++j) {
          sum[n][2 * j] = fmaf(value, __uint_as_float(words[j] << 16), sum[n][2 * j]);
          sum[n][2 * j + 1] = fmaf(value, __uint_as_float(words[j] & 0xFFFF0000u), sum[n][2 * j + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTokens; ++n)
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float both = sum[n][i] + __shfl_xor_sync(0xFFFFFFFFu, sum[n][i], kHeadLanes);
      if (thread % kWarp < kHeadLanes) partial[warp][n][thread % kHeadLanes * kGroup + i] = both;
    }
  __syncthreads();
  for (int i = thread; i < kTokens * kHeadColumns; i += kThreads) {
    const int n = i / kHeadColumns;
    const int to = first_column + i % kHeadColumns;
    if (token + n >= p.rows || to >= p.part_rows[0]) continue;
    float value = 0;
    for (int s = 0; s < kHeadWarps; ++s) value += partial[s][n][i % kHeadColumns];
    store_out(p, head, token + n, to, value);
  }
}

template <int kTokens>
void launch_tokens(const LaunchContext& context, const Product& p) {
  const dim3 grid(static_cast<unsigned>((p.part_rows[0] + kHeadColumns - 1) / kHeadColumns),
                  static_cast<unsigned>((p.rows + kTokens - 1) / kTokens), static_cast<unsigned>(p.batch));
  const size_t shared = static_cast<size_t>(p.columns) * kTokens * sizeof(float);
  const cudaError_t launched = launch_dependent(context, heads<kTokens>, grid, kThreads, shared, 1, p);
  if (!device_died(launched)) check_launch("product of heads", launched);
}

constexpr int kFewTokens = 1;
constexpr int kMoreTokens = 8;
static_assert(kMostHeadRows * kMoreTokens * sizeof(float) + kHeadWarps * kMoreTokens * kHeadColumns * sizeof(float) <=
              48 * 1024);

}  // namespace

void launch_plain(const LaunchContext& context, const Product& p) {
  const int64_t items = p.groups > 0 ? p.plan_capacity : (p.rows + kTile - 1) / kTile;
  const dim3 grid(static_cast<unsigned>(weight_tiles(p, kTile)), static_cast<unsigned>(items),
                  static_cast<unsigned>(p.batch));
  plain<<<grid, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(p);
  check_launch("plain product", cudaPeekAtLastError());
}

void launch_heads(const LaunchContext& context, const Product& p) {
  if (p.rows <= kFewTokens)
    launch_tokens<kFewTokens>(context, p);
  else
    launch_tokens<kMoreTokens>(context, p);
}

}  // namespace faultline::kernels::products
