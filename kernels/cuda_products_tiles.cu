// Products of many rows of x (cuda_products.h, "tiles").
//
// First x is prepared: bf16 (codes times scales are exact in it), rows padded with zeros to whole steps of 128 columns,
// and the 16-byte groups of a step in the order in which fragments take them, so that eight lanes of a load lie side by
// side: a piece of a weight row has U groups, group h of lane t goes to place 4 h + t. For NVFP4 the columns within a
// group are interleaved as decode_fp4 gives them.
//
// Block: 8 warps of 32 weight rows each, all of them x kTokens rows of x; sums in registers. x comes by cp.async into
// three stages of kTokens x 128 columns; a row's 16-byte places are exchanged in halves of 64 bytes on odd rows, so
// that eight lanes of two rows meet all banks. Rows of x past the item's are neither loaded nor multiplied.
// `kPromoted`: the sums of each step are carried on in float registers of their own (times the scale of an FP8 block):
// the tensor cores' own addition cuts bits off, which an F32 output would show.
#include <algorithm>

#include "kernels/cuda_products.cuh"

namespace faultline::kernels::products {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kBlockRows = kWarps * kWarpRows;
constexpr int kStepColumns = 128;
constexpr int kStages = 3;
constexpr int kStepBytes = kStepColumns * 2;
constexpr int kPlaces = kStepBytes / 16;  // 16-byte groups of a row and step
constexpr int kTokenGroup = 8;

int64_t prepared_columns(const Product& p) {
  return (p.columns + kStepColumns - 1) / kStepColumns * kStepColumns;
}

template <class X>
__device__ float load_value(const Product& p, int64_t head, int64_t row, int64_t column);
template <>
__device__ float load_value<__nv_bfloat16>(const Product& p, int64_t head, int64_t row, int64_t column) {
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p.x + head * p.x_batch)[row * p.x_stride + column]);
}
template <>
__device__ float load_value<uint8_t>(const Product& p, int64_t, int64_t row, int64_t column) {
  const uint8_t byte = p.x[row * p.x_stride + column / 2];
  const uint8_t scale = p.x_scales[row * p.x_scales_stride + column / kFp4Block];
  return e2m1_to_float(column % 2 == 0 ? byte & 15u : byte >> 4) * e4m3_to_float(scale);
}

// One thread a 16-byte group. `groups` of a piece: U above.
template <class X>
__global__ void prepare(const __grid_constant__ Product p, uint4* prepared, int64_t columns, int groups,
                        bool interleaved) {
  const int64_t places = columns / kGroup;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.x_rows * places) return;
  const int64_t row = index / places;
  const int64_t place = index % places;
  const auto head = static_cast<int64_t>(blockIdx.y);
  const int64_t chunk = place / (4 * groups);
  const int within = static_cast<int>(place % (4 * groups));
  const int64_t column = (chunk * 4 * groups + within % 4 * groups + within / 4) * kGroup;
  float values[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) values[i] = column + i < p.columns ? load_value<X>(p, head, row, column + i) : 0.0f;
  uint4 out = make_uint4(pair_of(values[0], values[1]), pair_of(values[2], values[3]), pair_of(values[4], values[5]),
                         pair_of(values[6], values[7]));
  if (interleaved)
    out = make_uint4(pair_of(values[0], values[4]), pair_of(values[1], values[5]), pair_of(values[2], values[6]),
                     pair_of(values[3], values[7]));
  prepared[head * p.x_rows * places + index] = out;
}

__device__ inline void copy_async(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global));
}

// All rows of x times one group of 8 columns a lane. `place`: of this lane's group in a row of the stage.
template <WeightType kType, int kAt, int kTokens>
__device__ void multiply_group(const Piece<kType> (&w)[kRowBlocks][2], uint32_t stage, uint32_t place, int g,
                               int tokens, float (&sum)[kRowBlocks][kTokens / kTokenGroup][4]) {
  uint32_t a[kRowBlocks][2][4];
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) w[r][half].template decode<kAt>(a[r][half]);
  const uint32_t first = stage + static_cast<uint32_t>(g) * kStepBytes + ((place ^ ((g & 1u) << 2)) << 4);
  constexpr uint32_t kGroupBytes = kTokenGroup * kStepBytes;
  uint4 b[2] = {shared_vector(first), shared_vector(first + kGroupBytes)};
#pragma unroll
  for (int n = 0; n < kTokens / kTokenGroup; n += 2) {
    if (n * kTokenGroup >= tokens) break;
    const uint4 now[2] = {b[0], b[1]};
    if (n + 2 < kTokens / kTokenGroup) {
      b[0] = shared_vector(first + (n + 2) * kGroupBytes);
      b[1] = shared_vector(first + (n + 3) * kGroupBytes);
    }
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma(sum[r][n + i], a[r][0][0], a[r][1][0], a[r][0][1], a[r][1][1], now[i].x, now[i].y);
        mma(sum[r][n + i], a[r][0][2], a[r][1][2], a[r][0][3], a[r][1][3], now[i].z, now[i].w);
      }
  }
}

template <WeightType kType, int kTokens, bool kPromoted>
__global__ void __launch_bounds__(kThreads, 1)
    tiles(const __grid_constant__ Product p, const uint8_t* prepared, int64_t row_bytes) {
  constexpr int kColumns = Piece<kType>::kColumns;
  constexpr int kChunk = 4 * kColumns;  // columns that the four lanes' pieces cover
  constexpr int kChunks = kStepColumns / kChunk;
  constexpr int kTokenBlocks = kTokens / kTokenGroup;
  constexpr uint32_t kStageBytes = kTokens * kStepBytes;
  extern __shared__ __align__(128) uint8_t stages[];
  __shared__ int32_t x_rows[kTokens];

  const auto at = static_cast<int32_t>(blockIdx.y);
  PlanItem item;
  if (p.groups > 0) {
    if (at >= *p.plan_items) return;
    item = p.plan[at];
  } else {
    item = PlanItem{0, at * kTokens, min(static_cast<int32_t>(p.rows) - at * kTokens, kTokens)};
  }

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto head = static_cast<int64_t>(blockIdx.z);
  for (int i = thread; i < kTokens; i += kThreads)
    x_rows[i] = i < item.count ? max(out_row(p, item.begin + i), 0) / p.rows_per_x : 0;
  __syncthreads();

  const WeightTile w = weight_tile(p, static_cast<int>(blockIdx.x), kBlockRows, item.group, head);
  const int first_row = w.first + warp * kWarpRows;
  const uint8_t* rows[kRowBlocks][2];
  const uint8_t* scale_rows[kRowBlocks][2];
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = min(first_row + r * 16 + half * 8 + g, w.rows - 1);
      rows[r][half] = w.weight.values + row * w.weight.stride;
      scale_rows[r][half] = w.weight.scales + row * w.weight.scale_stride;
    }

  const auto stage_base = static_cast<uint32_t>(__cvta_generic_to_shared(stages));
  const auto steps = static_cast<int>(row_bytes / kStepBytes);
  const uint8_t* x = prepared + head * p.x_rows * row_bytes;
  const auto fetch = [&](int step, int stage) {
    constexpr int kRowsAtOnce = kThreads / kPlaces;
    const uint32_t place = thread % kPlaces;
    for (int row = thread / kPlaces; row < item.count; row += kRowsAtOnce) {
      const uint32_t to = stage_base + stage * kStageBytes + row * kStepBytes + ((place ^ ((row & 1u) << 2)) << 4);
      copy_async(to, x + x_rows[row] * row_bytes + static_cast<int64_t>(step) * kStepBytes + place * 16);
    }
  };
  const auto load = [&](Piece<kType>(&to)[kRowBlocks][2], int chunk) {
    const int column = chunk * kChunk + t * kColumns;
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        to[r][half].load(rows[r][half], scale_rows[r][half], column, column < p.columns);
  };

#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) fetch(s, s);
    asm volatile("cp.async.commit_group;");
  }
  float sum[kRowBlocks][kTokenBlocks][4] = {};
  [[maybe_unused]] float carried[kRowBlocks][kPromoted ? kTokenBlocks : 1][4] = {};
  Piece<kType> current[kRowBlocks][2];
  load(current, 0);
  int stage = 0;
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2));
    __syncthreads();  // this step's x is there for all, and the stage before it is free
    const int ahead = step + kStages - 1;
    if (ahead < steps) fetch(ahead, (stage + kStages - 1) % kStages);
    asm volatile("cp.async.commit_group;");
    const uint32_t base = stage_base + stage * kStageBytes;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      Piece<kType> next[kRowBlocks][2];
      load(next, step * kChunks + c + 1);
      const uint32_t place = c * 4 * Piece<kType>::kGroups + t;
      multiply_group<kType, 0, kTokens>(current, base, place, g, item.count, sum);
      if constexpr (Piece<kType>::kGroups > 1)
        multiply_group<kType, 1, kTokens>(current, base, place + 4, g, item.count, sum);
      if constexpr (Piece<kType>::kGroups > 2) {
        multiply_group<kType, 2, kTokens>(current, base, place + 8, g, item.count, sum);
        multiply_group<kType, 3, kTokens>(current, base, place + 12, g, item.count, sum);
      }
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) current[r][half] = next[r][half];
    }
    if constexpr (kPromoted) {
      const float scale = kType == WeightType::kFp8 ? fp8_block_scale(p, w.weight, min(first_row, w.rows - 1),
                                                                      static_cast<int64_t>(step) * kStepColumns)
                                                    : 1.0f;
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
        for (int n = 0; n < kTokenBlocks; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            carried[r][n][i] += scale * sum[r][n][i];
            sum[r][n][i] = 0;
          }
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }

  const float up = kType == WeightType::kFp4 ? kCodesUp : 1.0f;
  const float factor = epilogue_factor(p, w.weight);
#pragma unroll
  for (int n = 0; n < kTokenBlocks; ++n)
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int token = n * kTokenGroup + 2 * t + column;
      if (token >= item.count) continue;
      const int32_t to = out_row(p, item.begin + token);
      if (to < 0) continue;
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = warp * kWarpRows + r * 16 + half * 8 + g;
          const float value =
              kPromoted ? carried[r][kPromoted ? n : 0][half * 2 + column] : sum[r][n][half * 2 + column];
          if (w.first + row < w.rows) store_out(p, head, to, w.out_column + row, value * up * factor);
        }
    }
}

template <WeightType kType, int kTokens, bool kPromoted>
void launch_variant(const LaunchContext& context, const Product& p, void* prepared) {
  const int64_t columns = prepared_columns(p);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const int64_t groups = p.x_rows * (columns / kGroup);
  const dim3 prepare_grid(static_cast<unsigned>((groups + kThreads - 1) / kThreads), static_cast<unsigned>(p.batch));
  if (p.x_type == ActivationType::kFp4)
    prepare<uint8_t><<<prepare_grid, kThreads, 0, stream>>>(p, static_cast<uint4*>(prepared), columns,
                                                            Piece<kType>::kGroups, Piece<kType>::kInterleaved);
  else
    prepare<__nv_bfloat16><<<prepare_grid, kThreads, 0, stream>>>(p, static_cast<uint4*>(prepared), columns,
                                                                  Piece<kType>::kGroups, Piece<kType>::kInterleaved);
  check_launch("activations of a tiled product", cudaPeekAtLastError());

  constexpr size_t kShared = size_t{kStages} * kTokens * kStepBytes;
  const auto kernel = tiles<kType, kTokens, kPromoted>;
  const cudaError_t set =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
  if (set != cudaSuccess) return check_launch("tiled product", set);
  const int64_t items = p.groups > 0 ? p.plan_capacity : (p.rows + kTokens - 1) / kTokens;
  const dim3 grid(static_cast<unsigned>(weight_tiles(p, kBlockRows)), static_cast<unsigned>(items),
                  static_cast<unsigned>(p.batch));
  kernel<<<grid, kThreads, kShared, stream>>>(p, static_cast<const uint8_t*>(prepared), columns * 2);
  check_launch("tiled product", cudaPeekAtLastError());
}

template <WeightType kType>
void launch_rows(const LaunchContext& context, const Product& p, void* prepared) {
  if (tile_rows(p) == kTileRows)
    launch_variant<kType, kTileRows, false>(context, p, prepared);
  else
    launch_variant<kType, kPromotedRows, true>(context, p, prepared);
}

}  // namespace

int64_t prepared_bytes_of(const Product& p) {
  return p.batch * p.x_rows * prepared_columns(p) * 2;
}

int tile_rows(const Product& p) {
  return p.out_f32 || p.fp8_scaling == Fp8Scaling::kBlocks ? kPromotedRows : kTileRows;
}

void launch_tiles(const LaunchContext& context, const Product& p, void* prepared) {
  if (p.type == WeightType::kFp4) return launch_rows<WeightType::kFp4>(context, p, prepared);
  if (p.type == WeightType::kFp8) return launch_rows<WeightType::kFp8>(context, p, prepared);
  launch_rows<WeightType::kBf16>(context, p, prepared);
}

}  // namespace faultline::kernels::products
