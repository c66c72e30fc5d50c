// A tensor that is read in another format than it was written in: a `layout` violation, before any NaN appears.
#pragma once

#include <optional>
#include <vector>

#include "check/violation.h"

namespace faultline {

// The first element of the slots read that decodes differently (one that decodes to NaN, if there is one), or nothing
// when the formats agree or no slot is read. `written` is the cache's true geometry; the argument's own says how the op
// takes the bytes.
std::optional<OpViolation> find_layout_conflict(const Argument& argument, const CacheGeometry& written, int operand,
                                                const std::vector<int64_t>& slots);

// Two geometries that mean the same values by the same bytes.
bool same_layout(const CacheGeometry& a, const CacheGeometry& b);

}  // namespace faultline
