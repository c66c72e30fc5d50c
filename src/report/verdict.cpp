#include "report/verdict.h"

#include <array>
#include <utility>

namespace faultline {

VerdictClass verdict_class(std::string_view verdict) {
  static constexpr std::array<std::pair<std::string_view, VerdictClass>, 19> kClasses{{
      {"pass", VerdictClass::kPass},
      {"nonfinite", VerdictClass::kViolation},
      {"bounds", VerdictClass::kViolation},
      {"unwritten", VerdictClass::kViolation},
      {"canary", VerdictClass::kViolation},
      {"mismatch", VerdictClass::kViolation},
      {"probability", VerdictClass::kViolation},
      {"layout", VerdictClass::kViolation},
      {"flaky", VerdictClass::kViolation},
      {"device-assert", VerdictClass::kDeath},
      {"illegal-access", VerdictClass::kDeath},
      {"launch-failure", VerdictClass::kDeath},
      {"crash", VerdictClass::kDeath},
      {"abort", VerdictClass::kDeath},
      {"hang", VerdictClass::kDeath},
      {"oom", VerdictClass::kDeath},
      {"guard", VerdictClass::kNotRun},
      {"unsupported", VerdictClass::kNotRun},
      {"skipped", VerdictClass::kNotRun},
  }};
  for (const auto& [name, value] : kClasses) {
    if (name == verdict) return value;
  }
  return VerdictClass::kUnknown;
}

bool verdict_is_failure(std::string_view verdict) {
  const VerdictClass value = verdict_class(verdict);
  return value != VerdictClass::kPass && value != VerdictClass::kNotRun;
}

}  // namespace faultline
