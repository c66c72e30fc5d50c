// A toy backend, wrong on purpose: attention by the kind's own reference, with head 0 half as large again. This file
// and its one registration are all that adds it; tests/cli/toy_test.cpp shows that it becomes a value of its axis and
// is convicted.
#include "ops/kinds.h"
#include "ops/op.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using ops::Attention;

constexpr float kWrongScale = 1.5f;
constexpr int64_t kWrongHead = 0;

KernelResult run_toy(const OpCall& call) {
  op_kind(Attention::kName).model(call);
  const TensorView& out = call.view(Attention::kOut);
  for (int64_t t = 0; t < out.dim(0); ++t)
    for (int64_t c = 0; c < out.dim(2); ++c) {
      const int64_t at = out.offset(t, kWrongHead, c);
      out.store(at, kWrongScale * out.load(at));
    }
  return std::nullopt;
}

const RegisterKernel kToy{Kernel{.name = "toy",
                                 .kind = Attention::kName,
                                 .provenance = Provenance::kOwn,
                                 .run = run_toy,
                                 .tolerance = tolerance_for(Attention::kName, Dtype::kBF16),
                                 .serves = {{"nsa_decode_backend", "toy"}},
                                 .cache_formats = {Format::kKvBf16},
                                 .sparse = true}};

}  // namespace
}  // namespace faultline
