#include "engine/describe.h"

#include "check/inspect.h"
#include "engine/op_contract.h"

namespace faultline {
namespace {

void judge_inputs(const Op& op, bool weights_only, EngineViolation& result) {
  const OpCall call = op.call();
  for (int o = 0; o < op.arguments.size(); ++o) {
    const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
    const Argument& argument = call.argument(o);
    if (spec.direction != Direction::kIn || !argument.present()) continue;
    std::optional<OpViolation> found;
    if (spec.content == Content::kWeight)
      found = find_bad_scale(argument, o);
    else if (weights_only)
      continue;
    else if (spec.content == Content::kCache)
      found = find_nonfinite_slots(argument, *op.written[static_cast<size_t>(o)], o,
                                   slots_read(call, *op.kind, o, result.info.live));
    else
      found = check_operand(op, call, o, result.info.live, CheckLevel::kFull);
    if (!found) continue;
    result.inputs_clean = "no";
    result.bad_input = op.tensor_names[static_cast<size_t>(o)];
    return;
  }
}

EngineViolation named(const Op& op, int op_index, const PassInfo& info, bool checked_build, OpViolation violation) {
  EngineViolation result;
  result.op = op.name;
  result.op_index = op_index;
  result.layer = op.layer;
  result.kernel = op.kernel->name;
  result.provenance = op.kernel->provenance;
  result.checked_build = checked_build;
  result.tensor = op.tensor_names[static_cast<size_t>(violation.operand)];
  result.info = info;
  result.violation = std::move(violation);
  return result;
}

}  // namespace

EngineViolation describe_violation(const Op& op, int op_index, const PassInfo& info, bool checked_build,
                                   OpViolation violation) {
  EngineViolation result = named(op, op_index, info, checked_build, std::move(violation));
  result.inputs_clean = "yes";
  judge_inputs(op, false, result);
  return result;
}

EngineViolation describe_late_violation(const Op& op, int op_index, const PassInfo& info, OpViolation violation,
                                        const char* inputs_clean) {
  EngineViolation result = named(op, op_index, info, false, std::move(violation));
  result.inputs_clean = inputs_clean;
  judge_inputs(op, true, result);
  return result;
}

OpViolation changed_neighbour(int operand, int64_t page) {
  return OpViolation{operand,
                     "bounds",
                     {page},
                     "",
                     0,
                     1,
                     fmt::format("bytes of page {} outside the slots that this op may write have changed", page),
                     false};
}

OpViolation bad_access(const kernels::AccessLog& log) {
  const kernels::BadAccess& bad = log.first[0];
  if (bad.is_write == kernels::kFailedAssertion)
    return OpViolation{
        bad.operand,
        "device-assert",
        {bad.index},
        fmt::format("{}", bad.index),
        0,
        log.count,
        fmt::format("an assertion of the kernel's own fails on element {} of [0, {}), block {} thread {}; "
                    "unchecked, it ends the process",
                    bad.index, bad.extent, bad.block, bad.thread),
        false};
  return OpViolation{
      bad.operand,
      "bounds",
      {bad.index},
      fmt::format("{}", bad.index),
      0,
      log.count,
      fmt::format("{} at element {} of [0, {}) by block {} thread {}",
                  bad.is_write == kernels::kBadWrite ? "write" : "read", bad.index, bad.extent, bad.block, bad.thread),
      false};
}

}  // namespace faultline
