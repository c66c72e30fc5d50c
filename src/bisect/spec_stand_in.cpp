#include "bisect/spec_stand_in.h"

#include "check/compare.h"
#include "engine/call_op.h"
#ifdef FAULTLINE_HAVE_CUDA
#include "ops/cuda_reference.h"
#endif

namespace faultline {

KernelResult SpecStandIn::run(const PassInfo& info, const Op& op, const OpCall& call, bool serialized) {
  const int64_t number = calls_++;
  if (options_.spec_from < 0 || number < options_.spec_from) {
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
  return std::nullopt;
}

}  // namespace faultline
