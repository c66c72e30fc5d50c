// Checksum of device memory (slab_checksum.h), at memory speed.
//
// A grid-stride loop over pairs of words (16-byte loads); each block adds its sum to one counter. Sums are modulo 2^64,
// so the order does not matter.
#include <cuda_runtime.h>

#include "device/slab_checksum.h"

namespace faultline {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kUnroll = 4;       // loads in flight a thread
constexpr int kBlocksPerSm = 8;  // 2048 threads: a full SM

__global__ void __launch_bounds__(kThreads)
    checksum_kernel(const ulonglong2* __restrict__ pairs, uint64_t count, unsigned long long* total) {
  const uint64_t stride = uint64_t{gridDim.x} * kThreads;
  uint64_t sum = 0;
  uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kUnroll - 1) * stride < count; i += kUnroll * stride) {
    ulonglong2 pair[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) pair[u] = pairs[i + u * stride];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint64_t word = 2 * (i + u * stride);
      sum += checksum_of_word(pair[u].x, word) + checksum_of_word(pair[u].y, word + 1);
    }
  }
  for (; i < count; i += stride) {
    const ulonglong2 pair = pairs[i];
    sum += checksum_of_word(pair.x, 2 * i) + checksum_of_word(pair.y, 2 * i + 1);
  }
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lane);
  __shared__ uint64_t warps[kThreads / kWarp];
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint64_t block = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) block += warps[w];
  atomicAdd(total, static_cast<unsigned long long>(block));
}

}  // namespace

int cuda_checksum(const uint64_t* words, uint64_t count, void* stream, uint64_t* sum) {
  const auto on = static_cast<cudaStream_t>(stream);
  unsigned long long* total = nullptr;
  cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&total), sizeof *total);
  if (error != cudaSuccess) return error;
  int device = 0;
  int processors = 1;
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaMemsetAsync(total, 0, sizeof *total, on);
  if (error == cudaSuccess && count / 2 > 0) {
    checksum_kernel<<<processors * kBlocksPerSm, kThreads, 0, on>>>(reinterpret_cast<const ulonglong2*>(words),
                                                                    count / 2, total);
    error = cudaGetLastError();
  }
  unsigned long long result = 0;
  uint64_t last = 0;
  if (error == cudaSuccess) error = cudaMemcpyAsync(&result, total, sizeof result, cudaMemcpyDeviceToHost, on);
  if (error == cudaSuccess && count % 2 != 0)
    error = cudaMemcpyAsync(&last, words + count - 1, sizeof last, cudaMemcpyDeviceToHost, on);
  if (error == cudaSuccess) error = cudaStreamSynchronize(on);
  const cudaError_t freed = cudaFree(total);
  *sum = result + (count % 2 != 0 ? checksum_of_word(last, count - 1) : 0);
  return error != cudaSuccess ? error : freed;
}

}  // namespace faultline
