// One thread that reads a word of device memory, or writes it: what a kernel gone astray does.
#include <cuda_runtime.h>

#include "bisect/touch_memory.h"

namespace {

__global__ void touch_kernel(unsigned* word, unsigned* seen, bool write) {
  *seen = *word;
  if (write) *word = ~*seen;
}

}  // namespace

const char* touch_memory(void* word, bool write) {
  unsigned* seen = nullptr;
  cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&seen), sizeof *seen);
  if (error != cudaSuccess) return cudaGetErrorName(error);
  touch_kernel<<<1, 1>>>(static_cast<unsigned*>(word), seen, write);
  error = cudaDeviceSynchronize();
  return cudaGetErrorName(error);
}
