// The verdicts (DESIGN, "Verdicts"), and which of them count as a failure.
#pragma once

#include <string_view>

namespace faultline {

enum class VerdictClass {
  kPass,       // pass
  kViolation,  // a check said no: nonfinite, bounds, unwritten, canary, mismatch, probability, layout, flaky
  kDeath,      // the run itself ended: device-assert, illegal-access, launch-failure, crash, abort, hang, oom
  kNotRun,     // guard, unsupported, skipped
  kUnknown,    // none of them
};

VerdictClass verdict_class(std::string_view verdict);

// A name that is not a verdict counts as a failure: an unknown outcome must not look like a pass.
bool verdict_is_failure(std::string_view verdict);

}  // namespace faultline
