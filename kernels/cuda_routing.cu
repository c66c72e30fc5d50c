// CUDA-only bodies of the router and of the sort by expert: a warp a token, and one block whose warps count runs of
// entries. Each gives what its single-source body (router.h, moe.h) gives.
#include "kernels/cuda_vector.cuh"
#include "kernels/moe.h"
#include "kernels/router.h"
#include "kernels/topk.h"  // ordered_key

namespace faultline::kernels {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kEveryLane = 0xFFFFFFFFu;

// Lane l holds experts l, l + 32, …; the best choice left is found k times, ties to the lower expert.
template <class T, int kEach>
__global__ void __launch_bounds__(kPieceThreads) route(const __grid_constant__ RouterBody<T, false> r, int tokens) {
  admit_next();
  const int token = static_cast<int>(blockIdx.x) * (kPieceThreads / kWarp) + static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto experts = static_cast<int>(r.experts);
  const auto k = static_cast<int>(r.k);
  float scores[kEach];
  float biases[kEach];
  // The biases are weights, which no kernel writes.
  const auto load = [&](const auto* bias) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) biases[i] = i * kWarp + lane < experts ? to_float(bias[i * kWarp + lane]) : 0.0f;
  };
  if (r.bias.scalar == Scalar::kF32)
    load(static_cast<const float*>(r.bias.data));
  else if (r.bias.scalar == Scalar::kBf16)
    load(static_cast<const Bf16*>(r.bias.data));
  else
    load(static_cast<const F16*>(r.bias.data));
  await_earlier();
  if (token >= tokens) return;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    scores[i] = i * kWarp + lane < experts ? to_float(r.logits.data[token * r.logits_stride + i * kWarp + lane]) : 0.0f;
  uint32_t choices[kEach];  // 0: not to be had
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    scores[i] = 1.0f / (1.0f + expf(-scores[i]));
    const float value = scores[i] + (r.bias_bf16 ? to_float(to_bf16(biases[i])) : biases[i]);
    choices[i] = i * kWarp + lane < experts ? ordered_key(value == value ? value + 0.0f : -INFINITY) : 0;  // one zero
  }
  int chosen = 0;  // of round `lane`
  float score = 0;
  for (int j = 0; j < k; ++j) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) best = max(best, choices[i]);
    best = __reduce_max_sync(kEveryLane, best);
    int expert = kEach * kWarp;
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i)
      if (choices[i] == best) expert = i * kWarp + lane;
    expert = __reduce_min_sync(kEveryLane, expert);
    float own = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (i * kWarp + lane == expert) {
        own = scores[i];
        choices[i] = 0;
      }
    own = __shfl_sync(kEveryLane, own, expert % kWarp);
    if (lane == j) {
      chosen = expert;
      score = own;
    }
  }
  float sum = 0;
  for (int j = 0; j < k; ++j) sum += __shfl_sync(kEveryLane, score, j);
  if (lane >= k) return;
  r.ids.data[token * r.ids_stride + lane] = chosen;
  r.weights.data[token * r.weights_stride + lane] = (r.norm_topk ? score / (sum + kRouterSumFloor) : score) * r.scaling;
}

template <class T>
bool launch_route(const LaunchContext& context, Grid grid, const RouterBody<T, false>& body) {
  constexpr int kFew = 8;
  constexpr int kMany = 16;
  constexpr int64_t kTokensEach = kPieceThreads / kWarp;
  if (body.fused_shared || body.groups != 1 || body.k > kWarp || body.k < 1 || body.k > body.experts ||
      body.experts > kMany * kWarp)
    return false;
  const unsigned blocks = piece_blocks(grid.x * kWarp);
  if (blocks == 0) return false;
  static_assert(kPieceThreads == kTokensEach * kWarp);
  const auto kernel = body.experts <= kFew * kWarp ? route<T, kFew> : route<T, kMany>;
  start(context, "router", kernel, blocks, kPieceThreads, 0, body, static_cast<int>(grid.x));
  return true;
}

// A stable counting sort: warp w counts its run of entries by expert, the counts become starts (by expert, then by
// warp), and the warp goes over its run again. Equal experts among 32 entries are found with match_any.
constexpr int kAlignThreads = 1024;
constexpr int kAlignWarps = kAlignThreads / kWarp;

__global__ void __launch_bounds__(kAlignThreads)
    sort_by_expert(const int32_t* ids, int32_t* order, int32_t* offsets, int total, int k, int experts, int ids_stride,
                   int run) {
  begin_dependent();
  extern __shared__ int counts[];  // [warp][expert]
  __shared__ int sums[kWarp];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const int warps = (total + run - 1) / run;  // that have a run
  for (int i = thread; i < warps * experts; i += kAlignThreads) counts[i] = 0;
  __syncthreads();
  int* mine = counts + warp * experts;
  const auto expert_of = [&](int i) {
    if (i >= total) return -1;
    const int expert = ids[i / k * ids_stride + i % k];
    return expert < experts ? expert : -1;  // what is no expert is left out
  };
  const int end = min(total, (warp + 1) * run);
  for (int i = warp * run; i < end; i += kWarp) {
    const int expert = expert_of(i + lane < end ? i + lane : total);
    const unsigned same = __match_any_sync(kEveryLane, expert);
    if (expert >= 0 && lane == __ffs(static_cast<int>(same)) - 1) mine[expert] += __popc(same);
    __syncwarp();
  }
  __syncthreads();

  int count = 0;
  if (thread < experts)
    for (int w = 0; w < warps; ++w) count += counts[w * experts + thread];
  int inclusive = count;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kEveryLane, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == kWarp - 1) sums[warp] = inclusive;
  __syncthreads();
  int start = inclusive - count;
  for (int w = 0; w < warp; ++w) start += sums[w];
  if (thread < experts) {
    offsets[thread] = start;
    if (thread == experts - 1) offsets[experts] = start + count;
    for (int w = 0; w < warps; ++w) {
      const int own = counts[w * experts + thread];
      counts[w * experts + thread] = start;
      start += own;
    }
  }
  __syncthreads();

  for (int i = warp * run; i < end; i += kWarp) {
    const int expert = expert_of(i + lane < end ? i + lane : total);
    const unsigned same = __match_any_sync(kEveryLane, expert);
    const unsigned earlier = same & ((1u << lane) - 1);
    const int at = expert >= 0 ? mine[expert] : 0;
    __syncwarp();
    if (expert >= 0) {
      order[at + __popc(earlier)] = i + lane;
      if (earlier == 0) mine[expert] = at + __popc(same);
    }
    __syncwarp();
  }
}

}  // namespace

bool cuda_faster(const LaunchContext& context, Grid grid, const RouterBody<Bf16, false>& body) {
  return launch_route(context, grid, body);
}

bool cuda_faster(const LaunchContext& context, Grid grid, const RouterBody<float, false>& body) {
  return launch_route(context, grid, body);
}

bool cuda_faster(const LaunchContext& context, Grid, const MoeAlignBody<false>& body) {
  constexpr int64_t kMostEntries = 1 << 24;
  constexpr int64_t kSharedBytes = 40 * 1024;
  const int64_t total = body.tokens * body.k;
  if (total > kMostEntries || body.experts < 1 || body.experts > kAlignThreads || body.ids_stride > kMostEntries ||
      body.tokens * body.ids_stride > kMostEntries || body.k < 1)
    return false;
  // A run is whole groups of 32 entries.
  const int64_t run = total <= kWarp ? kWarp : (total + kAlignThreads - 1) / kAlignThreads * kWarp;
  const int64_t warps = (total + run - 1) / run;
  const int64_t bytes = warps * body.experts * static_cast<int64_t>(sizeof(int));
  if (bytes > kSharedBytes) return false;
  static_assert(kAlignWarps == kWarp);
  start(context, "moe_align", sort_by_expert, 1, kAlignThreads, static_cast<size_t>(bytes), body.ids.data,
        body.order.data, body.offsets.data, static_cast<int>(total), static_cast<int>(body.k),
        static_cast<int>(body.experts), static_cast<int>(body.ids_stride), static_cast<int>(run));
  return true;
}

}  // namespace faultline::kernels
