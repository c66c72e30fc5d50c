// The check kernels and their launches. A refused launch stays the runtime's last error: the device's wait() finds it.
#include <cuda_runtime.h>

#include "check/cuda_checks.cuh"

namespace faultline::device_checks {
namespace {

constexpr int kBlocksAnSm = 4;  // bounds the registers, so that a launch is one wave (multiprocessors() x this)

__global__ void __launch_bounds__(kThreads, kBlocksAnSm)
    work_kernel(const __grid_constant__ Context context, const __grid_constant__ Launch launch) {
  run_work(context, launch);
}

__global__ void __launch_bounds__(kThreads)
    check_indices_kernel(const __grid_constant__ Context context, const __grid_constant__ Launch launch) {
  run_check_indices(context, launch);
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

void start(void (*kernel)(Context, Launch), const Context& context, const Launch& launch, void* stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(launch.blocks));
  config.blockDim = dim3(kThreads);
  config.stream = stream_of(stream);
  config.attrs = &attribute;
  config.numAttrs = launch.dependent ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, context, launch));
}

}  // namespace

void launch_work(const Context& context, const Launch& launch, void* stream) {
  start(work_kernel, context, launch, stream);
}

void launch_check_indices(const Context& context, const Launch& launch, void* stream) {
  start(check_indices_kernel, context, launch, stream);
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
