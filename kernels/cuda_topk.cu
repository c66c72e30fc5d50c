// topk.h with a block of 512 or 1024 threads a row, and the row's keys in registers while they fit (8192; longer rows
// are read again in each pass). Three digits of 11, 11 and 10 bits: fewer passes than with 8, and far fewer keys that
// meet in one counter, since 8 bits of a float are little more than its exponent. A row's entries are written once the
// k-th key is known, at places that a prefix sum gives: the order depends on the scores alone.
#include "kernels/cuda_vector.cuh"
#include "kernels/topk.h"

namespace faultline::kernels {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kEveryLane = 0xFFFFFFFFu;
constexpr int kKeysHeld = 8192;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;

// The sum of `value` over the threads before this one; `total` gets the sum over all. `partial` holds 32 of them.
template <int kThreads, class T>
__device__ T before(T value, T* partial, T& total) {
  constexpr int kWarps = kThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  T inclusive = value;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const T other = __shfl_up_sync(kEveryLane, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == kWarp - 1) partial[warp] = inclusive;
  __syncthreads();
  if (warp == 0) {
    T sum = lane < kWarps ? partial[lane] : 0;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const T other = __shfl_up_sync(kEveryLane, sum, step);
      if (lane >= step) sum += other;
    }
    partial[lane] = sum;
  }
  __syncthreads();
  total = partial[kWarps - 1];
  const T result = (warp > 0 ? partial[warp - 1] : 0) + inclusive - value;
  __syncthreads();
  return result;
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads) select_rows(const __grid_constant__ TopKOperands o) {
  begin_dependent();
  constexpr int kItems = kKeysHeld / kThreads;
  constexpr int kThreadBins = kBins / kThreads;
  __shared__ int histogram[kBins];
  __shared__ int partial[kWarp];
  __shared__ uint64_t pair_partial[kWarp];
  __shared__ int found_bin, found_above, found_count;
  const int64_t token = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const auto topk = static_cast<int>(o.topk);
  const int length = o.lengths.data[token];
  const float* scores = o.scores.data + token * o.score_stride;
  // Scores are fetched before the length is known: what lies past it inside the tensor is not looked at.
  const int64_t fetchable = o.scores.extent - token * o.score_stride;
  uint32_t keys[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int c = i * kThreads + thread;
    keys[i] = c < fetchable && c < o.score_stride ? ordered_key(scores[c]) : 0;
  }
  int32_t* out = o.out.data + token * o.out_stride;
  const int32_t* pages = o.transform == IndexTransform::kPaged
                             ? o.page_table.data + o.row_to_request.data[token] * o.page_table_stride
                             : nullptr;
  const int32_t offset = o.transform == IndexTransform::kRagged ? o.ragged_offsets.data[token] : 0;
  const auto index_of = [&](int key) { return pages != nullptr ? pages[key] : key + offset; };
  if (length <= topk) {
    for (int i = thread; i < topk; i += kThreads) out[i] = i < length ? index_of(i) : -1;
    return;
  }

  const bool held = length <= kKeysHeld && length <= fetchable && length <= o.score_stride;
  const auto for_each_key = [&](const auto& take) {
    if (held) {
#pragma unroll
      for (int i = 0; i < kItems; ++i)
        if (i * kThreads + thread < length) take(i * kThreads + thread, keys[i]);
    } else {
      for (int c = thread; c < length; c += kThreads) take(c, ordered_key(scores[c]));
    }
  };

  int wanted = topk;    // keys still to be found among those with the prefix
  uint32_t prefix = 0;  // the k-th key's digits so far
  int shift = 32;
#pragma unroll 1
  for (int pass = 0; pass < 3; ++pass) {
    const int above_shift = shift;
    shift = pass == 2 ? 0 : above_shift - kDigitBits;
    const uint32_t mask = (1u << (above_shift - shift)) - 1;
    for (int bin = thread; bin < kBins; bin += kThreads) histogram[bin] = 0;
    __syncthreads();
    for_each_key([&](int, uint32_t key) {
      if (pass == 0 || key >> above_shift == prefix) atomicAdd(&histogram[key >> shift & mask], 1);
    });
    __syncthreads();
    // Bins from the top; thread t looks at kThreadBins of them.
    int counts[kThreadBins];
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kThreadBins; ++i) sum += counts[i] = histogram[kBins - 1 - (thread * kThreadBins + i)];
    int all = 0;
    int above = before<kThreads>(sum, partial, all);
    if (above < wanted && wanted <= above + sum) {
#pragma unroll
      for (int i = 0; i < kThreadBins; ++i) {
        if (above < wanted && wanted <= above + counts[i]) {
          found_bin = kBins - 1 - (thread * kThreadBins + i);
          found_above = above;
          found_count = counts[i];
        }
        above += counts[i];
      }
    }
    __syncthreads();
    wanted -= found_above;
    prefix = (pass == 0 ? 0 : prefix << (above_shift - shift)) | static_cast<uint32_t>(found_bin);
    if (found_count == wanted) break;  // all of the bin is wanted
  }

  // The greater ones, in the upper half, and the equal ones.
  constexpr int kHalf = 32;
  uint64_t counts = 0;
  for_each_key([&](int, uint32_t key) {
    counts += key >> shift > prefix ? uint64_t{1} << kHalf : 0;
    counts += key >> shift == prefix ? 1 : 0;
  });
  uint64_t all = 0;
  const uint64_t earlier = before<kThreads>(counts, pair_partial, all);
  auto at = static_cast<int>(earlier >> kHalf);
  int tie = static_cast<int>(all >> kHalf) + static_cast<int>(earlier & 0xFFFFFFFFu);
  for_each_key([&](int c, uint32_t key) {
    if (key >> shift > prefix)
      out[at++] = index_of(c);
    else if (key >> shift == prefix && tie < topk)
      out[tie++] = index_of(c);
  });
}

}  // namespace

bool cuda_faster(const LaunchContext& context, Grid grid, const TopKBody<false>& body) {
  constexpr int64_t kLargestCount = 2147483647;
  constexpr int kFewThreads = 512;
  constexpr int kManyThreads = 1024;
  if (grid.x <= 0 || grid.x > kLargestCount || body.operands.topk > kLargestCount || body.operands.topk < 1)
    return false;
  if (grid.x <= gpu_limits().multiprocessors)
    start(context, "topk", select_rows<kManyThreads>, static_cast<unsigned>(grid.x), kManyThreads, 0, body.operands);
  else
    start(context, "topk", select_rows<kFewThreads>, static_cast<unsigned>(grid.x), kFewThreads, 0, body.operands);
  return true;
}

}  // namespace faultline::kernels
