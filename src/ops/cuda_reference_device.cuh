// What the CUDA references have in common on the device: launches, sums over warps and blocks, cache rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>

#include "kernels/launch.h"
#include "ops/cuda_reference_operands.cuh"

namespace faultline::cuda_reference {

inline constexpr int kWarp = 32;
inline constexpr int kThreads = 256;  // of a block, where nothing asks for another number
inline constexpr int kWarpsPerBlock = kThreads / kWarp;

inline int64_t blocks_for(int64_t work, int64_t per_block) {
  return (work + per_block - 1) / per_block;
}

// Launches `kernel` on `blocks` blocks, none when there is no work. A refused launch is kept for take_launch_error.
template <class... Parameters, class... Arguments>
void start(void* stream, int64_t blocks, int threads, size_t shared_bytes, void (*kernel)(Parameters...),
           const Arguments&... arguments) {
  constexpr int64_t kLargestGrid = 2147483647;  // CUDA programming guide, technical specifications: grid dimension x
  constexpr size_t kOptIn = 48 * 1024;          // a block gets more shared memory only when the kernel asks for it
  if (blocks <= 0) return;
  cudaError_t error = blocks > kLargestGrid ? cudaErrorInvalidConfiguration : cudaSuccess;
  if (error == cudaSuccess && shared_bytes > kOptIn)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error == cudaSuccess) {
    kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared_bytes,
             static_cast<cudaStream_t>(stream)>>>(arguments...);
    error = cudaPeekAtLastError();
  }
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  char text[256];
  static_cast<void>(std::snprintf(text, sizeof text,
                                  "a reference: grid %lld, %d threads, %zu bytes of shared memory: %s",
                                  static_cast<long long>(blocks), threads, shared_bytes, cudaGetErrorString(error)));
  kernels::note_launch_error(text);
}

__device__ inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
__device__ inline float nan_value() {
  return float_from_bits(0x7FC00000u);
}

// This thread's place in a grid of one dimension.
__device__ inline int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t warp_index() {
  return thread_index() / kWarp;
}
__device__ inline int lane() {
  return static_cast<int>(threadIdx.x) % kWarp;
}

// The same result for every lane. All lanes of the warp take part.
template <class T>
__device__ T warp_sum(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  return value;
}

// Merges one value a thread into one, the same for every thread of the block. All threads take part.
template <class T, class Merge>
__device__ T block_reduce(T value, const Merge& merge) {
  __shared__ T partial[1024];
  const int threads = static_cast<int>(blockDim.x);
  const int self = static_cast<int>(threadIdx.x);
  __syncthreads();  // the last reduction's result has been read by all
  partial[self] = value;
  __syncthreads();
  for (int count = threads; count > 1;) {
    const int half = (count + 1) / 2;
    if (self < count - half) partial[self] = merge(partial[self], partial[self + half]);
    __syncthreads();
    count = half;
  }
  return partial[0];
}
__device__ inline double block_sum(double value) {
  return block_reduce(value, [](double a, double b) { return a + b; });
}

// Rounded from double, as the host's expf is to within a hair.
__device__ inline float exp_of(float x) {
  return static_cast<float>(exp(static_cast<double>(x)));
}

// --- caches (ops/formats.cpp says what a slot is)

inline constexpr int64_t kPackedGroups = 4;  // fp32 scales of a packed row
inline constexpr float kLargestCode = 448.0f;
inline constexpr float kAmaxFloor = 1e-4f;
inline constexpr int64_t kFloatBytes = 4;
inline constexpr int64_t kBf16Bytes = 2;

// Rows need not be aligned: a reader may take them with another format's stride.
template <class T>
__device__ T value_at(const uint8_t* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T) == 0) return *reinterpret_cast<const T*>(at);
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}
template <class T>
__device__ void put_value(uint8_t* at, T value) {
  memcpy(at, &value, sizeof value);
}

// What a conversion instruction makes of a float: saturated, and every NaN 0x7F whatever its sign.
__device__ inline uint8_t saturated_code(float value) {
  return value != value ? uint8_t{0x7F} : float_to_e4m3(clamp_e4m3(value));
}

// The largest magnitude of `count` values. A NaN beside numbers is dropped.
template <class Values>
__device__ float warp_amax(const Values& values, int64_t begin, int64_t count) {
  float largest = 0;
  for (int64_t i = lane(); i < count; i += kWarp) largest = fmaxf(largest, fabsf(values(begin + i)));
  for (int step = kWarp / 2; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
  return largest;
}

// The scale of an index key or query: with `ue8m0` 2^ceil(log2(amax * (1 / 448))).
__device__ inline float index_scale_value(float amax, bool ue8m0) {
  const float largest = fmaxf(amax, kAmaxFloor);
  if (!ue8m0) return largest / kLargestCode;
  const float value = largest * (1.0f / kLargestCode);
  if (!isfinite(value)) return value;
  int exponent = 0;
  const float fraction = frexpf(value, &exponent);  // in [0.5, 1)
  return ldexpf(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

// Where a slot's row (or codes) and, of an index page, its scale begin.
__device__ inline uint8_t* slot_row(const Cache& cache, int64_t slot) {
  if (cache.format != RowFormat::kIndexFp8) return cache.bytes + slot * cache.stride;
  const int64_t page = slot / cache.page_size * cache.page_size * cache.stride;
  return cache.bytes + page + slot % cache.page_size * cache.latent;
}
__device__ inline uint8_t* index_scale(const Cache& cache, int64_t slot) {
  const int64_t page = slot / cache.page_size * cache.page_size * cache.stride;
  return cache.bytes + page + cache.page_size * cache.latent + slot % cache.page_size * kFloatBytes;
}

// Value i of a slot's width() values.
__device__ inline float slot_value(const Cache& cache, int64_t slot, int64_t i) {
  const uint8_t* row = slot_row(cache, slot);
  switch (cache.format) {
    case RowFormat::kFloats:
      return value_at<float>(row + i * kFloatBytes);
    case RowFormat::kBf16:
      return to_float(value_at<Bf16>(row + i * kBf16Bytes));
    case RowFormat::kPlainFp8:
      return e4m3_to_float(row[i]);
    case RowFormat::kIndexFp8:
      return e4m3_to_float(row[i]) * value_at<float>(index_scale(cache, slot));
    case RowFormat::kPacked: {
      const uint8_t* scales = row + cache.latent;
      const uint8_t* rope = scales + kPackedGroups * kFloatBytes;
      if (i >= cache.latent) return to_float(value_at<Bf16>(rope + (i - cache.latent) * kBf16Bytes));
      return e4m3_to_float(row[i]) * value_at<float>(scales + i / (cache.latent / kPackedGroups) * kFloatBytes);
    }
  }
  return 0;
}

}  // namespace faultline::cuda_reference
