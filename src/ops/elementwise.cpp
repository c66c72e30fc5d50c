// silu_mul, add, gather_rows.
#include <cmath>

#include "ops/kinds.h"
#include "ops/operands.h"

namespace faultline {
namespace {

using ops::Add;
using ops::GatherRows;
using ops::SiluMul;

void silu_mul_model(const OpCall& call) {
  const TensorView& x = call.view(SiluMul::kX);
  const TensorView& out = call.view(SiluMul::kOut);
  const int64_t width = out.dim(1);
  for (int64_t t = 0; t < out.dim(0); ++t)
    for (int64_t c = 0; c < width; ++c) {
      const float gate = x.load(x.offset(t, c));
      const float up = x.load(x.offset(t, width + c));
      out.store(out.offset(t, c), gate / (1.0f + std::exp(-gate)) * up);
    }
}

void add_model(const OpCall& call) {
  const TensorView& a = call.view(Add::kA);
  const TensorView& b = call.view(Add::kB);
  const TensorView& out = call.view(Add::kOut);
  for (int64_t t = 0; t < out.dim(0); ++t)
    for (int64_t c = 0; c < out.dim(1); ++c)
      out.store(out.offset(t, c), a.load(a.offset(t, c)) + b.load(b.offset(t, c)));
}

void gather_rows_model(const OpCall& call) {
  const TensorView& x = call.view(GatherRows::kX);
  const TensorView& out = call.view(GatherRows::kOut);
  for (int64_t r = 0; r < out.dim(0); ++r) {
    const int64_t row = call.view(GatherRows::kRows).load_index(r);
    for (int64_t c = 0; c < out.dim(1); ++c) out.store(out.offset(r, c), x.load(x.offset(row, c)));
  }
}

const RegisterKind kRegisterSiluMul(OpKind{.name = SiluMul::kName,
                                           .operands = {input("x", kExpertRows), output("out", kExpertRows)},
                                           .model = silu_mul_model});
const RegisterKind kRegisterAdd(OpKind{
    .name = Add::kName, .operands = {input("a"), input("b"), output("out")}, .model = add_model});
const RegisterKind kRegisterGatherRows(OpKind{
    .name = GatherRows::kName,
    .operands = {input("x"), index_input("rows", kRequestRows), output("out", kRequestRows)},  // rows end: T
    .model = gather_rows_model});

}  // namespace
}  // namespace faultline
