// A toy backend that does its job: attention by the kind's own reference. The twin of toy_attention.cpp, about which
// every check must be silent.
#include "ops/kinds.h"
#include "ops/op.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using ops::Attention;

KernelResult run_right(const OpCall& call) {
  op_kind(Attention::kName).model(call);
  return std::nullopt;
}

const RegisterKernel kRight{Kernel{.name = "right",
                                   .kind = Attention::kName,
                                   .provenance = Provenance::kOwn,
                                   .run = run_right,
                                   .tolerance = tolerance_for(Attention::kName, Dtype::kBF16),
                                   .serves = {{"nsa_decode_backend", "right"}},
                                   .cache_formats = {Format::kKvBf16},
                                   .sparse = true}};

}  // namespace
}  // namespace faultline
