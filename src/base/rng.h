// Counter-based random numbers: value i of a stream is a function of (key, i) alone, so that any part of a stream can
// be made without the rest, in any order, by anybody. Integer arithmetic up to the last step, hence the same bits
// everywhere.
//
// The mixing function is splitmix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
// 2014) over key + i * golden gamma.
#pragma once

#include <cstdint>
#include <string_view>

namespace faultline {

constexpr uint64_t mix64(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

// The key of the stream `name` under `seed`.
uint64_t stream_key(uint64_t seed, std::string_view name);

class CounterRng {
 public:
  explicit constexpr CounterRng(uint64_t key) : key_(key) {}
  CounterRng(uint64_t seed, std::string_view name) : key_(stream_key(seed, name)) {}

  constexpr uint64_t bits(uint64_t i) const {
    constexpr uint64_t kGoldenGamma = 0x9E3779B97F4A7C15u;
    return mix64(key_ + (i + 1) * kGoldenGamma);
  }
  // In [0, 1), 24 bits.
  constexpr float uniform(uint64_t i) const { return static_cast<float>(bits(i) >> 40) * (1.0f / 16777216.0f); }
  // In [0, bound), bound > 0. The bias is below bound / 2^32.
  constexpr uint64_t below(uint64_t i, uint32_t bound) const { return ((bits(i) >> 32) * bound) >> 32; }
  // Mean 0, variance 1, within ±3.47: the sum of four 16-bit uniforms (Irwin-Hall), exact but for one final product.
  constexpr float normal(uint64_t i) const {
    const uint64_t four = bits(i);
    const int64_t sum =
        static_cast<int64_t>((four & 0xFFFFu) + ((four >> 16) & 0xFFFFu) + ((four >> 32) & 0xFFFFu) + (four >> 48));
    return static_cast<float>(sum - kNormalMean) * kNormalUnit;
  }
  static constexpr int32_t kNormalMean = 2 * 65535;
  static constexpr float kNormalUnit = 2.6428998e-5f;  // 1 / (65536 * sqrt(4 / 12))
  constexpr uint64_t key() const { return key_; }

 private:
  uint64_t key_;
};

}  // namespace faultline
