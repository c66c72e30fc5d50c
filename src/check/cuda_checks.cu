// The check kernels and their launches. A refused launch stays the runtime's last error: the device's wait() finds it.
#include <cuda_runtime.h>

#include "check/cuda_check_rows.cuh"

namespace faultline::device_checks {
namespace {

constexpr int kBlocksAnSm = 4;  // bounds the registers, so that a launch is one wave (multiprocessors() x this)

__global__ void __launch_bounds__(kThreads, kBlocksAnSm)
    poison_kernel(const __grid_constant__ Context context, int32_t first_block, int32_t group) {
  run_poison(context, first_block, group);
}

__global__ void __launch_bounds__(kThreads, kBlocksAnSm)
    check_kernel(const __grid_constant__ Context context, int32_t first_block, int32_t group) {
  run_check(context, first_block, group);
}

__global__ void __launch_bounds__(kIndexThreads)
    check_indices_kernel(const __grid_constant__ Context context, int32_t first_block, int32_t group) {
  run_check_indices(context, first_block, group);
}

__global__ void live_kernel(Live* live, Live value) {
  *live = value;
}

__global__ void mark_kernel(void* page, int32_t number, bool is_op, bool done, const Live* live) {
  mark(page, number, is_op, done, live->pass);
}

cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

}  // namespace

void launch_poison(const Context& context, int32_t first_block, int32_t blocks, int32_t group, void* stream) {
  poison_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(stream)>>>(context, first_block, group);
}

void launch_check(const Context& context, int32_t first_block, int32_t blocks, int32_t group, void* stream) {
  check_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(stream)>>>(context, first_block, group);
}

void launch_check_indices(const Context& context, int32_t first_block, int32_t blocks, int32_t group, void* stream) {
  check_indices_kernel<<<static_cast<unsigned>(blocks), kIndexThreads, 0, stream_of(stream)>>>(context, first_block,
                                                                                               group);
}

void launch_set_live(Live* live, int64_t tokens, int64_t requests, uint64_t pass, void* stream) {
  live_kernel<<<1, 1, 0, stream_of(stream)>>>(live, Live{tokens, requests, pass});
}

void launch_mark(void* page, int32_t number, bool is_op, bool done, const Live* live, void* stream) {
  mark_kernel<<<1, 1, 0, stream_of(stream)>>>(page, number, is_op, done, live);
}

void clear(void* memory, size_t bytes, void* stream) {
  static_cast<void>(cudaMemsetAsync(memory, 0, bytes, stream_of(stream)));
}

int multiprocessors() {
  int device = 0;
  int count = 1;
  static_cast<void>(cudaGetDevice(&device));
  static_cast<void>(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

}  // namespace faultline::device_checks
