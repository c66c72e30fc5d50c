// batched_linear: one matrix a head (the absorbed products of MLA).
#include "kernels/blas.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/weights.h"

namespace faultline {
namespace {

using ops::BatchedLinear;

void model(const OpCall& call) {
  const TensorView& x = call.view(BatchedLinear::kX);
  const TensorView& w = call.view(BatchedLinear::kWeight);
  const TensorView& out = call.view(BatchedLinear::kOut);
  const int64_t rows = x.dim(0);
  const int64_t k = x.dim(2);
  const int64_t n = out.dim(2);
  std::vector<float> x_head(static_cast<size_t>(rows * k));
  std::vector<float> w_head(static_cast<size_t>(n * k));
  std::vector<float> out_head(static_cast<size_t>(rows * n));
  for (int64_t h = 0; h < x.dim(1); ++h) {
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t c = 0; c < k; ++c) x_head[static_cast<size_t>(t * k + c)] = x.load(x.offset(t, h, c));
    for (int64_t i = 0; i < w.dim(1); ++i)
      for (int64_t j = 0; j < w.dim(2); ++j) w_head[static_cast<size_t>(i * w.dim(2) + j)] = w.load(w.offset(h, i, j));
    if (call.attr().flag("weight_kn"))
      kernels::sgemm_nn(rows, n, k, x_head.data(), k, w_head.data(), n, out_head.data(), n);
    else
      kernels::sgemm_nt(rows, n, k, x_head.data(), k, w_head.data(), k, out_head.data(), n);
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t c = 0; c < n; ++c) out.store(out.offset(t, h, c), out_head[static_cast<size_t>(t * n + c)]);
  }
}

const RegisterKind kRegisterKind(OpKind{
    .name = BatchedLinear::kName, .operands = {input("x"), weight("weight"), output("out")}, .model = model});

}  // namespace
}  // namespace faultline
