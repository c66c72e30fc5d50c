// Closeness of an output to its reference. One launch sets the result to "none", one counts, one fetches the values of
// the first element that is apart; the result may lie in mapped host memory, so only blocks that found something touch
// it.
#include "ops/cuda_reference_device.cuh"

namespace faultline::cuda_reference {
namespace {

constexpr int64_t kNone = -1;

__device__ int64_t offset_of(const Comparison& c, int64_t row, int64_t column) {
  return row * c.out.stride[0] + column / c.inner * c.outer_stride + column % c.inner;
}

__device__ bool apart(float out, float ref, double atol, double rtol) {
  if (ref != ref && out != out) return false;  // the finite check's business; both agree on the NaN
  if (out == ref) return false;                // equal infinities
  return !(fabsf(out - ref) <= atol + rtol * fabsf(ref));
}

__global__ void begin_kernel(const Comparison c) {
  *c.count = 0;
  *c.first = kNone;
  *c.out_there = 0;
  *c.ref_there = 0;
}

// While counting, `first` is the distance of a flat place (row * columns + column) from the end: the largest wins.
__global__ void count_kernel(const Comparison c) {
  const int64_t elements = c.rows * c.columns;
  int64_t count = 0;
  int64_t closest = kNone;
  for (int64_t i = thread_index(); i < elements; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = i / c.columns;
    const int64_t column = i % c.columns;
    if (c.lengths.data != nullptr && column >= c.lengths.load_index(c.lengths.offset(row))) continue;
    const int64_t at = offset_of(c, row, column);
    if (!apart(c.out.load(at), c.ref.load(at), c.atol, c.rtol)) continue;
    ++count;
    if (closest == kNone) closest = elements - i;  // a thread's places grow
  }
  count = block_reduce(count, [](int64_t a, int64_t b) { return a + b; });
  closest = block_reduce(closest, [](int64_t a, int64_t b) { return a > b ? a : b; });
  if (threadIdx.x != 0 || count == 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(c.count), static_cast<unsigned long long>(count));
  atomicMax(reinterpret_cast<long long*>(c.first), static_cast<long long>(closest));
}

__global__ void fetch_kernel(const Comparison c) {
  if (*c.count == 0) return;
  const int64_t place = c.rows * c.columns - *c.first;
  const int64_t at = offset_of(c, place / c.columns, place % c.columns);
  *c.first = at;
  *c.out_there = c.out.load(at);
  *c.ref_there = c.ref.load(at);
}

}  // namespace

void compare(void* stream, const Comparison& comparison) {
  constexpr int64_t kMostBlocks = 1024;  // a few a multiprocessor; the rest is looped over
  const int64_t blocks = blocks_for(comparison.rows * comparison.columns, kThreads);
  start(stream, 1, 1, 0, begin_kernel, comparison);
  start(stream, blocks < kMostBlocks ? blocks : kMostBlocks, kThreads, 0, count_kernel, comparison);
  start(stream, 1, 1, 0, fetch_kernel, comparison);
}

}  // namespace faultline::cuda_reference
