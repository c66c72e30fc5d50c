// linear, linear_w4a4: products with weights of every precision.
#include "ops/kinds.h"
#include "ops/operands.h"
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

}  // namespace
}  // namespace faultline
