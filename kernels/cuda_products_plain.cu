// Products in float on the ordinary cores (cuda_products.h, "plain" and "heads").
//
// plain  Block: 64 weight rows x 64 rows of x, 256 threads of 4 x 4 sums; 16 columns at a time are decoded to floats in
//        shared memory. Takes everything: any dtype, alignment, number of columns, and w[k][n].
// heads  w[k][n] with few rows of x. Block: 256 columns n of one head, all K rows over 8 warps; a lane keeps 8 columns
// n
//        (16 bytes of a row of w) for up to 4 rows of x; the warps' sums meet in shared memory.
#include <algorithm>

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

constexpr int kHeadTokens = 4;
constexpr int kHeadWarps = kThreads / kWarp;
constexpr int kHeadColumns = kWarp * kGroup;

__global__ void __launch_bounds__(kThreads) heads(const __grid_constant__ Product p) {
  __shared__ float partial[kHeadWarps][kHeadTokens][kHeadColumns];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto head = static_cast<int64_t>(blockIdx.z);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kHeadColumns + lane * kGroup;
  const int64_t token = static_cast<int64_t>(blockIdx.y) * kHeadTokens;
  const auto* x = reinterpret_cast<const __nv_bfloat16*>(p.x + head * p.x_batch);
  const uint8_t* w = p.inline_weights[0].values + head * p.weight_batch + column * 2;
  float sum[kHeadTokens][kGroup] = {};
  if (column < p.part_rows[0]) {
#pragma unroll 4
    for (int64_t k = warp; k < p.columns; k += kHeadWarps) {
      const uint4 raw = load_once(w + k * p.inline_weights[0].stride);
      const uint32_t words[] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int n = 0; n < kHeadTokens; ++n) {
        const int64_t row = min(token + n, p.rows - 1);
        const float value = __bfloat162float(x[row * p.x_stride + k]);
#pragma unroll
        for (int i = 0; i < kGroup / 2; ++i) {
          sum[n][2 * i] = fmaf(value, __uint_as_float(words[i] << 16), sum[n][2 * i]);
          sum[n][2 * i + 1] = fmaf(value, __uint_as_float(words[i] & 0xFFFF0000u), sum[n][2 * i + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kHeadTokens; ++n)
#pragma unroll
    for (int i = 0; i < kGroup; ++i) partial[warp][n][lane * kGroup + i] = sum[n][i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kHeadTokens * kHeadColumns; i += kThreads) {
    const int n = i / kHeadColumns;
    const int64_t to = static_cast<int64_t>(blockIdx.x) * kHeadColumns + i % kHeadColumns;
    if (token + n >= p.rows || to >= p.part_rows[0]) continue;
    float value = 0;
    for (int s = 0; s < kHeadWarps; ++s) value += partial[s][n][i % kHeadColumns];
    store_out(p, head, token + n, to, value);
  }
}

}  // namespace

void launch_plain(const LaunchContext& context, const Product& p) {
  const int64_t items = p.groups > 0 ? p.plan_capacity : (p.rows + kTile - 1) / kTile;
  const dim3 grid(static_cast<unsigned>(weight_tiles(p, kTile)), static_cast<unsigned>(items),
                  static_cast<unsigned>(p.batch));
  plain<<<grid, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(p);
  check_launch("plain product", cudaPeekAtLastError());
}

void launch_heads(const LaunchContext& context, const Product& p) {
  const dim3 grid(static_cast<unsigned>((p.part_rows[0] + kHeadColumns - 1) / kHeadColumns),
                  static_cast<unsigned>((p.rows + kHeadTokens - 1) / kHeadTokens), static_cast<unsigned>(p.batch));
  heads<<<grid, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(p);
  check_launch("product of heads", cudaPeekAtLastError());
}

}  // namespace faultline::kernels::products
