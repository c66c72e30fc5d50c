#include "kernels/cuda_synth.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "base/codec.h"

namespace faultline::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kVectorBytes = 16;
constexpr unsigned kBlocksAJob = 32;  // of 6 MB, most often: 48 vectors a thread
constexpr int64_t kMostRows = 65535;  // of a grid

constexpr int32_t kNormalMean = 2 * 65535;  // these as in base/rng.h, whose header has no place here
constexpr float kNormalUnit = 2.6428998e-5f;

__device__ __constant__ uint8_t kScaleCodes[16] = {0x6D, 0x6E, 0x6F, 0x71, 0x72, 0x73, 0x74, 0x75,
                                                   0x76, 0x77, 0x79, 0x7A, 0x7B, 0x7C, 0x7D, 0x7E};

__device__ __forceinline__ uint64_t stream_bits(uint64_t key, uint64_t i) {
  uint64_t value = key + (i + 1) * 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

__device__ __forceinline__ uint64_t code_block(uint64_t key, uint64_t block) {
  return stream_bits(key, block) | uint64_t{7} << (4 * (stream_bits(key, ~block) >> 60));
}

// 16 nibbles through the table; four codes a word.
__device__ __forceinline__ uint32_t four_scales(const uint8_t* codes, uint32_t nibbles) {
  return codes[nibbles & 15] | static_cast<uint32_t>(codes[(nibbles >> 4) & 15]) << 8 |
         static_cast<uint32_t>(codes[(nibbles >> 8) & 15]) << 16 |
         static_cast<uint32_t>(codes[(nibbles >> 12) & 15]) << 24;
}

__device__ __forceinline__ uint32_t normal_bits(uint64_t key, uint64_t i, float spread) {
  const uint64_t four = stream_bits(key, i);
  const auto sum =
      static_cast<int32_t>((four & 0xFFFFu) + ((four >> 16) & 0xFFFFu) + ((four >> 32) & 0xFFFFu) + (four >> 48));
  // No fused or reordered arithmetic: the CPU's roundings.
  const float value = __fmul_rn(spread, __fmul_rn(static_cast<float>(sum - kNormalMean), kNormalUnit));
  return to_bf16(value).bits;
}

// Launched the ordinary way, and it lets nobody in before it ends: products may fetch weights ahead of their wait for
// the kernels before them (cuda_dependent.cuh).
__global__ void __launch_bounds__(kThreads) synth_jobs(const SynthJob* jobs, int64_t count, const int32_t* offsets) {
  __shared__ uint8_t scale_codes[16];
  if (threadIdx.x < 16) scale_codes[threadIdx.x] = kScaleCodes[threadIdx.x];
  __syncthreads();
  for (int64_t j = blockIdx.y; j < count; j += gridDim.y) {
    const SynthJob job = jobs[j];
    if (offsets != nullptr && job.expert >= 0 && offsets[job.expert] >= offsets[job.expert + 1]) continue;
    const int64_t vectors = (job.bytes + kVectorBytes - 1) / kVectorBytes;
    for (int64_t v = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; v < vectors;
         v += static_cast<int64_t>(gridDim.x) * kThreads) {
      const auto at = static_cast<uint64_t>(v);
      uint4 made;
      if (job.kind == SynthKind::kCodes) {
        const uint64_t first = code_block(job.key, 2 * at);
        const uint64_t second = code_block(job.key, 2 * at + 1);
        made = make_uint4(static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32),
                          static_cast<uint32_t>(second), static_cast<uint32_t>(second >> 32));
      } else if (job.kind == SynthKind::kBlockScales) {
        const uint64_t bits = stream_bits(job.key, at);
        made = make_uint4(four_scales(scale_codes, static_cast<uint32_t>(bits)),
                          four_scales(scale_codes, static_cast<uint32_t>(bits >> 16)),
                          four_scales(scale_codes, static_cast<uint32_t>(bits >> 32)),
                          four_scales(scale_codes, static_cast<uint32_t>(bits >> 48)));
      } else {
        uint32_t words[4];
#pragma unroll
        for (uint64_t i = 0; i < 4; ++i)
          words[i] = normal_bits(job.key, 8 * at + 2 * i, job.spread) |
                     normal_bits(job.key, 8 * at + 2 * i + 1, job.spread) << 16;
        made = make_uint4(words[0], words[1], words[2], words[3]);
      }
      uint8_t* const to = job.out + v * kVectorBytes;
      if ((v + 1) * kVectorBytes <= job.bytes) {
        *reinterpret_cast<uint4*>(to) = made;
        continue;
      }
      const auto* from = reinterpret_cast<const uint8_t*>(&made);
      for (int64_t i = 0; i < job.bytes - v * kVectorBytes; ++i) to[i] = from[i];
    }
  }
}

}  // namespace

void make_synth(const LaunchContext& context, const SynthJob* jobs, int64_t count, const int32_t* offsets) {
  if (count == 0) return;
  const dim3 grid(kBlocksAJob, static_cast<unsigned>(std::min(count, kMostRows)));
  synth_jobs<<<grid, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(jobs, count, offsets);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) note_launch_error(cudaGetErrorString(error));
}

}  // namespace faultline::kernels
