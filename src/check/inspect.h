// The contract of one operand, tested on what is in memory: finite values, probability rows, index rules.
// The same functions test outputs after an op and inputs before one (a violation's `inputs_clean`).
#pragma once

#include <optional>

#include "check/violation.h"

namespace faultline {

// Values, probabilities, block scales and cache slots: finite in the format's own terms (e4m3 NaN is 0x7F or 0xFF). A
// cache is decoded by the geometry given, at the slots given.
std::optional<OpViolation> find_nonfinite(const OpCall& call, const OperandSpec& spec, int operand,
                                          const LiveCounts& live);
std::optional<OpViolation> find_nonfinite_slots(const Argument& argument, const CacheGeometry& geometry, int operand,
                                                const std::vector<int64_t>& slots);
// Probability rows: non-negative, and every live row sums to 1 within 1e-3.
std::optional<OpViolation> find_bad_probability(const OpCall& call, const OperandSpec& spec, int operand,
                                                const LiveCounts& live);
// Range, -1 only in the tail, unique, count, ownership.
std::optional<OpViolation> find_bad_index(const OpCall& call, const OperandSpec& spec, const IndexRule& rule,
                                          int operand, const LiveCounts& live);
// The first non-positive or non-finite scalar scale, or NaN block scale, of a list of checkpoint tensors. Reading a
// whole weight is left to `inspect`: scales are what NVFP4 hides a NaN in.
std::optional<OpViolation> find_bad_scale(const Argument& argument, int operand);
// What a product multiplies with: a scalar scale that is zero, negative or not finite. Of input scales
// (`maximum_of_list`) the kernels use the largest of the list, so only that one counts.
std::optional<OpViolation> find_bad_scalar_scale(const Argument& argument, int operand, bool maximum_of_list);

// The slots that a call reads of a cache operand, in range only, unique, in the order of their first use.
std::vector<int64_t> slots_read(const OpCall& call, const OpKind& kind, int operand, const LiveCounts& live);

}  // namespace faultline
