// The one function that runs ops: choosing the kernel, poisoning, planting, calling, checking, stopping.
#pragma once

#include <optional>
#include <vector>

#include "engine/hooks.h"

namespace faultline {

struct PassOutcome {
  // In launch order; settings (gaps to the model that the resolved row explains) apart, since they do not stop a run.
  std::vector<EngineViolation> violations;
  std::vector<EngineViolation> settings;
  std::optional<EngineFault> fault;

  bool clean() const { return violations.empty() && !fault; }
};

struct RunState {
  int64_t launches = 0;  // ops launched since the engine was made (numbers the kernel limit)
  uint64_t seed = 0;
  bool scales_sound = false;  // the scalar scales of this engine's weights were looked at: they do not change
};

// Runs the ops of a pass. Stops at the end of the first group (layer) with a violation, or at a fault. On a GPU, below
// level reference and unless op by op, the whole pass is given to the stream (or replayed, once recorded) with its
// checks inside, and read once at its end.
PassOutcome run_pass(const Pass& pass, const PassInfo& info, CheckLevel level, const EngineHooks& hooks,
                     RunState& state);

// Conviction: runs one op again on the inputs that lie in the pass, into scratch outputs, and checks it. Nothing when
// it passes now. `with_injector`: meets the planted fault as the run did.
std::optional<OpViolation> replay_op(const Pass& pass, int op_index, const PassInfo& info, const EngineHooks& hooks,
                                     uint64_t seed);

// The same of an op without its pass (a capsule), on the host's memory; the kernel runs on `device` with copies of it.
// `injector` may be null. `on_device`: the same op where its weights lie on the device already.
std::optional<OpViolation> replay_alone(const Op& op, const PassInfo& info, FaultInjector* injector, uint64_t seed,
                                        Device& device, const Op* on_device = nullptr);

}  // namespace faultline
