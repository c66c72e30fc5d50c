#include "kernels/norm.h"

#include <cmath>

#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using ops::LayerNorm;
using ops::RmsNorm;

void rmsnorm_model(const OpCall& call) {
  const TensorView& x = call.view(RmsNorm::kX);
  const TensorView& weight = call.view(RmsNorm::kWeight);
  const TensorView& out = call.view(RmsNorm::kOut);
  const double eps = call.attr().real("eps");
  const int64_t columns = x.dim(1);
  for (int64_t row = 0; row < x.dim(0); ++row) {
    double squares = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const double value = x.load(x.offset(row, c));
      squares += value * value;
    }
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(columns) + eps);
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t at = out.offset(row, c);
      out.store(at, static_cast<float>(x.load(x.offset(row, c)) * scale));
      out.store(at, out.load(at) * weight.load(c));
    }
  }
}

void layernorm_model(const OpCall& call) {
  const TensorView& x = call.view(LayerNorm::kX);
  const TensorView& weight = call.view(LayerNorm::kWeight);
  const TensorView& bias = call.view(LayerNorm::kBias);
  const TensorView& out = call.view(LayerNorm::kOut);
  const double eps = call.attr().real("eps");
  const int64_t columns = x.dim(1);
  for (int64_t row = 0; row < x.dim(0); ++row) {
    double mean = 0;
    for (int64_t c = 0; c < columns; ++c) mean += x.load(x.offset(row, c));
    mean /= static_cast<double>(columns);
    double variance = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const double difference = x.load(x.offset(row, c)) - mean;
      variance += difference * difference;
    }
    variance /= static_cast<double>(columns);
    const double scale = 1.0 / std::sqrt(variance + eps);
    for (int64_t c = 0; c < columns; ++c) {
      const double normalized = (x.load(x.offset(row, c)) - mean) * scale;
      out.store(out.offset(row, c), static_cast<float>(normalized * weight.load(c) + bias.load(c)));
    }
  }
}

template <class T>
kernels::NormOperands<T> norm_operands(const OpCall& call, int x, int weight, int out) {
  kernels::NormOperands<T> operands;
  operands.x = kernel_operand<T>(call, x);
  operands.weight = kernel_scalar(call, weight);
  operands.out = kernel_operand<T>(call, out);
  operands.rows = call.view(x).dim(0);
  operands.columns = call.view(x).dim(1);
  operands.x_stride = call.view(x).stride[0];
  operands.out_stride = call.view(out).stride[0];
  operands.eps = static_cast<float>(call.attr().real("eps"));
  return operands;
}

KernelResult run_rmsnorm(const OpCall& call) {
  with_build(call, call.view(RmsNorm::kX).dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::launch_rmsnorm<T, decltype(build)::kChecked>(
        call.launch, norm_operands<T>(call, RmsNorm::kX, RmsNorm::kWeight, RmsNorm::kOut));
  });
  return std::nullopt;
}

KernelResult run_layernorm(const OpCall& call) {
  with_build(call, call.view(LayerNorm::kX).dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    auto operands = norm_operands<T>(call, LayerNorm::kX, LayerNorm::kWeight, LayerNorm::kOut);
    operands.bias = kernel_scalar(call, LayerNorm::kBias);
    kernels::launch_layernorm<T, decltype(build)::kChecked>(call.launch, operands);
  });
  return std::nullopt;
}

const RegisterKind kRmsNorm{OpKind{.name = RmsNorm::kName,
                                   .operands = {input("x"), weight("weight"), output("out")},
                                   .model = rmsnorm_model,
                                   .structure = {"eps"}}};
const RegisterKind kLayerNorm{OpKind{.name = LayerNorm::kName,
                                     .operands = {input("x"), weight("weight"), weight("bias"), output("out")},
                                     .model = layernorm_model,
                                     .structure = {"eps"}}};

const RegisterKernel kRmsNormKernel{Kernel{.name = "rmsnorm",
                                           .kind = RmsNorm::kName,
                                           .follows = "sglang v0.5.9, layers/layernorm.py",
                                           .run = run_rmsnorm,
                                           .tolerance = tolerance_for(RmsNorm::kName, Dtype::kBF16)}};
const RegisterKernel kLayerNormKernel{Kernel{.name = "layernorm",
                                             .kind = LayerNorm::kName,
                                             .follows = "sglang v0.5.9, layers/attention/nsa/nsa_indexer.py (k_norm)",
                                             .run = run_layernorm,
                                             .tolerance = tolerance_for(LayerNorm::kName, Dtype::kBF16)}};

}  // namespace
}  // namespace faultline
