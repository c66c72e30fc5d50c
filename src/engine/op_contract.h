// The contract of one op, tested on memory that the host reads: its outputs, its scalar scales, and what it must not
// touch. Without references (check/compare.h has those).
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "check/violation.h"
#include "engine/config.h"

namespace faultline {

// An output with a contract (scratch has none).
bool is_checked_output(const OperandSpec& spec);

// Finite values, probability rows, index rules, per level, of one operand as it lies in memory.
std::optional<OpViolation> check_operand(const Op& op, const OpCall& call, int operand, const LiveCounts& live,
                                         CheckLevel level);
// The contract of an op's outputs as they lie in memory. `poisoned`: sentinels were laid before it ran.
std::optional<OpViolation> check_outputs(const Op& op, const OpCall& call, const LiveCounts& live, CheckLevel level,
                                         bool poisoned);
// A precondition: the scalar scales that the op multiplies with are usable numbers. Of scales that each expert has for
// itself, those of the experts in use: nothing is said of them where the call's indices are no longer what they were
// (`indices_are_there`).
std::optional<OpViolation> check_scales(const Op& op, const OpCall& call, bool indices_are_there = true);
// Caches that the op reads in another format than they were written in.
std::optional<OpViolation> check_layouts(const Op& op, const OpCall& call, const LiveCounts& live);
bool has_layout_conflict(const Op& op);

// A cache's bytes around the slots that an op may write: the pages it touches, without those slots. Taken before the
// op runs; `call` and what it points to outlive it.
class NeighbourSum {
 public:
  NeighbourSum(const OpCall& call, const OperandSpec& spec, int operand);
  // The page whose neighbours changed, or -1.
  int64_t changed() const;

 private:
  std::vector<uint64_t> sum() const;

  const Argument& argument_;
  std::set<int64_t> written_;
  std::set<int64_t> pages_;
  std::vector<uint64_t> before_;
};

}  // namespace faultline
