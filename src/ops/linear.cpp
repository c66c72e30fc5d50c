// linear, linear_w4a4: products with weights of every precision.
#include <algorithm>

#include "ops/cuda_products.h"
#include "ops/fp4_tiles.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"
#include "ops/weights.h"

namespace faultline {
namespace {

using ops::Linear;
using ops::LinearW4A4;

// out = x W^T for the stacked weights of a call; x [rows, columns] in floats.
void stacked_product(const OpCall& call, const std::vector<float>& x, int values, int block_scale, int global_scale,
                     const TensorView& out) {
  const int64_t rows = out.dim(0);
  std::vector<float> result(static_cast<size_t>(rows * out.dim(1)));
  int64_t begin = 0;
  for (size_t i = 0; i < call.argument(values).views.size(); ++i) {
    const Weight weight = weight_at(call, values, block_scale, global_scale, i);
    reference_product(x.data(), rows, weight, result.data() + begin, out.dim(1));
    begin += weight.rows();
  }
  FAULTLINE_CHECK(begin == out.dim(1));
  for (int64_t r = 0; r < rows; ++r) store_row(out, r, result.data() + r * out.dim(1));
}

void linear_model(const OpCall& call) {
  stacked_product(call, load_rows(call.view(Linear::kX)), Linear::kWeight, Linear::kBlockScale, Linear::kGlobalScale,
                  call.view(Linear::kOut));
}

void w4a4_model(const OpCall& call) {
  const TensorView& codes = call.view(LinearW4A4::kCodes);
  const int64_t columns = codes.dim(1) * 2;
  const float input_scale = largest_scalar(call.argument(LinearW4A4::kInputScale));
  std::vector<float> x(static_cast<size_t>(codes.dim(0) * columns));
  for (int64_t r = 0; r < codes.dim(0); ++r)
    dequantize_codes(codes, call.view(LinearW4A4::kScales), r, x.data() + r * columns);
  for (float& value : x) value *= input_scale;
  stacked_product(call, x, LinearW4A4::kWeight, LinearW4A4::kBlockScale, LinearW4A4::kGlobalScale,
                  call.view(LinearW4A4::kOut));
}

// Stays on codes: exact terms without global scales, which the epilogue applies at once (alpha).
void w4a4_spec(const OpCall& call) {
  const TensorView& codes = call.view(LinearW4A4::kCodes);
  const TensorView& out = call.view(LinearW4A4::kOut);
  const int64_t columns = codes.dim(1) * 2;
  const float input_scale = largest_scalar(call.argument(LinearW4A4::kInputScale));
  std::vector<float> x(static_cast<size_t>(codes.dim(0) * columns));
  for (int64_t r = 0; r < codes.dim(0); ++r)
    dequantize_codes(codes, call.view(LinearW4A4::kScales), r, x.data() + r * columns);
  int64_t begin = 0;
  for (size_t i = 0; i < call.argument(LinearW4A4::kWeight).views.size(); ++i) {
    Weight weight = weight_at(call, LinearW4A4::kWeight, LinearW4A4::kBlockScale, LinearW4A4::kGlobalScale, i);
    const float alpha = input_scale * weight.global_scale.load(0);
    weight.global_scale = TensorView{};
    std::vector<float> result(static_cast<size_t>(codes.dim(0) * weight.rows()));
    reference_product(x.data(), codes.dim(0), weight, result.data(), weight.rows());
    scale_rows(result.data(), codes.dim(0), weight.rows(), weight.rows(), alpha);
    const TensorView part = slice_last(out, begin, weight.rows());
    for (int64_t r = 0; r < part.dim(0); ++r) store_row(part, r, result.data() + r * weight.rows());
    begin += weight.rows();
  }
}

// One kernel body for the dense and the weight-only products: the weight's format picks its loop.
KernelResult run_linear(const OpCall& call) {
#ifdef FAULTLINE_HAVE_CUDA
  if (call.launch.cuda) return cuda_linear(call);
#endif
  const std::vector<float> x = load_rows(call.view(Linear::kX));
  const TensorView& out = call.view(Linear::kOut);
  const int64_t width = out.dim(1);
  std::vector<float> result(static_cast<size_t>(out.dim(0) * width));
  int64_t begin = 0;
  for (size_t i = 0; i < call.argument(Linear::kWeight).views.size(); ++i) {
    const Weight weight = weight_at(call, Linear::kWeight, Linear::kBlockScale, Linear::kGlobalScale, i);
    FAULTLINE_CHECK(weight.columns() == call.view(Linear::kX).dim(1) && begin + weight.rows() <= width);
    kernels::matmul(x.data(), out.dim(0), matmul_weight(weight), result.data() + begin, width);
    if (weight.format == Format::kNvfp4)
      scale_rows(result.data() + begin, out.dim(0), weight.rows(), width, weight.global_scale.load(0));
    begin += weight.rows();
  }
  for (int64_t r = 0; r < out.dim(0); ++r) store_row(out, r, result.data() + r * width);
  return std::nullopt;
}

KernelResult run_w4a4(const OpCall& call) {
#ifdef FAULTLINE_HAVE_CUDA
  if (call.launch.cuda) return cuda_linear_w4a4(call);
#endif
  const TensorView& codes = call.view(LinearW4A4::kCodes);
  const TensorView& scales = call.view(LinearW4A4::kScales);
  const TensorView& out = call.view(LinearW4A4::kOut);
  const float input_scale = largest_scalar(call.argument(LinearW4A4::kInputScale));
  for (int64_t tile = 0; tile < out.dim(0); tile += kTileRows) {
    const int64_t rows = std::min(kTileRows, out.dim(0) - tile);
    kernels::Fp4Rows x(rows, codes.dim(1) * 2);
    for (int64_t r = 0; r < rows; ++r)
      x.set(r, codes.as<uint8_t>() + codes.offset(tile + r), scales.as<uint8_t>() + scales.offset(tile + r));
    int64_t begin = 0;
    for (size_t i = 0; i < call.argument(LinearW4A4::kWeight).views.size(); ++i) {
      const Weight weight = weight_at(call, LinearW4A4::kWeight, LinearW4A4::kBlockScale, LinearW4A4::kGlobalScale, i);
      std::vector<float> result(static_cast<size_t>(rows * weight.rows()));
      kernels::matmul_w4a4(x, matmul_weight(weight), result.data(), weight.rows());
      scale_rows(result.data(), rows, weight.rows(), weight.rows(), input_scale * weight.global_scale.load(0));
      const TensorView part = slice_rows(slice_last(out, begin, weight.rows()), tile, rows);
      for (int64_t r = 0; r < rows; ++r) store_row(part, r, result.data() + r * weight.rows());
      begin += weight.rows();
    }
  }
  return std::nullopt;
}

const RegisterKind kRegisterLinear(OpKind{.name = Linear::kName,
                                          .operands = {input("x"), weight_list("weight"), weight_list("block_scale"),
                                                       weight_list("global_scale"), output("out")},
                                          .model = linear_model});

const RegisterKind kRegisterW4A4(OpKind{
    .name = LinearW4A4::kName,
    .operands = {input("codes", kTokenRows, Content::kFp4Codes), input("scales", kTokenRows, Content::kE4m3Scales),
                 weight_list("weight"), weight_list("block_scale"), weight_list("global_scale"),
                 weight_list("input_scale"), output("out")},
    .model = w4a4_model});

const RegisterKernel kDense(Kernel{.name = "dense",
                                   .kind = Linear::kName,
                                   .follows = "sglang v0.5.9, layers/linear.py (unquantized, FP8)",
                                   .run = run_linear,
                                   .tolerance = tolerance_for(Linear::kName, Dtype::kBF16)});

const RegisterKernel kMarlin(Kernel{.name = "marlin",
                                    .kind = Linear::kName,
                                    .follows = "sglang, marlin: NVFP4 weights, activations left as they are",
                                    .run = run_linear,
                                    .tolerance = tolerance_for(Linear::kName, Dtype::kBF16),
                                    .serves = {{"fp4_gemm_backend", "marlin"}}});

const RegisterKernel kCutlass(Kernel{
    .name = "flashinfer_cutlass",
    .kind = LinearW4A4::kName,
    .follows = "sglang v0.5.9, layers/quantization/modelopt_quant.py, with flashinfer's "
               "cutlass product in tiles of 128 rows",
    .run = run_w4a4,
    .spec = w4a4_spec,
    .tolerance = tolerance_for(LinearW4A4::kName, Dtype::kBF16),
    .serves = {{"fp4_gemm_backend", "flashinfer_cutlass"}},
    .architectures = {100, 120},
    .source = "sglang v0.5.9, modelopt_quant.py: NVFP4 products on codes need Blackwell"});

}  // namespace
}  // namespace faultline
