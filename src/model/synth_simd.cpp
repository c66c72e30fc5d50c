#include "model/synth_simd.h"

#include "base/codec.h"
#include "base/rng.h"

// Highway compiles the rest of this file once an instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/synth_simd.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which decides what highway.h defines.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace faultline {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15u;  // as in base/rng.h

using Words = hn::ScalableTag<uint64_t>;
using WordVector = hn::Vec<Words>;

// mix64 of base/rng.h.
HWY_INLINE WordVector Mix(WordVector value) {
  const Words words;
  value = hn::Mul(hn::Xor(value, hn::ShiftRight<30>(value)), hn::Set(words, uint64_t{0xBF58476D1CE4E5B9u}));
  value = hn::Mul(hn::Xor(value, hn::ShiftRight<27>(value)), hn::Set(words, uint64_t{0x94D049BB133111EBu}));
  return hn::Xor(value, hn::ShiftRight<31>(value));
}

// What Mix takes for counters first, first + 1, … of a stream.
HWY_INLINE WordVector Counters(uint64_t key, uint64_t first, uint64_t step) {
  const Words words;
  return hn::Add(hn::Set(words, key + (first + 1) * kGamma), hn::Mul(hn::Iota(words, 0), hn::Set(words, step)));
}

void CodeBlocks(uint64_t key, uint64_t first, uint64_t blocks, uint8_t* HWY_RESTRICT out) {
  uint64_t block = 0;
#if HWY_TARGET != HWY_SCALAR
  const Words words;
  const hn::Repartition<uint8_t, Words> bytes;
  const uint64_t lanes = hn::Lanes(words);
  auto up = Counters(key, first, kGamma);
  auto down = Counters(key, ~first, ~kGamma + 1);
  const auto up_step = hn::Set(words, lanes * kGamma);
  for (; block + lanes <= blocks; block += lanes) {
    const auto place = hn::ShiftLeft<2>(hn::ShiftRight<60>(Mix(down)));
    const auto codes = hn::Or(Mix(up), hn::Shl(hn::Set(words, uint64_t{7}), place));
    hn::StoreU(hn::BitCast(bytes, codes), bytes, out + block * sizeof(uint64_t));
    up = hn::Add(up, up_step);
    down = hn::Sub(down, up_step);
  }
#endif
  const CounterRng rng(key);
  for (; block < blocks; ++block) {
    const uint64_t codes = rng.bits(first + block) | uint64_t{7} << (4 * (rng.bits(~(first + block)) >> 60));
    memcpy(out + block * sizeof codes, &codes, sizeof codes);
  }
}

void ScaleGroups(uint64_t key, uint64_t first, uint64_t groups, uint8_t* HWY_RESTRICT out) {
  const CounterRng rng(key);
  uint64_t group = 0;
#if HWY_TARGET != HWY_SCALAR
  // Two groups at a time: their nibbles, low first, through a table of 16.
  const hn::FixedTag<uint8_t, 16> bytes;
  const hn::FixedTag<uint64_t, 2> pair;
  const auto table = hn::LoadU(bytes, kBlockScaleCodes.data());
  const auto mask = hn::Set(bytes, uint8_t{0x0F});
  for (; group + 2 <= groups; group += 2) {
    const uint64_t hashes[2] = {rng.bits(first + group), rng.bits(first + group + 1)};
    const auto packed = hn::BitCast(bytes, hn::LoadU(pair, hashes));
    const auto even = hn::TableLookupBytes(table, hn::And(packed, mask));
    const auto odd = hn::TableLookupBytes(table, hn::And(hn::ShiftRight<4>(packed), mask));
    hn::StoreU(hn::InterleaveLower(bytes, even, odd), bytes, out + group * 16);
    hn::StoreU(hn::InterleaveUpper(bytes, even, odd), bytes, out + group * 16 + 16);
  }
#endif
  for (; group < groups; ++group) {
    uint64_t bits = rng.bits(first + group);
    for (int i = 0; i < 16; ++i, bits >>= 4) out[group * 16 + static_cast<uint64_t>(i)] = kBlockScaleCodes[bits & 15];
  }
}

void Normals(uint64_t key, uint64_t first, uint64_t count, float spread, uint16_t* HWY_RESTRICT out) {
  uint64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Words words;
  const hn::Repartition<uint32_t, Words> halves;
  const hn::RebindToSigned<decltype(halves)> ints;
  const hn::RebindToFloat<decltype(halves)> floats;
  const hn::Half<hn::Repartition<uint16_t, Words>> out_lanes;
  const uint64_t lanes = hn::Lanes(words);
  auto counters = Counters(key, first, kGamma);
  const auto step = hn::Set(words, lanes * kGamma);
  const auto low_quarters = hn::Set(words, uint64_t{0x0000FFFF0000FFFFu});
  const auto low_half = hn::Set(words, uint64_t{0xFFFFFFFFu});
  const auto mean = hn::Set(ints, int32_t{CounterRng::kNormalMean});
  const auto unit = hn::Set(floats, CounterRng::kNormalUnit);
  const auto factor = hn::Set(floats, spread);
  const auto sum_of_four = [&](WordVector hash) HWY_ATTR {
    const auto pairs = hn::Add(hn::And(hash, low_quarters), hn::And(hn::ShiftRight<16>(hash), low_quarters));
    return hn::And(hn::Add(pairs, hn::ShiftRight<32>(pairs)), low_half);
  };
  const auto one = hn::Set(halves, uint32_t{1});
  const auto round = hn::Set(halves, uint32_t{0x7FFFu});
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto lower = sum_of_four(Mix(counters));
    counters = hn::Add(counters, step);
    const auto upper = sum_of_four(Mix(counters));
    counters = hn::Add(counters, step);
    // Sums fit in 32 bits: even 32-bit lanes of the one, then of the other.
    const auto sums = hn::ConcatEven(halves, hn::BitCast(halves, upper), hn::BitCast(halves, lower));
    const auto centred = hn::ConvertTo(floats, hn::Sub(hn::BitCast(ints, sums), mean));
    // No value is NaN or near overflow: rounding to nearest even is one addition.
    const auto bits = hn::BitCast(halves, hn::Mul(factor, hn::Mul(centred, unit)));
    const auto rounded = hn::Add(bits, hn::Add(round, hn::And(hn::ShiftRight<16>(bits), one)));
    hn::StoreU(hn::TruncateTo(out_lanes, hn::ShiftRight<16>(rounded)), out_lanes, out + i);
  }
#endif
  const CounterRng rng(key);
  for (; i < count; ++i) out[i] = to_bf16(spread * rng.normal(first + i)).bits;
}

}  // namespace HWY_NAMESPACE
}  // namespace faultline
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace faultline {

HWY_EXPORT(CodeBlocks);
HWY_EXPORT(ScaleGroups);
HWY_EXPORT(Normals);

void synth_code_blocks(uint64_t key, uint64_t first, uint64_t blocks, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(CodeBlocks)(key, first, blocks, out);
}
void synth_scale_groups(uint64_t key, uint64_t first, uint64_t groups, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(ScaleGroups)(key, first, groups, out);
}
void synth_normals(uint64_t key, uint64_t first, uint64_t count, float spread, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(Normals)(key, first, count, spread, out);
}

}  // namespace faultline
#endif  // HWY_ONCE
