// hadamard: the rotation of the indexer's queries and keys.
#include "kernels/hadamard.h"

#include <bit>
#include <cmath>
#include <vector>

#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using ops::Hadamard;

void hadamard_model(const OpCall& call) {
  const TensorView& x = call.view(Hadamard::kX);
  const TensorView& out = call.view(Hadamard::kOut);
  const int64_t dim = x.dim(2);
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  std::vector<double> row(static_cast<size_t>(dim));
  for (int64_t t = 0; t < x.dim(0); ++t)
    for (int64_t h = 0; h < x.dim(1); ++h) {
      for (int64_t d = 0; d < dim; ++d) row[static_cast<size_t>(d)] = x.load(x.offset(t, h, d));
      for (int64_t i = 0; i < dim; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < dim; ++j) {
          const bool negative = std::popcount(static_cast<uint64_t>(i & j)) % 2 != 0;
          sum += negative ? -row[static_cast<size_t>(j)] : row[static_cast<size_t>(j)];
        }
        out.store(out.offset(t, h, i), static_cast<float>(sum * scale));
      }
    }
}

KernelResult run_hadamard(const OpCall& call) {
  const TensorView& x = call.view(Hadamard::kX);
  const TensorView& out = call.view(Hadamard::kOut);
  FAULTLINE_CHECK(std::has_single_bit(static_cast<uint64_t>(x.dim(2))));
  with_build(call, x.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::HadamardOperands<T> operands;
    operands.x = kernel_operand<T>(call, Hadamard::kX);
    operands.out = kernel_operand<T>(call, Hadamard::kOut);
    operands.tokens = x.dim(0);
    operands.heads = x.dim(1);
    operands.dim = x.dim(2);
    operands.x_token_stride = x.stride[0];
    operands.x_head_stride = x.stride[1];
    operands.out_token_stride = out.stride[0];
    operands.out_head_stride = out.stride[1];
    kernels::launch_hadamard<T, decltype(build)::kChecked>(call.launch, operands);
  });
  return std::nullopt;
}

const RegisterKind kHadamard{
    OpKind{.name = Hadamard::kName, .operands = {input("x"), output("out")}, .model = hadamard_model}};

const RegisterKernel kHadamardKernel{
    Kernel{.name = "hadamard",
           .kind = Hadamard::kName,
           .follows = "sglang, layers/attention/nsa/nsa_indexer.py (rotate_activation)",
           .run = run_hadamard,
           .tolerance = tolerance_for(Hadamard::kName, Dtype::kBF16)}};

}  // namespace
}  // namespace faultline
