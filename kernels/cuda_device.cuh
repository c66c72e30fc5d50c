// What launchers ask of the GPU at hand, once a process.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace faultline::kernels {

struct GpuLimits {
  int multiprocessors = 0;
  int shared_bytes = 0;  // that a block may ask for
};

inline const GpuLimits& gpu_limits() {
  static const GpuLimits limits = [] {
    GpuLimits result;
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&result.multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&result.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
      static_cast<void>(cudaGetLastError());
    return result;
  }();
  return limits;
}

// Whether a pointer and the distances between rows, in bytes, allow 16-byte accesses.
template <class... Bytes>
bool aligned_for_vectors(const void* data, Bytes... bytes) {
  constexpr uintptr_t kBytes = 16;
  return ((reinterpret_cast<uintptr_t>(data) | ... | static_cast<uintptr_t>(bytes)) & (kBytes - 1)) == 0;
}

}  // namespace faultline::kernels
