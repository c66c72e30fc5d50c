// Warp-level tensor-core products and asynchronous copies, as PTX has them (sm_80 and later; e4m3 conversion sm_89).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace faultline::kernels {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four 8x8 matrices of 16-bit values: lanes 8i..8i+7 give the rows of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// c += a * b: a 16x16 (rows), b 16x8 (columns), bf16; c 16x8 in float. Lane l holds of c the rows l / 4 and l / 4 + 8,
// columns 2 (l % 4) and the next.
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes from global to shared memory; zeros when not `present` (nothing is read then).
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool present) {
  const int bytes = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group 0;\n" ::: "memory");
}

// Two floats as bf16, the first in the low half; nearest even, NaN stays NaN.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
__device__ __forceinline__ float low_bf16(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_bf16(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}

// Two e4m3 codes (low byte first) as floats: exact, NaN for 0x7F and 0xFF.
__device__ __forceinline__ float2 decode_e4m3_pair(uint16_t codes) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;\n" : "=r"(halves) : "h"(codes));
  float2 result;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}\n"
      : "=f"(result.x), "=f"(result.y)
      : "r"(halves));
  return result;
}
// The nearest codes of two floats, the first in the low byte; saturated at 448, NaN is 0x7F.
__device__ __forceinline__ uint32_t encode_e4m3_pair(float low, float high) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
// Four codes as four bf16: e4m3 is a subset of bf16.
__device__ __forceinline__ uint2 decode_e4m3_to_bf16(uint32_t codes) {
  const float2 low = decode_e4m3_pair(static_cast<uint16_t>(codes & 0xFFFFu));
  const float2 high = decode_e4m3_pair(static_cast<uint16_t>(codes >> 16));
  return uint2{pack_bf16(low.x, low.y), pack_bf16(high.x, high.y)};
}

}  // namespace faultline::kernels
