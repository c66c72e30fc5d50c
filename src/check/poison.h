// Sentinels: what outputs hold before a kernel runs, so that an element that it did not write shows.
//
// Floats get a signalling NaN: any arithmetic would make it quiet, so a sentinel that is still there bit by bit was
// never written, and a NaN that was computed from it looks different. Integers get a value that no index or length has.
// Code bytes (FP4, FP8), for which every byte is legal, are shown by running twice over two poisons (kCodePoison).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "check/violation.h"

namespace faultline {

inline constexpr uint32_t kFloatSentinel = 0x7FA1F00Du;
inline constexpr uint16_t kBf16Sentinel = 0x7FA1u;
inline constexpr int32_t kIntSentinel = 0x7FA1F00D;
inline constexpr std::array<uint8_t, 2> kCodePoison = {0x55, 0xAA};

// Whether "written" of this operand needs two runs.
bool needs_two_poisons(const OperandSpec& spec, const Argument& argument);

// Fills an output operand; caches: only the slots that the call will write. `round` picks one of the two code poisons.
void poison_output(const OpCall& call, const OperandSpec& spec, int operand, int round);

// The first live element that still holds the sentinel.
std::optional<OpViolation> find_unwritten(const OpCall& call, const OperandSpec& spec, int operand,
                                          const LiveCounts& live);

// Code bytes after two runs over two poisons: a live byte that kept both. `first` is a copy of the operand's bytes
// (extent() bytes, or the whole cache) after the first run.
std::optional<OpViolation> find_unwritten_codes(const OpCall& call, const OperandSpec& spec, int operand,
                                                const LiveCounts& live, const std::byte* first);

}  // namespace faultline
