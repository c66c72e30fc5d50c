// The vector loops that make synthetic weights, one build of them an instruction set, chosen when the program runs
// (Highway). Values are those of CounterRng(key) (base/rng.h), bit for bit, on every processor.
#pragma once

#include <array>
#include <cstdint>

namespace faultline {

// e4m3 codes that block scales are drawn from: 1.125 to 1.75 times 2^6, 2^7, 2^8 and their like, never a bare power of
// two.
inline constexpr std::array<uint8_t, 16> kBlockScaleCodes = {0x6D, 0x6E, 0x6F, 0x71, 0x72, 0x73, 0x74, 0x75,
                                                             0x76, 0x77, 0x79, 0x7A, 0x7B, 0x7C, 0x7D, 0x7E};

// Blocks [first, first + blocks) of 16 e2m1 codes, 8 bytes each: bits(block), with magnitude 6 at the position that the
// top four bits of bits(~block) name.
void synth_code_blocks(uint64_t key, uint64_t first, uint64_t blocks, uint8_t* out);

// Groups of 16 block scales: nibble i of bits(group) picks the code of scale i.
void synth_scale_groups(uint64_t key, uint64_t first, uint64_t groups, uint8_t* out);

// bf16(spread * normal(i)) for i in [first, first + count).
void synth_normals(uint64_t key, uint64_t first, uint64_t count, float spread, uint16_t* out);

}  // namespace faultline
