// From a violation as the checks see it to one with everything that the engine knows about its op.
#pragma once

#include "engine/hooks.h"

namespace faultline {

// `op` on memory that the host reads; also says whether the op was given sound inputs: values finite, indices in their
// rules, caches finite as written, scales usable.
EngineViolation describe_violation(const Op& op, int op_index, const PassInfo& info, bool checked_build,
                                   OpViolation violation);
// The same where inputs may be overwritten by now: weights are looked at, and of the rest is said what the caller
// knows.
EngineViolation describe_late_violation(const Op& op, int op_index, const PassInfo& info, OpViolation violation,
                                        const char* inputs_clean);

OpViolation changed_neighbour(int operand, int64_t page);
OpViolation bad_access(const kernels::AccessLog& log);

}  // namespace faultline
