#include "check/compare.h"
#include "check/inspect.h"
#include "check/layout.h"
#include "check/poison.h"
#include "engine/call_op.h"
#include "engine/describe.h"
#include "engine/op_contract.h"
#include "engine/run_pass.h"
#include "ops/weights_in_use.h"

namespace faultline {

std::optional<OpViolation> replay_op(const Pass& pass, int op_index, const PassInfo& info, const EngineHooks& hooks,
                                     uint64_t seed) {
  const Op& op = pass.ops[static_cast<size_t>(op_index)];
  Device& device = pass.mirror->device();
  if (!pass.on_gpu()) return replay_alone(op, info, hooks.injector, seed, device);
  pass.mirror->pull(op);
  return replay_alone(pass.mirror->mirrored(op), info, hooks.injector, seed, device, &op);
}

std::optional<OpViolation> replay_alone(const Op& op, const PassInfo& info, FaultInjector* injector, uint64_t seed,
                                        Device& device, const Op* on_device) {
  if (auto found = check_scales(op, op.call())) return found;
  if (const Status there = bring_weights(*op.kind, op.call()); !there)
    return OpViolation{0, "oom", {}, "", 0, 1, there.error().message, false};
  const ScratchOutputs scratch(op);
  OpCall call = scratch.call(op.attributes);
  kernels::AccessLog log;
  call.launch.seed = seed;
  call.launch.log = &log;
  call.checked = true;
  std::vector<std::pair<int, NeighbourSum>> neighbours;
  for (int o = 0; o < op.arguments.size(); ++o) {
    const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
    if (!is_checked_output(spec) || !call.argument(o).present()) continue;
    poison_output(call, spec, o, 0);
    // An op that packs the whole pool anew may write everywhere.
    if (spec.content == Content::kCache && spec.region.sum_operand < 0)
      neighbours.emplace_back(o, NeighbourSum(call, spec, o));
  }
  KernelResult result;
  if (op.kernel->provenance == Provenance::kReference)
    op.kind->model(call);
  else
    result = run_on_device(device, info, injector, op, call, on_device);
  if (result) return OpViolation{0, result->verdict, {}, "", 0, 1, result->message, false};
  for (const auto& [o, sum] : neighbours)
    if (const int64_t page = sum.changed(); page >= 0) return changed_neighbour(o, page);
  if (auto found = check_layouts(op, call, info.live)) return found;
  if (log.count > 0)
    return OpViolation{log.first[0].operand,
                       "bounds",
                       {log.first[0].index},
                       fmt::format("{}", log.first[0].index),
                       0,
                       log.count,
                       "out of range in the checked build",
                       false};
  if (auto found = check_outputs(op, call, info.live, CheckLevel::kFull, true)) return found;

  // The spec reference on the same inputs, against the scratch outputs.
  ArgumentList arguments;
  for (int o = 0; o < op.arguments.size(); ++o) {
    const Argument& argument = scratch.argument(o);
    arguments.add({argument.views.begin(), argument.views.end()}, argument.format,
                  argument.geometry ? std::optional<CacheGeometry>(*argument.geometry) : std::nullopt);
  }
  Op again = copy_op(op, std::move(arguments));
  if (auto found = compare_to_spec(again, info.live)) return found;
  if (op.model_arguments) again.model_arguments = op.model_arguments->clone();
  return compare_to_model(again, info.live);
}

}  // namespace faultline
