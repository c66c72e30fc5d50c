// Products of few rows of x (cuda_products.h, "skinny").
//
// Block: 8 warps, as `8 / k_warps` groups of 32 weight rows, each of k_warps warps that share the K range in steps of
// 128 bytes a weight row; the blocks of a cluster share it further. Weights pass through a ring in shared memory that
// is a warp's own (cp.async), so that several steps are under way without a register held for them, and no warp waits
// for another before the end. Sums of the warps meet in shared memory, those of a cluster in its first block; both are
// added in a fixed order.
//
// A slot of the ring: 32 rows of 128 bytes, 16 bytes of them at place `chunk ^ (4 on odd rows)`, so that eight lanes
// that read two rows meet all banks; then for NVFP4 16 scales a row.
#include <cooperative_groups.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda_dependent.cuh"
#include "kernels/cuda_device.cuh"
#include "kernels/cuda_products.cuh"
#include "kernels/cuda_products_codes.cuh"

namespace faultline::kernels::products {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kLogWarps = 3;
constexpr int kLogWarpRows = 5;
static_assert(1 << kLogWarps == kWarps && 1 << kLogWarpRows == kWarpRows);
constexpr int kTokenGroup = 8;  // columns of an mma
constexpr int kPadded = kWarpRows + 1;
constexpr int kScalesEach = 2;  // input scales that a thread asks for early: 256 experts' of two projections

// Powers of two, as exponents: no block divides.
struct SkinnyShape {
  int32_t log_warps;     // of the warps of a block that share a tile
  int32_t log_clusters;  // of the blocks that share it

  __host__ __device__ int k_warps() const { return 1 << log_warps; }
  __host__ __device__ int clusters() const { return 1 << log_clusters; }
  // Weight rows of a block's tile.
  __host__ __device__ int log_rows() const { return kLogWarps + kLogWarpRows - log_warps; }
};

// What a warp has under way. A step is 128 bytes of each of its 32 weight rows, two pieces a lane and row: whole lines
// of the L2 cache. With three slots two blocks share a multiprocessor of 228 KB; where a block may not have as much
// shared memory (99 KB on sm_120), NVFP4's ring has two.
template <WeightType kType, int kHeld>
struct Ring {
  static constexpr bool kScaled = kType == WeightType::kFp4;
  static constexpr int kPieces = 2;
  static constexpr int kSlots = kHeld;
  static constexpr int kStepColumns = kPieces * 4 * Piece<kType>::kColumns;
  static constexpr int kStepRowBytes = kPieces * kRowBytes;
  static constexpr int kScalesAt = kWarpRows * kStepRowBytes;
  static constexpr int kScaleBytes = kStepColumns / static_cast<int>(kFp4Block);  // of a row and step
  static constexpr int kSlotBytes = kScalesAt + (kScaled ? kWarpRows * kScaleBytes : 0);
  static constexpr int kBytes = kSlots * kSlotBytes;
};

// x of one lane and piece: either bf16 values or codes with their scales. Pointers are those of the lane in a row's
// first four pieces; `column` is that of the four pieces' first.
template <WeightType kType, bool kCodes>
struct Activation;

template <WeightType kType>
struct Activation<kType, false> {
  uint4 values[Piece<kType>::kGroups];
  __device__ void load(const uint8_t* x, const uint8_t*, int column, bool inside) {
#pragma unroll
    for (int i = 0; i < Piece<kType>::kGroups; ++i)
      values[i] = inside ? *(reinterpret_cast<const uint4*>(x + column * 2) + i) : make_uint4(0, 0, 0, 0);
  }
  __device__ static int byte_of_lane(int, int t) {
    return t * Piece<kType>::kColumns * 2;
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
    codes = inside ? *reinterpret_cast<const uint4*>(x + column / 2) : make_uint4(0, 0, 0, 0);
    scales = inside ? *reinterpret_cast<const uint16_t*>(scales_at + column / kFp4Block) : 0;
  }
  __device__ static int byte_of_lane(int, int t) { return t * kPieceBytes; }
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

// Copies 16 bytes, zeros where they lie past the row. kLines: the L2 cache fetches lines in pairs, which long rows of
// bf16 gain from (an eighth less time) and NVFP4's do not.
template <bool kLines>
__device__ void copy_piece(uint32_t shared, const uint8_t* global, bool inside) {
  const int bytes = inside ? kPieceBytes : 0;
  if constexpr (kLines)
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes));
  else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes));
}
__device__ void copy_scales(uint32_t shared, const uint8_t* global) {
  static_assert(Ring<WeightType::kFp4, 2>::kScaleBytes == kPieceBytes);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global));
}

// The sums of a warp's 32 weight rows with up to 8 kTokenBlocks rows of x.
template <WeightType kType, bool kCodes, int kTokenBlocks>
struct TileSums {
  static constexpr int kTokens = kTokenBlocks * kTokenGroup;
  static constexpr int kInputs = kTokenBlocks;  // rows of x that a lane reads
  using X = Activation<kType, kCodes>;
  static constexpr float kUp = kType != WeightType::kFp4 ? 1.0f : (kCodes ? kCodesUp * kCodesUp : kCodesUp);
  using Sums = float[kRowBlocks][kTokenBlocks][4];

  Sums sum = {};
  Sums part = {};  // kFp8: of one step, whose scale is not multiplied yet

  __device__ void add(const Piece<kType> (&w)[kRowBlocks][2], const X (&x)[kInputs]) {
    Sums& to = kType == WeightType::kFp8 ? part : sum;
    add_group<0>(w, x, to);
    if constexpr (Piece<kType>::kGroups > 1) add_group<1>(w, x, to);
    if constexpr (Piece<kType>::kGroups > 2) {
      add_group<2>(w, x, to);
      add_group<3>(w, x, to);
    }
  }

  // `row`: the weight row of the lane's first sum; `column`: the step's first.
  __device__ void end_step(const Product& p, const DeviceWeight& weight, int64_t row, int64_t column) {
    if constexpr (kType == WeightType::kFp8) {
#pragma unroll
      for (int i = 0; i < kRowBlocks * 2; ++i) {
        const float scale = fp8_block_scale(p, weight, row + i * 8, column);
#pragma unroll
        for (int n = 0; n < kTokenBlocks; ++n)
#pragma unroll
          for (int j = i % 2 * 2; j < i % 2 * 2 + 2; ++j) {
            sum[i / 2][n][j] += scale * part[i / 2][n][j];
            part[i / 2][n][j] = 0;
          }
      }
    }
  }

  template <class Partial>
  __device__ void store(Partial& partial) const {
    const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
      for (int n = 0; n < kTokenBlocks; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) partial[n * kTokenGroup + 2 * t + i % 2][r * 16 + i / 2 * 8 + g] = sum[r][n][i];
  }

 private:
  template <int kAt>
  __device__ static void add_group(const Piece<kType> (&w)[kRowBlocks][2], const X (&x)[kInputs], Sums& to) {
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
        mma(to[r][n], upper[0], lower[0], upper[1], lower[1], b[n][0], b[n][1]);
        mma(to[r][n], upper[2], lower[2], upper[3], lower[3], b[n][2], b[n][3]);
      }
    }
  }
};

__device__ float larger(float a, float b) {
  return b > a || b != b ? b : a;
}

template <WeightType kType, class Sums, int kHeld>
__global__ void __launch_bounds__(kThreads, 2)
    skinny(const __grid_constant__ Product p, const __grid_constant__ SkinnyShape shape) {
  using R = Ring<kType, kHeld>;
  constexpr int kColumns = Piece<kType>::kColumns;
  constexpr int kTokens = Sums::kTokens;
  using Partial = float[kTokens][kPadded];
  static_assert(kWarps * sizeof(Partial) <= kWarps * R::kBytes);
  extern __shared__ __align__(16) uint8_t memory[];
  auto* partial = reinterpret_cast<Partial*>(memory);  // in place of the rings, once they are read
  __shared__ float total[kWarpRows * kTokens];         // of this block, for the first one of its cluster
  __shared__ int32_t out_rows[kTokens];
  __shared__ float input_scales[kWarps];

  // Weights and input scales, which no kernel writes, are asked for at once; but which experts have rows is an earlier
  // kernel's to say.
  admit_next();
  const float* scale_at[kScalesEach] = {};
#pragma unroll
  for (int i = 0; i < kScalesEach; ++i)
    if (const int at = i * kThreads + static_cast<int>(threadIdx.x); at < p.scale_count) scale_at[i] = p.scale_list[at];
  if (p.groups > 0) await_earlier();
  const PlanItem item = item_of_block<kTokens>(p);
  if (item.count <= 0) return;  // the whole cluster

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto head = static_cast<int64_t>(blockIdx.z);
  const int rank = static_cast<int>(blockIdx.x) & (shape.clusters() - 1);
  const int tile = static_cast<int>(blockIdx.x) >> shape.log_clusters;
  const WeightTile w = weight_tile(p, tile, 1 << shape.log_rows(), item.group, head);
  const int row_group = warp >> shape.log_warps;
  // The last rows of a matrix are done twice rather than tested for: all of a warp's rows exist.
  const int first_row = min(w.first + row_group * kWarpRows, w.rows - kWarpRows);
  constexpr int kChunks = R::kStepRowBytes / kPieceBytes;  // of a row and step, copied by as many lanes
  constexpr int kRowsAtOnce = kWarp / kChunks;
  const int chunk = lane % kChunks;
  const uint8_t* const rows = w.weight.values + (first_row + lane / kChunks) * w.weight.stride + chunk * kPieceBytes;
  const uint8_t* const scale_rows = w.weight.scales + (first_row + lane) * w.weight.scale_stride;

  const auto columns = static_cast<int>(p.columns);
  const int steps = (columns + R::kStepColumns - 1) / R::kStepColumns;
  const int stride = 1 << (shape.log_warps + shape.log_clusters);
  const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + warp * R::kBytes;
  const auto fetch = [&](int step, int slot) {
    if (step < steps) {
      const uint32_t to = ring + slot * R::kSlotBytes;
      const bool inside = R::kScaled || step * R::kStepColumns + chunk * kColumns < columns;
      const uint8_t* from = rows + step * static_cast<int64_t>(R::kStepRowBytes);
#pragma unroll
      for (int i = 0; i < kWarpRows / kRowsAtOnce; ++i) {
        const int row = i * kRowsAtOnce + lane / kChunks;
        copy_piece<!R::kScaled>(to + row * R::kStepRowBytes + (chunk ^ (row % 2 * 4)) * kPieceBytes,
                                from + i * kRowsAtOnce * w.weight.stride, inside);
      }
      if constexpr (R::kScaled)
        copy_scales(to + R::kScalesAt + lane * R::kScaleBytes,
                    scale_rows + step * static_cast<int64_t>(R::kScaleBytes));
    }
    asm volatile("cp.async.commit_group;");
  };
  int step = (rank << shape.log_warps) + (warp & (shape.k_warps() - 1));
#pragma unroll
  for (int i = 0; i < R::kSlots - 1; ++i) fetch(step + i * stride, i);
  if (p.groups == 0) await_earlier();

  // What the end needs is asked for now, and not waited for.
  float input_scales_of_thread[kScalesEach];
#pragma unroll
  for (int i = 0; i < kScalesEach; ++i) input_scales_of_thread[i] = scale_at[i] != nullptr ? *scale_at[i] : -INFINITY;
  const float factor = epilogue_factor(p, w.weight);
  if (threadIdx.x < kTokens)
    out_rows[threadIdx.x] =
        static_cast<int>(threadIdx.x) < item.count ? out_row(p, item.begin + static_cast<int>(threadIdx.x)) : -1;

  constexpr bool kCodes = kType == WeightType::kFp4 && !std::is_same_v<typename Sums::X, Activation<kType, false>>;
  const uint8_t* x[Sums::kInputs];
  const uint8_t* x_scales[Sums::kInputs];
#pragma unroll
  for (int n = 0; n < Sums::kInputs; ++n) {
    const int32_t entry = item.begin + min(n * kTokenGroup + g, item.count - 1);
    const int64_t row = max(out_row(p, entry), 0) / p.rows_per_x;
    x[n] = p.x + head * p.x_batch + row * p.x_stride * (kCodes ? 1 : 2) + Sums::X::byte_of_lane(g, t);
    x_scales[n] =
        kCodes ? p.x_scales + row * p.x_scales_stride + t * (kColumns / static_cast<int>(kFp4Block)) : nullptr;
    asm volatile("" : "+l"(x[n]), "+l"(x_scales[n]));  // kept, not computed again for every piece
    __builtin_assume(__isGlobal(x[n]));
    if constexpr (kCodes) __builtin_assume(__isGlobal(x_scales[n]));
  }

  using X = typename Sums::X[Sums::kInputs];
  const auto load_x = [&](X& to, int at, int u) {
    const int column = at * R::kStepColumns + u * 4 * kColumns;
    const bool inside = column + t * kColumns < columns;
#pragma unroll
    for (int n = 0; n < Sums::kInputs; ++n) to[n].load(x[n], x_scales[n], column, inside);
  };
  Sums sums;
  int slot = 0;
  X current;  // x is asked for a piece ahead
  load_x(current, step, 0);
  for (; step < steps; step += stride) {
    asm volatile("cp.async.wait_group %0;" ::"n"(R::kSlots - 2));
    __syncwarp();  // this step is there for all lanes, and the slot before it has been read by all
    fetch(step + (R::kSlots - 1) * stride, slot == 0 ? R::kSlots - 1 : slot - 1);
    const uint32_t from = ring + slot * R::kSlotBytes;
#pragma unroll
    for (int u = 0; u < R::kPieces; ++u) {
      X following;
      load_x(following, u + 1 < R::kPieces ? step : step + stride, (u + 1) % R::kPieces);
      Piece<kType> piece[kRowBlocks][2];
#pragma unroll
      for (int i = 0; i < kRowBlocks * 2; ++i)
        piece[i / 2][i % 2].load_shared(
            from + (i * 8 + g) * R::kStepRowBytes + ((u * 4 + t) ^ (g % 2 * 4)) * kPieceBytes,
            from + R::kScalesAt + (i * 8 + g) * R::kScaleBytes + (u * 4 + t) * 2);
      sums.add(piece, current);
#pragma unroll
      for (int n = 0; n < Sums::kInputs; ++n) current[n] = following[n];
    }
    static_assert(kType != WeightType::kFp8 || R::kStepColumns == kFp8Block);
    sums.end_step(p, w.weight, first_row + g, static_cast<int64_t>(step) * R::kStepColumns);
    slot = slot + 1 == R::kSlots ? 0 : slot + 1;
  }

  float input_scale = -INFINITY;
#pragma unroll
  for (int i = 0; i < kScalesEach; ++i) input_scale = larger(input_scale, input_scales_of_thread[i]);
  for (int i = kScalesEach * kThreads + static_cast<int>(threadIdx.x); i < p.scale_count; i += kThreads)
    input_scale = larger(input_scale, *p.scale_list[i]);
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    input_scale = larger(input_scale, __shfl_xor_sync(0xFFFFFFFFu, input_scale, lanes));
  if (lane == 0) input_scales[warp] = input_scale;
  __syncthreads();  // all rings are read
  sums.store(partial[warp]);
  __syncthreads();

  const int tile_rows = 1 << shape.log_rows();
  float scale = factor;
  if (p.scale_list != nullptr) {
    float largest = input_scales[0];
    for (int i = 1; i < kWarps; ++i) largest = larger(largest, input_scales[i]);
    scale *= largest;
  }
  const auto finish = [&](int index, float value) {
    const int group_first =
        min(w.first + ((index & (tile_rows - 1)) >> kLogWarpRows << kLogWarpRows), w.rows - kWarpRows);
    const int32_t to = out_rows[index >> shape.log_rows()];
    if (to < 0) return;
    const int64_t column = w.out_column - w.first + group_first + index % kWarpRows;
    store_out(p, head, to, column, value * Sums::kUp * scale);
  };
  for (int index = static_cast<int>(threadIdx.x); index < tile_rows * kTokens; index += kThreads) {
    const int row = index & (tile_rows - 1);
    const int token = index >> shape.log_rows();
    if (token >= item.count) break;
    const int from = row >> kLogWarpRows << shape.log_warps;
    float value = 0;
    for (int i = 0; i < shape.k_warps(); ++i) value += partial[from + i][token][row % kWarpRows];
    if (shape.log_clusters > 0)
      total[index] = value;
    else
      finish(index, value);
  }
  if (shape.log_clusters == 0) return;
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  cluster.sync();
  if (rank == 0) {
    for (int index = static_cast<int>(threadIdx.x); index < tile_rows * item.count; index += kThreads) {
      float value = 0;
      for (int i = 0; i < shape.clusters(); ++i)
        value += *cluster.map_shared_rank(&total[index], static_cast<unsigned>(i));
      finish(index, value);
    }
  }
  cluster.sync();  // the others' shared memory must outlive the reads
}

// How the K range is shared, by what was fastest on an H200: as little as gives enough warps, each with several steps;
// over clusters only where a block's eight warps are not enough, since their sums meet late.
SkinnyShape shape_of(const Product& p, int64_t items, int64_t step_columns, int64_t warps_wanted) {
  constexpr int64_t kWarpsWithoutClusters = 1024;
  constexpr int64_t kFewWarps = 1024;  // below, a warp may have one step alone
  constexpr int kEvenShares = 4;       // of long rows, so that blocks end together
  constexpr int64_t kLongSteps = 8;
  const int64_t steps = (p.columns + step_columns - 1) / step_columns;
  const int64_t tiles = weight_tiles(p, kWarpRows) * items;
  int log_shares = 0;
  while (log_shares < kLogWarps + kLogMaxClusters) {
    const int shares = 1 << log_shares;
    const int next = 2 * shares;
    const int64_t warps = tiles * shares;
    if (next > steps || (steps < 2 * next && warps >= kFewWarps)) break;
    if (shares >= kWarps ? warps >= kWarpsWithoutClusters
                         : warps >= warps_wanted && (next > kEvenShares || steps < kLongSteps * next))
      break;
    ++log_shares;
  }
  return SkinnyShape{std::min(log_shares, kLogWarps), std::max(log_shares - kLogWarps, 0)};
}

template <WeightType kType, class Sums, int kHeld>
void launch_held(const LaunchContext& context, const Product& p) {
  using R = Ring<kType, kHeld>;
  constexpr int64_t kBytes = kWarps * R::kBytes;
  const int64_t items =
      p.groups == 0 ? (p.rows + Sums::kTokens - 1) / Sums::kTokens : (p.plan != nullptr ? p.plan_capacity : p.rows);
  // NVFP4 is bound by decoding as much as by memory: it wants more warps.
  constexpr int64_t kWarpsWanted = kType == WeightType::kFp4 ? 2048 : 1024;
  const SkinnyShape shape = shape_of(p, items * p.batch, R::kStepColumns, kWarpsWanted);
  const int tiles = weight_tiles(p, 1 << shape.log_rows());
  if (tiles == 0 || items == 0) return;
  const auto kernel = skinny<kType, Sums, kHeld>;
  const cudaError_t set =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
  if (set != cudaSuccess) return check_launch("skinny product", set);
  const dim3 grid(static_cast<unsigned>(tiles * shape.clusters()), static_cast<unsigned>(items),
                  static_cast<unsigned>(p.batch));
  const cudaError_t launched =
      launch_dependent(context, kernel, grid, kThreads, kBytes, static_cast<unsigned>(shape.clusters()), p, shape);
  if (!device_died(launched)) check_launch("skinny product", launched);
}

template <WeightType kType, class Sums>
void launch_variant(const LaunchContext& context, const Product& p) {
  constexpr int kMostHeld = 3;
  constexpr int64_t kStatic = 4096;  // more than a block's static arrays
  if (kType != WeightType::kFp4 || kWarps * Ring<kType, kMostHeld>::kBytes + kStatic <= gpu_limits().shared_bytes)
    launch_held<kType, Sums, kMostHeld>(context, p);
  else if constexpr (kType == WeightType::kFp4)
    launch_held<kType, Sums, kMostHeld - 1>(context, p);
}

template <WeightType kType, bool kCodes>
void launch_tokens(const LaunchContext& context, const Product& p) {
  // Experts: with fewer rows than experts, hardly one has more than a group of them; if it has, they are two items.
  const bool few = p.groups == 0 ? p.rows <= kTokenGroup : p.plan == nullptr && p.rows <= p.groups;
  if (few)
    launch_variant<kType, TileSums<kType, kCodes, 1>>(context, p);
  else
    launch_variant<kType, TileSums<kType, kCodes, 2>>(context, p);
}

// Rows of experts that are items of their own, although two of an expert then read its weights twice.
constexpr int64_t kSingleRows = 16;

void launch_codes(const LaunchContext& context, const Product& p) {
  const bool single = p.groups == 0 ? p.rows == 1 : p.plan == nullptr && p.rows <= kSingleRows;
  if (single)
    launch_variant<WeightType::kFp4, CodeSums>(context, p);
  else
    launch_tokens<WeightType::kFp4, true>(context, p);
}

}  // namespace

void launch_skinny(const LaunchContext& context, const Product& p) {
  if (p.x_type == ActivationType::kFp4) return launch_codes(context, p);
  if (p.type == WeightType::kFp4) return launch_tokens<WeightType::kFp4, false>(context, p);
  if (p.type == WeightType::kFp8) return launch_tokens<WeightType::kFp8, false>(context, p);
  launch_tokens<WeightType::kBf16, false>(context, p);
}

}  // namespace faultline::kernels::products
