// Runs ops on their spec reference in their kernel's place: the same formats and rounding points, plainly. What then
// differs in a run's outputs is the kernels' doing, not the formats'.
#pragma once

#include <string>

#include "bisect/task.h"
#include "engine/hooks.h"
#include "engine/host_mirror.h"

namespace faultline {

// Stands where the engine calls kernels. Calls are numbered in launch order from 0; kernels that are the reference
// themselves are not among them.
class SpecStandIn final : public FaultInjector {
 public:
  // `inner` (a planted fault, or null) stands in for kernels that run. `mirror` knows the operands' memory.
  SpecStandIn(const RunOptions& options, FaultInjector* inner, HostMirror& mirror)
      : options_(options), inner_(inner), mirror_(mirror) {}

  KernelResult run(const PassInfo& info, const Op& op, const OpCall& call, bool serialized) override;
  void weights(ModelWeights&) override {}  // the planted fault has had them

  int64_t calls() const { return calls_; }
  const std::string& last_op() const { return last_op_; }  // that ran on its kernel
  const std::string& last_kernel() const { return last_kernel_; }

 private:
  const RunOptions& options_;
  FaultInjector* inner_;
  HostMirror& mirror_;
  int64_t calls_ = 0;
  std::string last_op_;
  std::string last_kernel_;
};

}  // namespace faultline
