// moe_permute, expert_linear, expert_linear_w4a4, moe_combine: the routed experts.
#include <algorithm>

#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/weights.h"

namespace faultline {
namespace {

using ops::ExpertLinear;
using ops::ExpertLinearW4A4;
using ops::MoeCombine;
using ops::MoePermute;

void permute_model(const OpCall& call) {
  const TensorView& ids = call.view(MoePermute::kIds);
  const TensorView& order = call.view(MoePermute::kOrder);
  const TensorView& offsets = call.view(MoePermute::kOffsets);
  int64_t at = 0;
  for (int64_t e = 0; e + 1 < offsets.dim(0); ++e) {
    offsets.store_index(e, at);
    for (int64_t t = 0; t < ids.dim(0); ++t)
      for (int64_t j = 0; j < ids.dim(1); ++j)
        if (ids.load_index(ids.offset(t, j)) == e) order.store_index(at++, t * ids.dim(1) + j);
  }
  offsets.store_index(offsets.dim(0) - 1, at);
}

// Rows of x for each expert, its stacked products, and back to the rows they belong to. `load(row, out)` gives row
// `row` of x as floats.
template <class Load>
void grouped_product(const OpCall& call, const TensorView& order, const TensorView& offsets, int values,
                     int block_scale, int global_scale, const TensorView& out, int64_t columns, const Load& load) {
  const int64_t k = call.attr().integer("k");
  const bool x_per_token = call.attr().flag("x_per_token");
  const int64_t stacked = call.attr().integer("stacked");
  const int64_t width = out.dim(1) / stacked;
  std::vector<float> x;
  std::vector<float> result;
  for (int64_t e = 0; e + 1 < offsets.dim(0); ++e) {
    const int64_t begin = offsets.load_index(e);
    const int64_t rows = offsets.load_index(e + 1) - begin;
    x.resize(static_cast<size_t>(std::max<int64_t>(rows, 0) * columns));
    result.resize(static_cast<size_t>(std::max<int64_t>(rows, 0) * out.dim(1)));
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t flat = order.load_index(begin + r);
      load(x_per_token ? flat / k : flat, x.data() + r * columns);
    }
    for (int64_t s = 0; s < stacked; ++s) {
      const Weight weight = weight_at(call, values, block_scale, global_scale, static_cast<size_t>(e * stacked + s));
      reference_product(x.data(), rows, weight, result.data() + s * width, out.dim(1));
    }
    for (int64_t r = 0; r < rows; ++r) store_row(out, order.load_index(begin + r), result.data() + r * out.dim(1));
  }
}

void expert_linear_model(const OpCall& call) {
  const TensorView& x = call.view(ExpertLinear::kX);
  grouped_product(call, call.view(ExpertLinear::kOrder), call.view(ExpertLinear::kOffsets), ExpertLinear::kWeight,
                  ExpertLinear::kBlockScale, ExpertLinear::kGlobalScale, call.view(ExpertLinear::kOut), x.dim(1),
                  [&](int64_t row, float* out) { load_row(x, row, out); });
}

void expert_w4a4_model(const OpCall& call) {
  const TensorView& codes = call.view(ExpertLinearW4A4::kCodes);
  const int64_t columns = codes.dim(1) * 2;
  const float input_scale = largest_scalar(call.argument(ExpertLinearW4A4::kInputScale));
  grouped_product(call, call.view(ExpertLinearW4A4::kOrder), call.view(ExpertLinearW4A4::kOffsets),
                  ExpertLinearW4A4::kWeight, ExpertLinearW4A4::kBlockScale, ExpertLinearW4A4::kGlobalScale,
                  call.view(ExpertLinearW4A4::kOut), columns, [&](int64_t row, float* out) {
                    dequantize_codes(codes, call.view(ExpertLinearW4A4::kScales), row, out);
                    for (int64_t c = 0; c < columns; ++c) out[c] *= input_scale;
                  });
}

void combine_model(const OpCall& call) {
  const TensorView& x = call.view(MoeCombine::kX);
  const TensorView& weights = call.view(MoeCombine::kWeights);
  const TensorView& out = call.view(MoeCombine::kOut);
  const int64_t k = weights.dim(1);
  for (int64_t t = 0; t < out.dim(0); ++t)
    for (int64_t c = 0; c < out.dim(1); ++c) {
      float sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += weights.load(weights.offset(t, j)) * x.load(x.offset(t * k + j, c));
      out.store(out.offset(t, c), sum);
    }
}

const RegisterKind kRegisterPermute(OpKind{
    .name = MoePermute::kName,
    .operands = {index_input("ids", kAllRows, IndexRule{.unique = true}),     // end: E
                 index_output("order", kAllRows, IndexRule{.unique = true}),  // end: T * k; rank 1 is one row
                 index_output("offsets", kAllRows)},                          // end: T * k + 1
    .model = permute_model});

const RegisterKind kRegisterExpertLinear(OpKind{
    .name = ExpertLinear::kName,
    .operands = {input("x", kExpertInputRows), index_input("order", kAllRows, IndexRule{.unique = true}),
                 index_input("offsets", kAllRows), weight_list("weight"), weight_list("block_scale"),
                 weight_list("global_scale"), output("out", kExpertRows)},
    .model = expert_linear_model});

const RegisterKind kRegisterExpertW4A4(OpKind{
    .name = ExpertLinearW4A4::kName,
    .operands = {input("codes", kExpertInputRows, Content::kFp4Codes),
                 input("scales", kExpertInputRows, Content::kE4m3Scales),
                 index_input("order", kAllRows, IndexRule{.unique = true}), index_input("offsets", kAllRows),
                 weight_list("weight"), weight_list("block_scale"), weight_list("global_scale"),
                 weight_list("input_scale"), output("out", kExpertRows)},
    .model = expert_w4a4_model});

const RegisterKind kRegisterCombine(OpKind{.name = MoeCombine::kName,
                                           .operands = {input("x", kExpertRows), input("weights"), output("out")},
                                           .model = combine_model});

}  // namespace
}  // namespace faultline
