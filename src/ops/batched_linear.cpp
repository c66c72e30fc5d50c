// batched_linear: one matrix a head (the absorbed products of MLA).
#include "kernels/blas.h"
#include "ops/cuda_products.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"
#include "ops/weights.h"

namespace faultline {
namespace {

using ops::BatchedLinear;

// [T, h, D] at one head: [T, D].
TensorView head_rows(const TensorView& view, int64_t head) {
  TensorView result = view;
  result.data += head * view.stride[1] * static_cast<int64_t>(dtype_bytes(view.dtype));
  result.rank = 2;
  result.shape[1] = view.shape[2];
  result.stride[1] = view.stride[2];
  return result;
}

// [h, A, B] at one head: [A, B].
TensorView head_matrix(const TensorView& view, int64_t head) {
  TensorView result = view;
  result.data += head * view.stride[0] * static_cast<int64_t>(dtype_bytes(view.dtype));
  result.rank = 2;
  result.shape = {view.shape[1], view.shape[2]};
  result.stride = {view.stride[1], view.stride[2]};
  return result;
}

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

KernelResult run_bmm(const OpCall& call) {
#ifdef FAULTLINE_HAVE_CUDA
  if (call.launch.cuda) return cuda_batched_linear(call);
#endif
  const TensorView& x = call.view(BatchedLinear::kX);
  const TensorView& w = call.view(BatchedLinear::kWeight);
  const TensorView& out = call.view(BatchedLinear::kOut);
  const bool weight_kn = call.attr().flag("weight_kn");
  const int64_t k = x.dim(2);
  std::vector<float> x_head(static_cast<size_t>(x.dim(0) * k));
  std::vector<float> result(static_cast<size_t>(x.dim(0) * out.dim(2)));
  for (int64_t h = 0; h < x.dim(1); ++h) {
    const TensorView head = head_rows(x, h);
    for (int64_t t = 0; t < x.dim(0); ++t) load_row(head, t, x_head.data() + t * k);
    const kernels::MatmulWeight weight = matmul_weight(Weight{.values = head_matrix(w, h)});
    if (weight_kn)
      kernels::matmul_kn(x_head.data(), x.dim(0), weight, result.data(), out.dim(2));
    else
      kernels::matmul(x_head.data(), x.dim(0), weight, result.data(), out.dim(2));
    const TensorView out_head = head_rows(out, h);
    for (int64_t t = 0; t < x.dim(0); ++t) store_row(out_head, t, result.data() + t * out.dim(2));
  }
  return std::nullopt;
}

const RegisterKind kRegisterKind(OpKind{
    .name = BatchedLinear::kName, .operands = {input("x"), weight("weight"), output("out")}, .model = model});

const RegisterKernel kBmm(Kernel{.name = "bmm",
                                 .kind = BatchedLinear::kName,
                                 .follows = "sglang v0.5.9, the absorbed products of forward_mla.py (torch.bmm)",
                                 .run = run_bmm,
                                 .tolerance = tolerance_for(BatchedLinear::kName, Dtype::kBF16)});

}  // namespace
}  // namespace faultline
