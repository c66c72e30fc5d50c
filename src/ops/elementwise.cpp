// silu_mul, add, gather_rows.
#include <cmath>

#include "kernels/elementwise.h"
#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

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

KernelResult run_silu_mul(const OpCall& call) {
  const TensorView& x = call.view(SiluMul::kX);
  const TensorView& out = call.view(SiluMul::kOut);
  with_build(call, out.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::launch_elementwise(
        call.launch, out.dim(0),
        kernels::SiluMulBody<T, decltype(build)::kChecked>{.x = kernel_operand<T>(call, SiluMul::kX),
                                                           .out = kernel_operand<T>(call, SiluMul::kOut),
                                                           .columns = out.dim(1),
                                                           .x_stride = x.stride[0],
                                                           .out_stride = out.stride[0],
                                                           .log = call.launch.log});
  });
  return std::nullopt;
}

KernelResult run_add(const OpCall& call) {
  const TensorView& out = call.view(Add::kOut);
  with_build(call, out.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::launch_elementwise(
        call.launch, out.dim(0),
        kernels::AddBody<T, decltype(build)::kChecked>{.a = kernel_operand<T>(call, Add::kA),
                                                       .b = kernel_operand<T>(call, Add::kB),
                                                       .out = kernel_operand<T>(call, Add::kOut),
                                                       .columns = out.dim(1),
                                                       .a_stride = call.view(Add::kA).stride[0],
                                                       .b_stride = call.view(Add::kB).stride[0],
                                                       .out_stride = out.stride[0],
                                                       .log = call.launch.log});
  });
  return std::nullopt;
}

KernelResult run_gather_rows(const OpCall& call) {
  const TensorView& out = call.view(GatherRows::kOut);
  with_build(call, out.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::launch_elementwise(
        call.launch, out.dim(0),
        kernels::GatherRowsBody<T, decltype(build)::kChecked>{.x = kernel_operand<T>(call, GatherRows::kX),
                                                              .rows = kernel_operand<int32_t>(call, GatherRows::kRows),
                                                              .out = kernel_operand<T>(call, GatherRows::kOut),
                                                              .columns = out.dim(1),
                                                              .x_stride = call.view(GatherRows::kX).stride[0],
                                                              .out_stride = out.stride[0],
                                                              .log = call.launch.log});
  });
  return std::nullopt;
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

const RegisterKernel kSiluAndMul(Kernel{.name = "silu_and_mul",
                                        .kind = SiluMul::kName,
                                        .follows = "sglang v0.5.9, layers/activation.py (one rounding)",
                                        .run = run_silu_mul,
                                        .tolerance = tolerance_for(SiluMul::kName, Dtype::kBF16)});
const RegisterKernel kAddKernel(Kernel{
    .name = "add", .kind = Add::kName, .run = run_add, .tolerance = tolerance_for(Add::kName, Dtype::kBF16)});
const RegisterKernel kGatherRowsKernel(Kernel{.name = "gather_rows",
                                              .kind = GatherRows::kName,
                                              .run = run_gather_rows,
                                              .tolerance = tolerance_for(GatherRows::kName, Dtype::kBF16)});

}  // namespace
}  // namespace faultline
