// What a run may change about a pass, and who watches it. Everything happens in run_pass; kernels and layer code know
// nothing of it.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "check/violation.h"
#include "engine/pass.h"

namespace faultline {

class Device;

// Where a run is: which pass of which phase.
struct PassInfo {
  PassPhase phase = PassPhase::kPrefill;
  int64_t step = 0;  // passes of this phase so far, from 0
  LiveCounts live;
  bool graph = false;  // a replay of recorded ops with static buffers, padded to a bucket
  bool warmup = false;
  // Buffers of the batch, by name, that were written anew right before this replay (EngineHooks::refresh); null: none.
  const std::set<std::string>* refreshed = nullptr;
};

// Breaks something on purpose (bisect/plants). Stands where the kernel is called, so that a replay of the op meets the
// same fault and a reference in the kernel's place does not.
class FaultInjector {
 public:
  virtual ~FaultInjector() = default;
  // Runs op.kernel on `call`, or misbehaves. `serialized`: the edges before and after this op are forced to wait for
  // all work.
  virtual KernelResult run(const PassInfo& info, const Op& op, const OpCall& call, bool serialized) = 0;
  // Weights are read by the injector's leave only: it may hand out broken copies. Called once, before the first pass is
  // built.
  virtual void weights(ModelWeights& weights) = 0;
  // Whether it may ever strike this op, in any pass. Such an op is not recorded into a graph: what the injector does
  // with it may need the host.
  virtual bool touches(const Op&) const { return true; }
  // Where the operands of its calls lie. Called once, before weights(), and only where that is not the host.
  virtual void use_device(Device&) {}
};

// Sees a run as it goes. Calls must be cheap: they are made for every op.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_op(const PassInfo& info, int index, const Op& op) = 0;
};

struct EngineHooks {
  FaultInjector* injector = nullptr;
  Observer* observer = nullptr;
  // Conviction: every op is checked right after it ran, in the checked build, with all edges serialized.
  bool op_by_op = false;
  // Ops whose following edge waits for all work (by name), or all of them.
  std::set<std::string> serialize;
  bool serialize_all = false;
  // Buffers of the batch ("batch.seq_lens") that are written once more right before a graph's replay, when everything
  // before has been waited for: does one of them hold another step's values?
  std::set<std::string> refresh;
  // Ops that run on the reference instead of their kernel.
  std::function<bool(const Op& op, int64_t launch)> use_reference;
  // After the ops of a layer, while its tensors are still there (the next layer reuses their memory).
  std::function<void(const Pass& pass, const PassInfo& info, int layer)> on_layer;
  // No sentinel is laid (does the poison itself make the fault?).
  bool no_poison = false;
  // On a GPU: where its checks and progress marks go, and the address there; null: memory of the engine's own.
  DeviceCheckPage* device_page = nullptr;
  std::byte* device_page_there = nullptr;
};

// A violation with everything the engine knows about its op.
struct EngineViolation {
  OpViolation violation;
  std::string op;
  int op_index = 0;
  int layer = -1;
  std::string kernel;
  Provenance provenance = Provenance::kOwn;
  bool checked_build = false;
  std::string tensor;
  PassInfo info;
  std::string inputs_clean;  // yes, no
  std::string bad_input;
};

// A kernel that asserted or refused at run time.
struct EngineFault {
  KernelFault fault;
  std::string op;
  int op_index = 0;
  int layer = -1;
  std::string kernel;
  Provenance provenance = Provenance::kOwn;
  PassInfo info;
};

}  // namespace faultline
