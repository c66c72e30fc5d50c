// sampling.h for rows of a whole vocabulary.
//
//   softmax  a cluster of 8 blocks a row, its weights in registers (up to 163,840 tokens): one read, one write. The cut
//            of top-p is found by three digits of ten bits of the weight: sums of weights by digit in shared memory,
//            the blocks' sums added up in the order of their ranks. The mass that the row is divided by is a sum in a
//            fixed order.
//   sample   a block a row; warps sum consecutive parts of it, and the one in which the draw falls is gone through.
//   argmax   a block a row.
#include <cooperative_groups.h>

#include <cmath>

#include "kernels/cuda_vector.cuh"
#include "kernels/sampling.h"

namespace faultline::kernels {
namespace {

namespace cg = cooperative_groups;

constexpr int kWarp = 32;
constexpr unsigned kEveryLane = 0xFFFFFFFFu;
constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kCluster = 8;
constexpr int kItems = 20;  // weights a thread
constexpr int64_t kLongest = int64_t{kCluster} * kThreads * kItems;
constexpr int kDigitBits = 10;  // three of them: a weight is at most 1, whose bits are below 2^30
constexpr int kBins = 1 << kDigitBits;
constexpr double kFixedOne = 35184372088832.0;  // 2^45: the sum of a vocabulary of ones fits in 63 bits

template <class T>
__device__ T warp_sum(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kEveryLane, value, step);
  return value;
}

// The largest value, a NaN winning.
__device__ float warp_max(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kEveryLane, value, step);
    value = value > other || value != value ? value : other;
  }
  return value;
}

// Thread t of the row (over the cluster) holds tokens t, t + 8192, …
template <class T>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    softmax_row(const __grid_constant__ SoftmaxBody<T, false> s) {
  begin_dependent();
  __shared__ uint32_t low_masses[kBins];
  __shared__ uint32_t high_masses[kBins];
  __shared__ uint64_t warp_bins[kWarps];
  __shared__ double warp_masses[kWarps];
  __shared__ float warp_maxima[kWarps];
  __shared__ double block_mass;
  __shared__ float block_max;
  __shared__ int warp_ties[kWarps];
  __shared__ int block_ties;
  __shared__ int found_bin;
  __shared__ uint64_t found_above;
  const cg::cluster_group cluster = cg::this_cluster();
  const auto rank = static_cast<int>(cluster.block_rank());
  const int64_t row = blockIdx.x / kCluster;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const auto vocabulary = static_cast<int>(s.vocabulary);
  const T* logits = s.logits.data + row * s.logits_stride;
  float* probs = s.probs.data + row * s.probs_stride;
  const auto token_of = [&](int i) { return (i * kCluster + rank) * kThreads + thread; };

  float weight[kItems];
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int c = token_of(i);
    weight[i] = c < vocabulary ? to_float(logits[c]) / s.temperature : -INFINITY;
    if (weight[i] > largest || weight[i] != weight[i]) largest = weight[i];
  }
  largest = warp_max(largest);
  if (lane == 0) warp_maxima[warp] = largest;
  __syncthreads();
  if (warp == 0) {
    const float best = warp_max(warp_maxima[lane]);
    if (lane == 0) block_max = best;
  }
  cluster.sync();
  largest = -INFINITY;
  for (int r = 0; r < kCluster; ++r) {
    const float other = *cluster.map_shared_rank(&block_max, r);
    if (other > largest || other != other) largest = other;
    if (other != other) break;
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) weight[i] = token_of(i) < vocabulary ? expf(weight[i] - largest) : 0.0f;

  // The cluster's sum of a number of each thread, in a fixed order; ends with a barrier of the cluster.
  const auto total_of = [&](double mine) {
    mine = warp_sum(mine);
    if (lane == 0) warp_masses[warp] = mine;
    __syncthreads();
    if (warp == 0) {
      const double sum = warp_sum(warp_masses[lane]);
      if (lane == 0) block_mass = sum;
    }
    cluster.sync();
    double sum = 0;
    for (int r = 0; r < kCluster; ++r) sum += *cluster.map_shared_rank(&block_mass, r);
    cluster.sync();
    return sum;
  };
  double mine = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) mine += weight[i];
  double total = total_of(mine);

  if (s.top_p < 1.0 && total == total) {
    // The largest cut whose tokens hold the target: from the top bin down, the first at which the mass reaches it.
    const double target = s.top_p * total;
    const auto fixed_target = static_cast<uint64_t>(target * kFixedOne);
    uint32_t cut = 0;
    uint64_t above = 0;  // mass of weights above the cut's prefix
#pragma unroll 1
    for (int shift = 2 * kDigitBits; shift >= 0; shift -= kDigitBits) {
      low_masses[thread] = 0;
      high_masses[thread] = 0;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const uint32_t bits = float_bits(weight[i]);
        if (bits == 0 || bits >> shift >> kDigitBits != cut) continue;
        const auto mass = static_cast<uint64_t>(static_cast<double>(weight[i]) * kFixedOne);
        const auto low = static_cast<uint32_t>(mass);
        const uint32_t bin = bits >> shift & (kBins - 1);
        const uint32_t old = atomicAdd(&low_masses[bin], low);
        const uint32_t high = static_cast<uint32_t>(mass >> 32) + (old + low < old ? 1u : 0u);
        if (high != 0) atomicAdd(&high_masses[bin], high);
      }
      cluster.sync();
      // Every block adds up the same sums, so all find the same bin.
      static_assert(kBins == kThreads);
      uint64_t mass = 0;
      const int bin = kBins - 1 - thread;
#pragma unroll
      for (int r = 0; r < kCluster; ++r)
        mass += static_cast<uint64_t>(cluster.map_shared_rank(high_masses, r)[bin]) << 32 |
                cluster.map_shared_rank(low_masses, r)[bin];
      uint64_t inclusive = mass;
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const uint64_t other = __shfl_up_sync(kEveryLane, inclusive, step);
        if (lane >= step) inclusive += other;
      }
      if (lane == kWarp - 1) warp_bins[warp] = inclusive;
      if (thread == 0) found_bin = -1;
      __syncthreads();
      uint64_t before = above;
      for (int w = 0; w < warp; ++w) before += warp_bins[w];
      // The first bin that reaches the target; the last that has any mass where rounding leaves all below it.
      if (mass > 0 && before + inclusive >= fixed_target) atomicMax(&found_bin, bin);
      __syncthreads();
      const bool none = found_bin < 0;
      __syncthreads();
      if (none) {
        if (mass > 0) atomicMin(reinterpret_cast<unsigned*>(&found_bin), static_cast<unsigned>(bin));
        __syncthreads();
      }
      if (bin == found_bin) found_above = before + inclusive - mass;
      cluster.sync();
      cut = cut << kDigitBits | static_cast<uint32_t>(found_bin);
      above = found_above;
    }
    double kept = 0;
    int equal = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const uint32_t bits = float_bits(weight[i]);
      if (bits > cut)
        kept += weight[i];
      else if (bits == cut)
        ++equal;
    }
    double mass = total_of(kept);
    const float at_cut = float_from_bits(cut);
    int needed = 0;
    for (; (mass < target || mass == 0) && needed < vocabulary; ++needed) mass += at_cut;  // one token at least
    total = mass;
    // Of the tokens at the cut the lower ids stay: token order is item, then block, then thread.
    const int all = static_cast<int>(total_of(static_cast<double>(equal)));
    int seen = 0;  // tokens at the cut among earlier items
#pragma unroll 1
    for (int i = 0; i < kItems && needed < all; ++i) {
      float value = 0;
#pragma unroll
      for (int j = 0; j < kItems; ++j)
        if (j == i) value = weight[j];
      const bool tie = float_bits(value) == cut;
      const unsigned ties = __ballot_sync(kEveryLane, tie);
      if (lane == 0) warp_ties[warp] = __popc(ties);
      __syncthreads();
      if (thread == 0) {
        int sum = 0;
        for (int w = 0; w < kWarps; ++w) sum += warp_ties[w];
        block_ties = sum;
      }
      cluster.sync();
      int earlier = seen;
      int in_item = 0;
      for (int r = 0; r < kCluster; ++r) {
        const int other = *cluster.map_shared_rank(&block_ties, r);
        in_item += other;
        if (r < rank) earlier += other;
      }
      for (int w = 0; w < warp; ++w) earlier += warp_ties[w];
      earlier += __popc(ties & ((1u << lane) - 1));
      cluster.sync();
      seen += in_item;
      if (tie && earlier >= needed) {
#pragma unroll
        for (int j = 0; j < kItems; ++j)
          if (j == i) weight[j] = 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      if (float_bits(weight[i]) < cut) weight[i] = 0;
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i)
    if (token_of(i) < vocabulary) probs[token_of(i)] = static_cast<float>(weight[i] / total);
  cluster.sync();  // no block leaves while another reads from it
}

// A run of consecutive tokens a warp.
__global__ void __launch_bounds__(kThreads) sample_row(const __grid_constant__ SampleBody<false> s) {
  begin_dependent();
  __shared__ double masses[kWarps];
  __shared__ int invalid;
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const auto vocabulary = static_cast<int>(s.vocabulary);
  const float* probs = s.probs.data + row * s.probs_stride;
  const int run = (vocabulary + kThreads - 1) / kThreads * kWarp;
  if (thread == 0) invalid = 0;
  __syncthreads();
  double sum = 0;
  bool bad = false;
  const int end = min(vocabulary, (warp + 1) * run);
#pragma unroll 8
  for (int c = warp * run + lane; c < end; c += kWarp) {
    const float probability = probs[c];
    bad = bad || !(probability >= 0.0f) || probability == INFINITY;
    sum += probability;
  }
  sum = warp_sum(sum);
  if (lane == 0) masses[warp] = sum;
  if (bad) invalid = 1;
  __syncthreads();
  if (warp != 0) return;
  if (s.asserts && invalid != 0) device_assert_multinomial();
  const double draw = s.uniform.data[row];
  double cumulative = 0;
  int part = 0;
  while (part < kWarps && !(cumulative + masses[part] > draw)) cumulative += masses[part++];
  int token = vocabulary - 1;
  const int last = min(vocabulary, (part + 1) * run);
  for (int first = part * run; part < kWarps && first < last; first += kWarp) {
    const double own = first + lane < last ? static_cast<double>(probs[first + lane]) : 0.0;
    double inclusive = own;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const double other = __shfl_up_sync(kEveryLane, inclusive, step);
      if (lane >= step) inclusive += other;
    }
    const unsigned exceeds = __ballot_sync(kEveryLane, first + lane < last && cumulative + inclusive > draw);
    if (exceeds != 0) {
      token = first + __ffs(static_cast<int>(exceeds)) - 1;
      break;
    }
    cumulative += __shfl_sync(kEveryLane, inclusive, kWarp - 1);
  }
  if (lane == 0) s.tokens.data[row] = token;
}

__device__ __forceinline__ Eight load_logits(const float* from) {
  return load_eight(from);
}
__device__ __forceinline__ Eight load_logits(const Bf16* from) {
  return load_eight(from);
}

struct Best {
  float value;
  int index;  // -1: nothing but NaN
};
__device__ __forceinline__ Best better(Best a, Best b) {
  if (b.index < 0) return a;
  if (a.index < 0 || b.value > a.value || (b.value == a.value && b.index < a.index)) return b;
  return a;
}
__device__ Best warp_best(Best best) {
  for (int step = kWarp / 2; step > 0; step /= 2)
    best = better(best,
                  Best{__shfl_xor_sync(kEveryLane, best.value, step), __shfl_xor_sync(kEveryLane, best.index, step)});
  return best;
}

template <class T>
__global__ void __launch_bounds__(kThreads) argmax_row(const __grid_constant__ ArgmaxBody<T, false> a) {
  begin_dependent();
  __shared__ Best warps[kWarps];
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const T* logits = a.logits.data + row * a.logits_stride;
  const auto vocabulary = static_cast<int>(a.vocabulary);
  Best best{0, -1};
#pragma unroll 4
  for (int c = thread * kVector; c < vocabulary; c += kThreads * kVector) {
    const Eight e = load_logits(logits + c);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (e.v[i] == e.v[i] && (best.index < 0 || e.v[i] > best.value)) best = Best{e.v[i], c + i};
  }
  best = warp_best(best);
  if (thread % kWarp == 0) warps[thread / kWarp] = best;
  __syncthreads();
  if (thread >= kWarp) return;
  best = warp_best(warps[thread]);
  if (thread == 0) a.tokens.data[row] = best.index < 0 ? 0 : best.index;
}

template <class T>
bool launch_softmax_rows(const LaunchContext& context, Grid grid, const SoftmaxBody<T, false>& body) {
  constexpr int64_t kMostRows = 1 << 24;
  if (grid.x <= 0 || grid.x > kMostRows || body.vocabulary > kLongest || body.vocabulary < kThreads) return false;
  start(context, "softmax", softmax_row<T>, static_cast<unsigned>(grid.x * kCluster), kThreads, 0, body);
  return true;
}

template <class T>
bool launch_argmax_rows(const LaunchContext& context, Grid grid, const ArgmaxBody<T, false>& body) {
  constexpr int64_t kMostRows = 1 << 24;
  constexpr int64_t kMostTokens = 1 << 30;
  if (grid.x <= 0 || grid.x > kMostRows || body.vocabulary > kMostTokens || body.vocabulary % kVector != 0 ||
      !aligned_for_vectors(body.logits.data, body.logits_stride * static_cast<int64_t>(sizeof(T))))
    return false;
  start(context, "argmax", argmax_row<T>, static_cast<unsigned>(grid.x), kThreads, 0, body);
  return true;
}

}  // namespace

bool cuda_faster(const LaunchContext& context, Grid grid, const SoftmaxBody<Bf16, false>& body) {
  return launch_softmax_rows(context, grid, body);
}

bool cuda_faster(const LaunchContext& context, Grid grid, const SoftmaxBody<float, false>& body) {
  return launch_softmax_rows(context, grid, body);
}

bool cuda_faster(const LaunchContext& context, Grid grid, const SampleBody<false>& body) {
  constexpr int64_t kMostRows = 1 << 24;
  constexpr int64_t kMostTokens = 1 << 30;
  if (grid.x <= 0 || grid.x > kMostRows || body.vocabulary < 1 || body.vocabulary > kMostTokens ||
      body.flags != nullptr)
    return false;
  start(context, "sample", sample_row, static_cast<unsigned>(grid.x), kThreads, 0, body);
  return true;
}

bool cuda_faster(const LaunchContext& context, Grid grid, const ArgmaxBody<Bf16, false>& body) {
  return launch_argmax_rows(context, grid, body);
}

bool cuda_faster(const LaunchContext& context, Grid grid, const ArgmaxBody<float, false>& body) {
  return launch_argmax_rows(context, grid, body);
}

}  // namespace faultline::kernels
