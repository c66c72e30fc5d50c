// The CUDA side of launch.h: a body's phases run with one CUDA thread a thread, and a block barrier after each.
//
// What a body does outside its phases is run by every thread alike. Shared arrays are carved from the block's dynamic
// shared memory in the order in which the body asks for them.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <typeinfo>

#include "kernels/cuda_dependent.cuh"
#include "kernels/launch.h"

namespace faultline::kernels {

class CudaBlock {
 public:
  __device__ explicit CudaBlock(unsigned char* shared) : shared_(shared) {
    place_.block =
        blockIdx.x + static_cast<int64_t>(gridDim.x) * (blockIdx.y + static_cast<int64_t>(gridDim.y) * blockIdx.z);
    place_.thread = static_cast<int32_t>(threadIdx.x);
  }

  __device__ int64_t index(int axis) const { return axis == 0 ? blockIdx.x : (axis == 1 ? blockIdx.y : blockIdx.z); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }

  template <class Phase>
  __device__ void for_each_thread(Phase&& phase) {
    phase(static_cast<int>(threadIdx.x));
    __syncthreads();
  }

  template <class T>
  __device__ T* shared(int64_t count) {
    used_ = (used_ + alignof(T) - 1) / alignof(T) * alignof(T);
    T* result = reinterpret_cast<T*>(shared_ + used_);
    used_ += static_cast<uint32_t>(count * static_cast<int64_t>(sizeof(T)));
    return result;
  }

  template <class T>
  __device__ T atomic_add(T* pointer, T value) {
    return atomicAdd(pointer, value);
  }

  template <class Values>
  __device__ float sum(const Values& values) const {
    return reduce(
        values[static_cast<int>(threadIdx.x)], [](float a, float b) { return a + b; }, 0.0f);
  }
  template <class Values>
  __device__ float max(const Values& values) const {
    // A NaN wins, as on the host.
    return reduce(
        values[static_cast<int>(threadIdx.x)], [](float a, float b) { return a > b || a != a ? a : b; }, -INFINITY);
  }
  __device__ const Place* place() const { return &place_; }

 private:
  template <class Merge>
  __device__ static float reduce(float value, const Merge& merge, float neutral) {
    constexpr int kWarp = 32;
    __shared__ float partial[kWarp];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int warps = (static_cast<int>(blockDim.x) + kWarp - 1) / kWarp;
    for (int step = kWarp / 2; step > 0; step /= 2) value = merge(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
    __syncthreads();  // the last reduction's result has been read by all
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    value = lane < warps ? partial[lane] : neutral;
    for (int step = kWarp / 2; step > 0; step /= 2) value = merge(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
    return value;
  }

  unsigned char* shared_;
  uint32_t used_ = 0;
  Place place_;
};

template <class T>
class PerThread<T, CudaBlock> {
 public:
  __device__ explicit PerThread(const CudaBlock&, T initial = T{}) : value_(initial) {}
  __device__ T& operator[](int) { return value_; }
  __device__ const T& operator[](int) const { return value_; }

 private:
  T value_;
};

template <class Body>
__global__ void run_body(const __grid_constant__ Body body) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  begin_dependent();
  CudaBlock block(shared_memory);
  body(block);
}

template <class Body>
void cuda_launch(const LaunchContext& context, Grid grid, int threads, size_t shared_bytes, const Body& body) {
  constexpr int64_t kLargestX = 2147483647;  // CUDA programming guide, technical specifications: grid dimensions
  constexpr int64_t kLargestYZ = 65535;
  constexpr size_t kOptIn = 48 * 1024;  // a block gets more shared memory only when the kernel asks for it
  constexpr size_t kSlack = 16;         // what alignment between arrays may take
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const auto refuse = [&](const char* why) {
    char text[384];
    static_cast<void>(std::snprintf(text, sizeof text,
                                    "grid (%lld, %lld, %lld), %d threads, %zu bytes of shared memory: %s",
                                    static_cast<long long>(grid.x), static_cast<long long>(grid.y),
                                    static_cast<long long>(grid.z), threads, shared_bytes, why));
    note_launch_error(text);
  };
  if (grid.x > kLargestX || grid.y > kLargestYZ || grid.z > kLargestYZ) return refuse("a grid dimension is too large");
  const size_t bytes = shared_bytes + kSlack;
  if (bytes > kOptIn) {
    const cudaError_t set =
        cudaFuncSetAttribute(run_body<Body>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (set != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return refuse(cudaGetErrorString(set));
    }
  }
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
  const cudaError_t launched =
      launch_dependent(context, run_body<Body>, blocks, static_cast<unsigned>(threads), bytes, 1, body);
  if (launched != cudaSuccess && !device_died(launched)) refuse(cudaGetErrorString(launched));
}

}  // namespace faultline::kernels
