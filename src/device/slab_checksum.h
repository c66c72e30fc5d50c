// The checksum by which weights in device memory are proven unchanged: the same number from the host and from a GPU,
// whatever the order in which the words are visited.
//
//   sum over i of mix(word[i] + i * kGolden)  mod 2^64      word: 8 bytes, little endian; i counts from the first slab
//
// mix is murmur3's finalizer with other shifts (a bijection), so a change of one word always shows; several changes go
// unseen with a probability near 2^-64. Against accidents and stray writes, not against an adversary.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define FAULTLINE_CHECKSUM_FUNCTION __host__ __device__ inline
#else
#define FAULTLINE_CHECKSUM_FUNCTION inline
#endif

namespace faultline {

inline constexpr uint64_t kChecksumWordBytes = 8;

FAULTLINE_CHECKSUM_FUNCTION uint64_t checksum_of_word(uint64_t word, uint64_t index) {
  uint64_t x = word + index * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio, as in splitmix64
  x ^= x >> 32;
  x *= 0xFF51AFD7ED558CCDu;  // murmur3's fmix64
  x ^= x >> 29;
  x *= 0xC4CEB9FE1A85EC53u;
  return x ^ (x >> 32);
}

// Of `count` words, the first of which is word `first` of the whole.
inline uint64_t checksum_of_words(const uint64_t* words, uint64_t count, uint64_t first) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < count; ++i) sum += checksum_of_word(words[i], first + i);
  return sum;
}

// The same of device memory (cuda_checksum.cu), in the order of `stream` (cudaStream_t), which is waited for. `words`
// is aligned to 16 bytes. Returns a cudaError_t.
int cuda_checksum(const uint64_t* words, uint64_t count, void* stream, uint64_t* sum);

}  // namespace faultline
