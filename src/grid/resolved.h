// A resolved configuration: what the server's rules make of the requested axis values for a target.
#pragma once

#include <string>
#include <vector>

#include "report/findings.h"

namespace faultline {

enum class TargetStatus {
  kRuns,
  kLayout,
  kGuard,
  kUnsupported
};  // kLayout: runs, and preflight predicts a layout violation

struct ResolvedConfiguration {
  AxisValues requested;  // one value an axis, defaults filled in
  AxisValues resolved;   // what takes effect; an axis that has no effect in this row maps to "-" (that makes it inert)
  TargetStatus status = TargetStatus::kRuns;
  std::string reason;  // guard, unsupported or layout: one sentence
  std::string source;  // where the rule is written
  std::vector<std::string> notes;
  // What this row computes otherwise than the model does, whatever the kernels: "dense_attention", "rope_theta",
  // "rope_interleaved", "indexer_rope_interleaved", "rope_enabled", "norm_eps". A gap to the model reference that these
  // explain is a `setting`, not a kernel's fault.
  std::vector<std::string> settings;
  bool has_kernels = true;  // false: this build has no kernel for the row, so that run_unsupported cannot run it either
};

}  // namespace faultline
