// moe_permute, expert_linear, expert_linear_w4a4, moe_combine: the routed experts.
#include <algorithm>

#include "kernels/moe.h"
#include "ops/cuda_products.h"
#include "ops/fp4_tiles.h"
#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"
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

// The input scale of one expert's rows: its own, or the largest of all (ops/kinds.h).
float expert_input_scale(const OpCall& call, int64_t expert) {
  const Argument& list = call.argument(ExpertLinearW4A4::kInputScale);
  if (call.attr().integer_or("per_expert", 0) == 0) return largest_scalar(list);
  return largest_scalar(list, expert, call.attr().integer("stacked"));
}

// Whether an expert's global scales stay in the product; else they and its input scale multiply the result (alpha).
enum class GlobalScales : uint8_t { kInProduct, kInAlpha };

// Rows of x for each expert, its stacked products, and back to the rows they belong to. `load(row, expert, out)` gives
// row `row` of x as floats.
template <class Load>
void grouped_product(const OpCall& call, const TensorView& order, const TensorView& offsets, int values,
                     int block_scale, int global_scale, const TensorView& out, int64_t columns, const Load& load,
                     GlobalScales global_scales = GlobalScales::kInProduct) {
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
      load(x_per_token ? flat / k : flat, e, x.data() + r * columns);
    }
    for (int64_t s = 0; s < stacked; ++s) {
      Weight weight = weight_at(call, values, block_scale, global_scale, static_cast<size_t>(e * stacked + s));
      float alpha = 1;
      if (global_scales == GlobalScales::kInAlpha) {
        alpha = expert_input_scale(call, e) * weight.global_scale.load(0);
        weight.global_scale = TensorView{};
      }
      float* part = result.data() + s * width;
      reference_product(x.data(), rows, weight, part, out.dim(1));
      scale_rows(part, rows, width, out.dim(1), alpha);
    }
    for (int64_t r = 0; r < rows; ++r) store_row(out, order.load_index(begin + r), result.data() + r * out.dim(1));
  }
}

void expert_linear_model(const OpCall& call) {
  const TensorView& x = call.view(ExpertLinear::kX);
  grouped_product(call, call.view(ExpertLinear::kOrder), call.view(ExpertLinear::kOffsets), ExpertLinear::kWeight,
                  ExpertLinear::kBlockScale, ExpertLinear::kGlobalScale, call.view(ExpertLinear::kOut), x.dim(1),
                  [&](int64_t row, int64_t, float* out) { load_row(x, row, out); });
}

void expert_w4a4_model(const OpCall& call) {
  const TensorView& codes = call.view(ExpertLinearW4A4::kCodes);
  const int64_t columns = codes.dim(1) * 2;
  grouped_product(call, call.view(ExpertLinearW4A4::kOrder), call.view(ExpertLinearW4A4::kOffsets),
                  ExpertLinearW4A4::kWeight, ExpertLinearW4A4::kBlockScale, ExpertLinearW4A4::kGlobalScale,
                  call.view(ExpertLinearW4A4::kOut), columns, [&](int64_t row, int64_t expert, float* out) {
                    const float input_scale = expert_input_scale(call, expert);
                    dequantize_codes(codes, call.view(ExpertLinearW4A4::kScales), row, out);
                    for (int64_t c = 0; c < columns; ++c) out[c] *= input_scale;
                  });
}

// Stays on codes: exact terms without global scales, which the epilogue applies at once (alpha).
void expert_w4a4_spec(const OpCall& call) {
  const TensorView& codes = call.view(ExpertLinearW4A4::kCodes);
  grouped_product(
      call, call.view(ExpertLinearW4A4::kOrder), call.view(ExpertLinearW4A4::kOffsets), ExpertLinearW4A4::kWeight,
      ExpertLinearW4A4::kBlockScale, ExpertLinearW4A4::kGlobalScale, call.view(ExpertLinearW4A4::kOut),
      codes.dim(1) * 2,
      [&](int64_t row, int64_t, float* out) {
        dequantize_codes(codes, call.view(ExpertLinearW4A4::kScales), row, out);
      },
      GlobalScales::kInAlpha);
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

KernelResult run_permute(const OpCall& call) {
  const TensorView& ids = call.view(MoePermute::kIds);
  const auto launch = [&](auto checked) {
    kernels::launch_moe_align(call.launch, kernels::MoeAlignBody<decltype(checked)::value>{
                                               .ids = kernel_operand<int32_t>(call, MoePermute::kIds),
                                               .order = kernel_operand<int32_t>(call, MoePermute::kOrder),
                                               .offsets = kernel_operand<int32_t>(call, MoePermute::kOffsets),
                                               .tokens = ids.dim(0),
                                               .k = ids.dim(1),
                                               .experts = call.view(MoePermute::kOffsets).dim(0) - 1,
                                               .ids_stride = ids.stride[0],
                                               .log = call.launch.log});
  };
  if (call.checked)
    launch(std::true_type{});
  else
    launch(std::false_type{});
  return std::nullopt;
}

// The rows of one expert. A product reads its indices before any row, so the checked build looks at them here: a bad
// entry is recorded and its row left out.
std::vector<int64_t> expert_rows(const OpCall& call, int order_operand, int offsets_operand, int64_t rows,
                                 int64_t expert) {
  const TensorView& order = call.view(order_operand);
  const TensorView& offsets = call.view(offsets_operand);
  const kernels::Place place{.block = expert};
  const auto record = [&](int operand, int64_t index, int64_t extent) {
    const kernels::View<int32_t, true> view(nullptr, extent, operand, call.launch.log, &place);
    static_cast<void>(view.load(index));
  };
  std::vector<int64_t> result;
  for (int64_t i = offsets.load_index(expert); i < offsets.load_index(expert + 1); ++i) {
    if (call.checked && (i < 0 || i >= order.dim(0))) {
      record(order_operand, i, order.dim(0));
      break;
    }
    const int64_t flat = order.load_index(i);
    if (call.checked && (flat < 0 || flat >= rows)) {
      record(order_operand, flat, rows);
      continue;
    }
    result.push_back(flat);
  }
  return result;
}

KernelResult run_experts(const OpCall& call) {
#ifdef FAULTLINE_HAVE_CUDA
  if (call.launch.cuda) return cuda_experts(call);
#endif
  const TensorView& x = call.view(ExpertLinear::kX);
  const TensorView& out = call.view(ExpertLinear::kOut);
  const int64_t k = call.attr().flag("x_per_token") ? call.attr().integer("k") : 1;
  const int64_t stacked = call.attr().integer("stacked");
  const int64_t width = out.dim(1) / stacked;
  std::vector<float> gathered;
  std::vector<float> result;
  for (int64_t e = 0; e + 1 < call.view(ExpertLinear::kOffsets).dim(0); ++e) {
    const std::vector<int64_t> rows = expert_rows(call, ExpertLinear::kOrder, ExpertLinear::kOffsets, out.dim(0), e);
    const auto count = static_cast<int64_t>(rows.size());
    if (count == 0) continue;
    gathered.resize(static_cast<size_t>(count * x.dim(1)));
    result.resize(static_cast<size_t>(count * out.dim(1)));
    for (int64_t r = 0; r < count; ++r) load_row(x, rows[static_cast<size_t>(r)] / k, gathered.data() + r * x.dim(1));
    for (int64_t s = 0; s < stacked; ++s) {
      const Weight weight = weight_at(call, ExpertLinear::kWeight, ExpertLinear::kBlockScale,
                                      ExpertLinear::kGlobalScale, static_cast<size_t>(e * stacked + s));
      float* part = result.data() + s * width;
      kernels::matmul(gathered.data(), count, matmul_weight(weight), part, out.dim(1));
      if (weight.format == Format::kNvfp4) scale_rows(part, count, width, out.dim(1), weight.global_scale.load(0));
    }
    for (int64_t r = 0; r < count; ++r) store_row(out, rows[static_cast<size_t>(r)], result.data() + r * out.dim(1));
  }
  return std::nullopt;
}

KernelResult run_experts_w4a4(const OpCall& call) {
#ifdef FAULTLINE_HAVE_CUDA
  if (call.launch.cuda) return cuda_experts_w4a4(call);
#endif
  const TensorView& codes = call.view(ExpertLinearW4A4::kCodes);
  const TensorView& scales = call.view(ExpertLinearW4A4::kScales);
  const TensorView& out = call.view(ExpertLinearW4A4::kOut);
  const int64_t k = call.attr().flag("x_per_token") ? call.attr().integer("k") : 1;
  const int64_t stacked = call.attr().integer("stacked");
  const int64_t width = out.dim(1) / stacked;
  std::vector<float> result;
  for (int64_t e = 0; e + 1 < call.view(ExpertLinearW4A4::kOffsets).dim(0); ++e) {
    const std::vector<int64_t> rows =
        expert_rows(call, ExpertLinearW4A4::kOrder, ExpertLinearW4A4::kOffsets, out.dim(0), e);
    const auto total = static_cast<int64_t>(rows.size());
    const float input_scale = total > 0 ? expert_input_scale(call, e) : 1.0f;
    for (int64_t tile = 0; tile < total; tile += kTileRows) {
      const int64_t count = std::min(kTileRows, total - tile);
      const int64_t* row = rows.data() + tile;
      kernels::Fp4Rows x(count, codes.dim(1) * 2);
      result.resize(static_cast<size_t>(count * out.dim(1)));
      for (int64_t r = 0; r < count; ++r)
        x.set(r, codes.as<uint8_t>() + codes.offset(row[r] / k), scales.as<uint8_t>() + scales.offset(row[r] / k));
      for (int64_t s = 0; s < stacked; ++s) {
        const Weight weight = weight_at(call, ExpertLinearW4A4::kWeight, ExpertLinearW4A4::kBlockScale,
                                        ExpertLinearW4A4::kGlobalScale, static_cast<size_t>(e * stacked + s));
        float* part = result.data() + s * width;
        kernels::matmul_w4a4(x, matmul_weight(weight), part, out.dim(1));
        scale_rows(part, count, width, out.dim(1), input_scale * weight.global_scale.load(0));
      }
      for (int64_t r = 0; r < count; ++r) store_row(out, row[r], result.data() + r * out.dim(1));
    }
  }
  return std::nullopt;
}

KernelResult run_combine(const OpCall& call) {
  const TensorView& weights = call.view(MoeCombine::kWeights);
  const TensorView& out = call.view(MoeCombine::kOut);
  with_build(call, out.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::launch_moe_combine(call.launch, out.dim(0),
                                kernels::MoeCombineBody<T, decltype(build)::kChecked>{
                                    .x = kernel_operand<T>(call, MoeCombine::kX),
                                    .weights = kernel_operand<float>(call, MoeCombine::kWeights),
                                    .out = kernel_operand<T>(call, MoeCombine::kOut),
                                    .k = weights.dim(1),
                                    .columns = out.dim(1),
                                    .x_stride = call.view(MoeCombine::kX).stride[0],
                                    .weights_stride = weights.stride[0],
                                    .out_stride = out.stride[0],
                                    .log = call.launch.log});
  });
  return std::nullopt;
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
    .model = expert_linear_model,
    .structure = {"gate_up_scale"}});

const RegisterKind kRegisterExpertW4A4(OpKind{
    .name = ExpertLinearW4A4::kName,
    .operands = {input("codes", kExpertInputRows, Content::kFp4Codes),
                 input("scales", kExpertInputRows, Content::kE4m3Scales),
                 index_input("order", kAllRows, IndexRule{.unique = true}), index_input("offsets", kAllRows),
                 weight_list("weight"), weight_list("block_scale"), weight_list("global_scale"),
                 weight_list("input_scale"), output("out", kExpertRows)},
    .model = expert_w4a4_model,
    .structure = {"gate_up_scale"}});

const RegisterKind kRegisterCombine(OpKind{.name = MoeCombine::kName,
                                           .operands = {input("x", kExpertRows), input("weights"), output("out")},
                                           .model = combine_model});

const RegisterKernel kMoeAlign(Kernel{.name = "moe_align",
                                      .kind = MoePermute::kName,
                                      .follows = "sglang v0.5.9, moe_align_block_size without padding to blocks",
                                      .run = run_permute,
                                      .tolerance = tolerance_for(MoePermute::kName, Dtype::kI32)});
const RegisterKernel kDense(Kernel{.name = "dense",
                                   .kind = ExpertLinear::kName,
                                   .follows = "sglang v0.5.9, fused_moe_triton (unquantized, FP8)",
                                   .run = run_experts,
                                   .tolerance = tolerance_for(ExpertLinear::kName, Dtype::kBF16)});
const RegisterKernel kMarlin(Kernel{.name = "marlin",
                                    .kind = ExpertLinear::kName,
                                    .follows = "sglang, marlin: NVFP4 weights, activations left as they are",
                                    .run = run_experts,
                                    .tolerance = tolerance_for(ExpertLinear::kName, Dtype::kBF16),
                                    .serves = {{"moe_runner_backend", "marlin"}}});
const RegisterKernel kCutlass(Kernel{
    .name = "flashinfer_cutlass",
    .kind = ExpertLinearW4A4::kName,
    .follows = "sglang v0.5.9, modelopt_quant.py with flashinfer's cutlass_fused_moe: one input scale for all experts",
    .run = run_experts_w4a4,
    .spec = expert_w4a4_spec,
    .tolerance = tolerance_for(ExpertLinearW4A4::kName, Dtype::kBF16),
    .serves = {{"moe_runner_backend", "flashinfer_cutlass"}},
    .architectures = {100, 120},
    .source = "sglang v0.5.9, modelopt_quant.py: NVFP4 products on codes need Blackwell"});
const RegisterKernel kMoeFinalize(Kernel{.name = "moe_finalize",
                                         .kind = MoeCombine::kName,
                                         .follows = "sglang v0.5.9, the weighted sum of the experts' results",
                                         .run = run_combine,
                                         .tolerance = tolerance_for(MoeCombine::kName, Dtype::kBF16)});

}  // namespace
}  // namespace faultline
