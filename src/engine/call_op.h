// Calling one op: its kernel, the model reference in its place, or a planted fault around it; on the CPU or a GPU.
#pragma once

#include "engine/hooks.h"
#include "engine/pass.h"

namespace faultline {

class OpCaller {
 public:
  OpCaller(const Pass& pass, const PassInfo& info, const EngineHooks& hooks)
      : pass_(pass), info_(info), hooks_(hooks) {}

  // A reference stands in the kernel's place (a kernel that is the reference itself does what the row resolves to).
  bool swapped(const Op& op, int64_t launch) const;
  // Whether an op waits until everything before it is done, and what follows waits for it.
  bool serialized(const Op& op) const;
  // Whether the host has a hand in the op: it cannot be part of a graph.
  bool hosted(const Op& op) const;

  // The op's call on its own memory. `checked`: the checked build, with the log that it writes to.
  OpCall call(const Op& op, uint64_t seed, bool checked);
  // Bad accesses of the last checked call; on a GPU valid once it has been waited for.
  const kernels::AccessLog& log() const { return *log_; }

  // Runs it. On a GPU the call may return before the work is done; a refused launch is a fault at once.
  KernelResult run(const Op& op, const OpCall& call, bool in_place);

 private:
  // The model reference on the run's inputs, each cache taken by the format that it was truly written in.
  void run_reference(const Op& op);
  void run_model(const Op& op, const OpCall& call);

  const Pass& pass_;
  const PassInfo& info_;
  const EngineHooks& hooks_;
  kernels::AccessLog host_log_;
  kernels::AccessLog* log_ = &host_log_;
};

// Runs a host function (a reference) on copies of what the call's device views hold, and copies its outputs back.
void run_on_host(HostMirror& mirror, const OpKind& kind, ReferenceFn function, const OpCall& call);

// Runs the kernel (or what `injector` makes of it) on copies on the device of what the call's host views hold, and
// copies its outputs back; waits for it. `weights`: where the weights lie on the device already, or null.
KernelResult run_on_device(Device& device, const PassInfo& info, FaultInjector* injector, const Op& op,
                           const OpCall& host_call, const Op* weights);

}  // namespace faultline
