#include "bisect/spec_stand_in.h"

#include <algorithm>

#include "base/rng.h"
#include "bisect/signature.h"
#include "check/compare.h"
#include "engine/call_op.h"
#ifdef FAULTLINE_HAVE_CUDA
#include "ops/cuda_reference.h"
#endif

namespace faultline {

bool SpecStandIn::on_spec(const Op& op, int64_t number) const {
  if (options_.spec_from >= 0 && number >= options_.spec_from) return true;
  if (options_.spec_ops.empty()) return false;
  const std::string pattern = op_pattern(op.name);
  const bool named = std::find(options_.spec_ops.begin(), options_.spec_ops.end(), pattern) != options_.spec_ops.end();
  return named != options_.spec_others;
}

KernelResult SpecStandIn::run(const PassInfo& info, const Op& op, const OpCall& call, bool serialized) {
  const int64_t number = calls_++;
  if (!on_spec(op, number)) {
    last_op_ = op.name;
    last_kernel_ = op.kernel->name;
    return inner_ != nullptr ? inner_->run(info, op, call, serialized) : op.kernel->run(call);
  }
  bool done = false;
#ifdef FAULTLINE_HAVE_CUDA
  done = call.launch.cuda && run_cuda_reference(*op.kind, op.kernel, ReferenceOf::kSpec, call);
#endif
  if (!done && call.launch.cuda)
    run_on_host(mirror_, *op.kind, spec_of(op), call);
  else if (!done)
    spec_of(op)(call);
  if (options_.repeat > 0) nudge(op, call, number);
  return std::nullopt;
}

void SpecStandIn::nudge(const Op& op, const OpCall& call, int64_t number) {
  constexpr uint32_t kOneIn = 8;
  const CounterRng random(static_cast<uint64_t>(options_.repeat), fmt::format("nudge {}", number));
  for (size_t o = 0; o < op.kind->operands.size(); ++o) {
    const OperandSpec& spec = op.kind->operands[o];
    const Argument& argument = call.arguments[o];
    if (spec.direction != Direction::kOut || spec.content != Content::kValues || !argument.present() ||
        argument.view().dtype != Dtype::kBF16)
      continue;
    if (call.launch.cuda) (void)mirror_.device().wait();
    const TensorView host = mirror_.pull(argument.view());
    auto* bits = host.as<uint16_t>();
    for (int64_t i = 0; i < host.extent(); ++i)
      if (random.below(static_cast<uint64_t>(i), kOneIn) == 0) bits[i] ^= 1u;
    mirror_.push(argument.view());
  }
}

}  // namespace faultline
