// Products of few rows of x (cuda_products.h, "skinny").
//
// Block: 8 warps, as `8 / k_warps` groups of 32 weight rows, each of k_warps warps that share the K range in steps; the
// blocks of a cluster share it further. A warp's step is one or two pieces a lane and weight row (256 to 512 bytes of
// each of its 32 rows by four lanes each), and the next step's weights are loaded before this one's are used. Sums of
// the warps meet in shared memory, those of a cluster in its first block; both are added in a fixed order.
#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda_products.cuh"

namespace faultline::kernels::products {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kTokenGroup = 8;  // columns of an mma
constexpr int kPadded = kWarpRows + 1;

struct SkinnyShape {
  int32_t k_warps;   // warps of a block that share a tile
  int32_t clusters;  // blocks that share it
};

// Steps are cut so that a warp has 2 KB of weights (4 KB where a byte is worth less work) in flight.
template <WeightType kType>
constexpr int kPieces = kType == WeightType::kFp4 ? 1 : 2;

template <WeightType kType>
struct Step {
  Piece<kType> piece[kPieces<kType>][kRowBlocks][2];
};

// x of one lane and piece: either bf16 values or codes with their scales.
template <WeightType kType, bool kCodes>
struct Activation;

template <WeightType kType>
struct Activation<kType, false> {
  uint4 values[Piece<kType>::kGroups];
  __device__ void load(const uint8_t* x, const uint8_t*, int column, bool inside) {
#pragma unroll
    for (int i = 0; i < Piece<kType>::kGroups; ++i)
      values[i] = inside ? __ldg(reinterpret_cast<const uint4*>(x + column * 2) + i) : make_uint4(0, 0, 0, 0);
  }
  template <int kAt>
  __device__ void decode(uint32_t (&out)[4]) const {
    if constexpr (Piece<kType>::kInterleaved) {
      interleave(values[kAt], out);
    } else {
      out[0] = values[kAt].x;
      out[1] = values[kAt].y;
      out[2] = values[kAt].z;
      out[3] = values[kAt].w;
    }
  }
};

template <>
struct Activation<WeightType::kFp4, true> {
  uint4 codes;
  uint32_t scales;
  __device__ void load(const uint8_t* x, const uint8_t* scales_at, int column, bool inside) {
    codes = inside ? __ldg(reinterpret_cast<const uint4*>(x + column / 2)) : make_uint4(0, 0, 0, 0);
    scales = inside ? __ldg(reinterpret_cast<const uint16_t*>(scales_at + column / kFp4Block)) : 0;
  }
  template <int kAt>
  __device__ void decode(uint32_t (&out)[4]) const {
    uint32_t first, second;
    fp4_scale_pairs(scales, first, second);
    decode_fp4(word<kAt>(codes), kAt < 2 ? first : second, out);
  }
};

// The item of a block among the pairs of (row, expert) in their sorted order: entry `at` speaks for the rows that
// follow it in its expert. count 0: another entry speaks for this one.
template <int kTokens>
__device__ PlanItem item_of_entry(const Product& p, int32_t at) {
  int32_t group = 0;
  for (int32_t first = 0; first < p.groups; first += kThreads) {
    const int32_t e = first + static_cast<int32_t>(threadIdx.x);
    group += __syncthreads_count(e < p.groups && p.offsets[e + 1] <= at);
  }
  if (group >= p.groups) return PlanItem{0, 0, 0};
  const int32_t begin = p.offsets[group];
  const int32_t end = p.offsets[group + 1];
  if (at < begin || (at - begin) % kTokens != 0) return PlanItem{0, 0, 0};
  return PlanItem{group, at, min(end - at, kTokens)};
}

template <int kTokens>
__device__ PlanItem item_of_block(const Product& p) {
  const auto at = static_cast<int32_t>(blockIdx.y);
  if (p.groups == 0) {
    const auto rows = static_cast<int32_t>(p.rows);
    return PlanItem{0, at * kTokens, min(rows - at * kTokens, kTokens)};
  }
  if (p.plan == nullptr) return item_of_entry<kTokens>(p, at);
  if (at >= *p.plan_items) return PlanItem{0, 0, 0};
  return p.plan[at];
}

template <WeightType kType, bool kCodes, int kTokenBlocks, int kAt>
__device__ void multiply_group(const Piece<kType> (&w)[kRowBlocks][2],
                               const Activation<kType, kCodes> (&x)[kTokenBlocks],
                               float (&sum)[kRowBlocks][kTokenBlocks][4]) {
  uint32_t b[kTokenBlocks][4];
#pragma unroll
  for (int n = 0; n < kTokenBlocks; ++n) x[n].template decode<kAt>(b[n]);
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
    uint32_t upper[4], lower[4];
    w[r][0].template decode<kAt>(upper);
    w[r][1].template decode<kAt>(lower);
#pragma unroll
    for (int n = 0; n < kTokenBlocks; ++n) {
      mma(sum[r][n], upper[0], lower[0], upper[1], lower[1], b[n][0], b[n][1]);
      mma(sum[r][n], upper[2], lower[2], upper[3], lower[3], b[n][2], b[n][3]);
    }
  }
}

template <WeightType kType, bool kCodes, int kTokenBlocks>
__device__ void multiply_piece(const Piece<kType> (&w)[kRowBlocks][2],
                               const Activation<kType, kCodes> (&x)[kTokenBlocks],
                               float (&sum)[kRowBlocks][kTokenBlocks][4]) {
  multiply_group<kType, kCodes, kTokenBlocks, 0>(w, x, sum);
  if constexpr (Piece<kType>::kGroups > 1) multiply_group<kType, kCodes, kTokenBlocks, 1>(w, x, sum);
  if constexpr (Piece<kType>::kGroups > 2) {
    multiply_group<kType, kCodes, kTokenBlocks, 2>(w, x, sum);
    multiply_group<kType, kCodes, kTokenBlocks, 3>(w, x, sum);
  }
}

template <WeightType kType, bool kCodes, int kTokenBlocks>
__global__ void __launch_bounds__(kThreads, 2)
    skinny(const __grid_constant__ Product p, const __grid_constant__ SkinnyShape shape) {
  constexpr int kColumns = Piece<kType>::kColumns;
  constexpr int kStepColumns = kPieces<kType> * 4 * kColumns;
  constexpr int kTokens = kTokenBlocks * kTokenGroup;
  __shared__ float partial[kWarps][kTokens][kPadded];
  __shared__ float total[kWarpRows * kTokens];  // of this block, for the first one of its cluster

  const PlanItem item = item_of_block<kTokens>(p);
  if (item.count <= 0) return;  // the whole cluster

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto head = static_cast<int64_t>(blockIdx.z);
  const int rank = static_cast<int>(blockIdx.x) % shape.clusters;
  const int tile = static_cast<int>(blockIdx.x) / shape.clusters;
  const int row_groups = kWarps / shape.k_warps;
  const WeightTile w = weight_tile(p, tile, row_groups * kWarpRows, item.group, head);
  const int row_group = warp / shape.k_warps;
  // The last rows of a matrix are done twice rather than tested for: all of a warp's rows exist.
  const int first_row = min(w.first + row_group * kWarpRows, w.rows - kWarpRows);
  const uint8_t* const rows = w.weight.values + (first_row + g) * w.weight.stride;
  const uint8_t* const scale_rows = w.weight.scales + (first_row + g) * w.weight.scale_stride;
  const uint8_t* x[kTokenBlocks];
  const uint8_t* x_scales[kTokenBlocks];
#pragma unroll
  for (int n = 0; n < kTokenBlocks; ++n) {
    const int32_t entry = item.begin + min(n * kTokenGroup + g, item.count - 1);
    const int64_t row = max(out_row(p, entry), 0) / p.rows_per_x;
    x[n] = p.x + head * p.x_batch + row * p.x_stride * (kCodes ? 1 : 2);
    x_scales[n] = kCodes ? p.x_scales + row * p.x_scales_stride : nullptr;
  }

  const auto columns = static_cast<int>(p.columns);
  const int steps = (columns + kStepColumns - 1) / kStepColumns;
  const int stride = shape.k_warps * shape.clusters;
  const auto load = [&](Step<kType>& to, int step) {
#pragma unroll
    for (int u = 0; u < kPieces<kType>; ++u) {
      const int column = step * kStepColumns + (u * 4 + t) * kColumns;
      const bool inside = column < columns;
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          to.piece[u][r][half].load(rows + (r * 16 + half * 8) * w.weight.stride,
                                    scale_rows + (r * 16 + half * 8) * w.weight.scale_stride, column, inside);
    }
  };

  float sum[kRowBlocks][kTokenBlocks][4] = {};
  int step = rank * shape.k_warps + warp % shape.k_warps;
  Step<kType> current;
  if (step < steps) load(current, step);
  while (step < steps) {
    const int following = step + stride;
    Step<kType> next;
    if (following < steps) load(next, following);
    float part[kRowBlocks][kTokenBlocks][4] = {};
#pragma unroll
    for (int u = 0; u < kPieces<kType>; ++u) {
      const int column = step * kStepColumns + (u * 4 + t) * kColumns;
      Activation<kType, kCodes> activation[kTokenBlocks];
#pragma unroll
      for (int n = 0; n < kTokenBlocks; ++n) activation[n].load(x[n], x_scales[n], column, column < columns);
      multiply_piece<kType, kCodes, kTokenBlocks>(current.piece[u], activation, kType == WeightType::kFp8 ? part : sum);
    }
    if constexpr (kType == WeightType::kFp8) {
      static_assert(kStepColumns == kFp8Block);
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float scale = fp8_block_scale(p, w.weight, first_row + r * 16 + half * 8 + g,
                                              static_cast<int64_t>(step) * kStepColumns);
#pragma unroll
          for (int n = 0; n < kTokenBlocks; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) sum[r][n][half * 2 + i] += scale * part[r][n][half * 2 + i];
        }
    }
    current = next;
    step = following;
  }

#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
    for (int n = 0; n < kTokenBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) partial[warp][n * kTokenGroup + 2 * t + i % 2][r * 16 + i / 2 * 8 + g] = sum[r][n][i];
  __syncthreads();

  const int tile_rows = row_groups * kWarpRows;
  const float up = kType != WeightType::kFp4 ? 1.0f : (kCodes ? kCodesUp * kCodesUp : kCodesUp);
  const float factor = epilogue_factor(p, w.weight);
  const auto finish = [&](int index, float value) {
    const int group_first = min(w.first + index % tile_rows / kWarpRows * kWarpRows, w.rows - kWarpRows);
    const int token = index / tile_rows;
    if (token >= item.count) return;
    const int32_t to = out_row(p, item.begin + token);
    const int64_t column = w.out_column - w.first + group_first + index % kWarpRows;
    if (to >= 0) store_out(p, head, to, column, value * up * factor);
  };
  for (int index = static_cast<int>(threadIdx.x); index < tile_rows * kTokens; index += kThreads) {
    const int row = index % tile_rows;
    const int token = index / tile_rows;
    const int from = row / kWarpRows * shape.k_warps;
    float value = 0;
    for (int i = 0; i < shape.k_warps; ++i) value += partial[from + i][token][row % kWarpRows];
    if (shape.clusters > 1)
      total[index] = value;
    else
      finish(index, value);
  }
  if (shape.clusters == 1) return;
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  cluster.sync();
  if (rank == 0) {
    for (int index = static_cast<int>(threadIdx.x); index < tile_rows * kTokens; index += kThreads) {
      float value = 0;
      for (int i = 0; i < shape.clusters; ++i)
        value += *cluster.map_shared_rank(&total[index], static_cast<unsigned>(i));
      finish(index, value);
    }
  }
  cluster.sync();  // the others' shared memory must outlive the reads
}

// How the K range is shared (over a cluster only where a block's warps all share it): enough warps to fill the GPU, and
// enough steps a warp to stream.
SkinnyShape shape_of(const Product& p, int64_t items, int64_t step_columns) {
  constexpr int64_t kWarpsWanted = 132 * 24;  // of an H200: 24 warps on each of its 132 multiprocessors
  constexpr int kLeastShares = 4;             // blocks of at most 64 rows end together
  constexpr int64_t kLeastSteps = 2;
  const int64_t tiles = weight_tiles(p, kWarpRows) * items;
  const int64_t steps = (p.columns + step_columns - 1) / step_columns;
  int shares = 1;
  while (shares < kWarps * kMaxClusters && steps / (2 * shares) >= kLeastSteps &&
         (tiles * shares < kWarpsWanted || shares < kLeastShares))
    shares *= 2;
  return SkinnyShape{std::min(shares, kWarps), std::max(shares / kWarps, 1)};
}

template <WeightType kType, bool kCodes, int kTokenBlocks>
void launch_variant(const LaunchContext& context, const Product& p) {
  constexpr int kTokens = kTokenBlocks * kTokenGroup;
  const int64_t items =
      p.groups == 0 ? (p.rows + kTokens - 1) / kTokens : (p.plan != nullptr ? p.plan_capacity : p.rows);
  const SkinnyShape shape = shape_of(p, items * p.batch, kPieces<kType> * 4 * Piece<kType>::kColumns);
  const int tiles = weight_tiles(p, kWarps / shape.k_warps * kWarpRows);
  if (tiles == 0 || items == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim =
      dim3(static_cast<unsigned>(tiles * shape.clusters), static_cast<unsigned>(items), static_cast<unsigned>(p.batch));
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(context.stream);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(shape.clusters);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = shape.clusters > 1 ? 1 : 0;
  check_launch("skinny product", cudaLaunchKernelEx(&config, skinny<kType, kCodes, kTokenBlocks>, p, shape));
}

template <WeightType kType, bool kCodes>
void launch_tokens(const LaunchContext& context, const Product& p) {
  // Experts: with fewer rows than experts, hardly one has more than a group of them; if it has, they are two items.
  const bool few = p.groups == 0 ? p.rows <= kTokenGroup : p.plan == nullptr && p.rows <= p.groups;
  if (few)
    launch_variant<kType, kCodes, 1>(context, p);
  else
    launch_variant<kType, kCodes, 2>(context, p);
}

}  // namespace

void launch_skinny(const LaunchContext& context, const Product& p) {
  if (p.x_type == ActivationType::kFp4) return launch_tokens<WeightType::kFp4, true>(context, p);
  if (p.type == WeightType::kFp4) return launch_tokens<WeightType::kFp4, false>(context, p);
  if (p.type == WeightType::kFp8) return launch_tokens<WeightType::kFp8, false>(context, p);
  launch_tokens<WeightType::kBf16, false>(context, p);
}

}  // namespace faultline::kernels::products
