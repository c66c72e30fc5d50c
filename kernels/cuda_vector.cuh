// Eight bf16 values at a time, and launches of kernels that share out such pieces of rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

#include "kernels/cuda_dependent.cuh"
#include "kernels/cuda_device.cuh"
#include "kernels/cuda_mma.cuh"
#include "kernels/operand.h"

namespace faultline::kernels {

constexpr int kVector = 8;  // bf16 values in 16 bytes

struct Eight {
  float v[kVector];
};

__device__ __forceinline__ Eight unpack(const uint4& bits) {
  return Eight{{low_bf16(bits.x), high_bf16(bits.x), low_bf16(bits.y), high_bf16(bits.y), low_bf16(bits.z),
                high_bf16(bits.z), low_bf16(bits.w), high_bf16(bits.w)}};
}
__device__ __forceinline__ uint4 pack(const Eight& e) {
  return uint4{pack_bf16(e.v[0], e.v[1]), pack_bf16(e.v[2], e.v[3]), pack_bf16(e.v[4], e.v[5]),
               pack_bf16(e.v[6], e.v[7])};
}
__device__ __forceinline__ uint4 load_bits(const Bf16* from) {
  return *reinterpret_cast<const uint4*>(from);
}
__device__ __forceinline__ Eight load_eight(const Bf16* from) {
  return unpack(load_bits(from));
}
__device__ __forceinline__ Eight load_eight(const float* from) {
  const float4 a = reinterpret_cast<const float4*>(from)[0];
  const float4 b = reinterpret_cast<const float4*>(from)[1];
  return Eight{{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ __forceinline__ void store_eight(Bf16* to, const Eight& e) {
  *reinterpret_cast<uint4*>(to) = pack(e);
}
__device__ __forceinline__ float rounded_to_bf16(float value) {
  return low_bf16(pack_bf16(value, 0.0f));
}

// The sum over a block of whole warps, for every thread; `partial` holds 32 floats.
__device__ __forceinline__ float block_sum(float value, float* partial) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (warps == 1) return value;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = lane < warps ? partial[lane] : 0.0f;
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  __syncthreads();  // `partial` may be used again
  return value;
}

// Launches a kernel that begins with begin_dependent(); a refusal is kept for take_launch_error.
template <class... Parameters>
void start(const LaunchContext& context, const char* what, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
           size_t shared_bytes, const std::type_identity_t<Parameters>&... values) {
  const cudaError_t launched = launch_dependent(context, kernel, grid, threads, shared_bytes, 1, values...);
  if (launched == cudaSuccess || device_died(launched)) return;
  char text[128];
  static_cast<void>(std::snprintf(text, sizeof text, "%s: %s", what, cudaGetErrorString(launched)));
  note_launch_error(text);
}

constexpr int kPieceThreads = 128;

// Blocks for one thread a piece, or 0 where there are none or too many to count in 32 bits.
inline unsigned piece_blocks(int64_t pieces) {
  constexpr int64_t kMost = 1ll << 31;
  return pieces <= 0 || pieces >= kMost ? 0 : static_cast<unsigned>((pieces + kPieceThreads - 1) / kPieceThreads);
}

}  // namespace faultline::kernels
