// quantize_fp4, quantize_fp4_experts, round_fp8: activations in FP4 and FP8, as SGLang makes them.
#include <cmath>

#include "kernels/quantize_fp4.h"
#include "kernels/round_fp8.h"
#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"
#include "ops/weights.h"

namespace faultline {
namespace {

using ops::QuantizeFp4;
using ops::QuantizeFp4Experts;
using ops::RoundFp8;

// One row of x as codes and scales.
void quantize_row(const TensorView& x, int64_t x_row, float input_scale, const TensorView& codes,
                  const TensorView& scales, int64_t r) {
  const float global = 1.0f / input_scale;
  for (int64_t b = 0; b < scales.dim(1); ++b) {
    const int64_t begin = b * kFp4Block;
    float amax = std::fabs(x.load(x.offset(x_row, begin)));
    // The hardware's maximum drops a NaN beside a number; only a block of nothing else keeps it.
    for (int64_t c = 1; c < kFp4Block; ++c) amax = std::fmax(amax, std::fabs(x.load(x.offset(x_row, begin + c))));
    const float unrounded = global * amax / kFp4Largest;
    // NaN has one code here, as in hardware: the positive one, whatever the sign of the float's.
    const uint8_t code = unrounded != unrounded ? uint8_t{0x7F} : float_to_e4m3(clamp_e4m3(unrounded));
    scales.as<uint8_t>()[scales.offset(r, b)] = code;
    const float scale = e4m3_to_float(code);
    const float factor = scale == 0.0f ? 0.0f : global / scale;
    for (int64_t c = 0; c < kFp4Block; c += 2) {
      const uint8_t low = float_to_e2m1(x.load(x.offset(x_row, begin + c)) * factor);
      const uint8_t high = float_to_e2m1(x.load(x.offset(x_row, begin + c + 1)) * factor);
      codes.as<uint8_t>()[codes.offset(r, (begin + c) / 2)] = static_cast<uint8_t>(low | (high << 4));
    }
  }
}

void model(const OpCall& call) {
  const TensorView& x = call.view(QuantizeFp4::kX);
  const float input_scale = largest_scalar(call.argument(QuantizeFp4::kInputScale));
  for (int64_t r = 0; r < x.dim(0); ++r)
    quantize_row(x, r, input_scale, call.view(QuantizeFp4::kCodes), call.view(QuantizeFp4::kScales), r);
}

// An expert that does not exist has no scale; the reference has nothing to say about its row.
void experts_model(const OpCall& call) {
  using Q = QuantizeFp4Experts;
  const TensorView& ids = call.view(Q::kIds);
  const int64_t k = call.attr().integer("k");
  const int64_t stacked = call.attr().integer("stacked");
  const int64_t rows_per_x = call.attr().flag("x_per_token") ? k : 1;
  const auto experts = static_cast<int64_t>(call.argument(Q::kInputScale).views.size()) / stacked;
  for (int64_t r = 0; r < ids.dim(0) * k; ++r) {
    const int64_t expert = ids.load_index(ids.offset(r / k, r % k));
    if (expert < 0 || expert >= experts) continue;
    quantize_row(call.view(Q::kX), r / rows_per_x, largest_scalar(call.argument(Q::kInputScale), expert, stacked),
                 call.view(Q::kCodes), call.view(Q::kScales), r);
  }
}

void round_model(const OpCall& call) {
  const TensorView& x = call.view(RoundFp8::kX);
  const TensorView& out = call.view(RoundFp8::kOut);
  for (int64_t t = 0; t < x.dim(0); ++t)
    for (int64_t h = 0; h < x.dim(1); ++h)
      for (int64_t d = 0; d < x.dim(2); ++d) {
        const float value = x.load(x.offset(t, h, d));
        out.store(out.offset(t, h, d), value != value ? value : e4m3_to_float(float_to_e4m3(clamp_e4m3(value))));
      }
}

// Where the scalars lie: a GPU's memory, or the host's.
kernels::InputScales device_scales(const Argument& argument) {
  kernels::InputScales scales;
  FAULTLINE_CHECK(argument.views.size() <= kernels::InputScales::kCapacity);
  for (const TensorView& view : argument.views) {
    FAULTLINE_CHECK(view.dtype == Dtype::kF32);
    scales.at[scales.count++] = view.as<float>();
  }
  return scales;
}

KernelResult run(const OpCall& call) {
  const TensorView& x = call.view(QuantizeFp4::kX);
  const Argument& input_scale = call.argument(QuantizeFp4::kInputScale);
  const bool cuda = call.launch.cuda;
  with_build(call, x.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::launch_quantize_fp4(call.launch, x.dim(0),
                                 kernels::QuantizeFp4Body<T, decltype(build)::kChecked>{
                                     .x = kernel_operand<T>(call, QuantizeFp4::kX),
                                     .codes = kernel_pool(call, QuantizeFp4::kCodes),
                                     .scales = kernel_pool(call, QuantizeFp4::kScales),
                                     .columns = x.dim(1),
                                     .x_stride = x.stride[0],
                                     .codes_stride = call.view(QuantizeFp4::kCodes).stride[0],
                                     .scales_stride = call.view(QuantizeFp4::kScales).stride[0],
                                     .global = cuda ? 0.0f : 1.0f / largest_scalar(input_scale),
                                     .input_scales = cuda ? device_scales(input_scale) : kernels::InputScales{},
                                     .log = call.launch.log});
  });
  return std::nullopt;
}

KernelResult run_experts(const OpCall& call) {
  using Q = QuantizeFp4Experts;
  const TensorView& x = call.view(Q::kX);
  const TensorView& ids = call.view(Q::kIds);
  const int64_t k = call.attr().integer("k");
  const bool x_per_token = call.attr().flag("x_per_token");
  with_build(call, x.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::launch_quantize_fp4_experts(call.launch, ids.dim(0) * k,
                                         kernels::QuantizeFp4ExpertsBody<T, decltype(build)::kChecked>{
                                             .x = kernel_operand<T>(call, Q::kX),
                                             .ids = kernel_operand<int32_t>(call, Q::kIds),
                                             .codes = kernel_pool(call, Q::kCodes),
                                             .scales = kernel_pool(call, Q::kScales),
                                             .columns = x.dim(1),
                                             .k = k,
                                             .rows_per_x = x_per_token ? k : 1,
                                             .x_stride = x.stride[0],
                                             .ids_stride = ids.stride[0],
                                             .codes_stride = call.view(Q::kCodes).stride[0],
                                             .scales_stride = call.view(Q::kScales).stride[0],
                                             .each = static_cast<int32_t>(call.attr().integer("stacked")),
                                             .input_scales = device_scales(call.argument(Q::kInputScale)),
                                             .log = call.launch.log});
  });
  return std::nullopt;
}

KernelResult run_round(const OpCall& call) {
  const TensorView& x = call.view(RoundFp8::kX);
  const TensorView& out = call.view(RoundFp8::kOut);
  with_build(call, x.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::launch_round_fp8(
        call.launch, kernels::Grid{x.dim(0), x.dim(1)},
        kernels::RoundFp8Body<T, decltype(build)::kChecked>{.x = kernel_operand<T>(call, RoundFp8::kX),
                                                            .out = kernel_operand<T>(call, RoundFp8::kOut),
                                                            .dim = x.dim(2),
                                                            .x_token_stride = x.stride[0],
                                                            .x_head_stride = x.stride[1],
                                                            .out_token_stride = out.stride[0],
                                                            .out_head_stride = out.stride[1],
                                                            .log = call.launch.log});
  });
  return std::nullopt;
}

const RegisterKind kRegisterExperts(OpKind{
    .name = QuantizeFp4Experts::kName,
    .operands = {input("x", kExpertInputRows), index_input("ids", kTokenRows, IndexRule{.unique = true}),
                 weight_list("input_scale"), output("codes", kExpertRows, Content::kFp4Codes),
                 output("scales", kExpertRows, Content::kE4m3Scales)},
    .model = experts_model});

const RegisterKernel kExpertsKernel(Kernel{
    .name = "scaled_fp4_experts_quant",
    .kind = QuantizeFp4Experts::kName,
    .follows = "sglang, layers/moe/cutlass_moe.py (cutlass_moe_fp4: an input scale an expert)",
    .run = run_experts,
    .tolerance = tolerance_for(QuantizeFp4Experts::kName, Dtype::kU8)});

const RegisterKind kRegisterRound(OpKind{
    .name = RoundFp8::kName, .operands = {input("x"), output("out")}, .model = round_model});

const RegisterKernel kRoundKernel(Kernel{.name = "quantize_q",
                                         .kind = RoundFp8::kName,
                                         .follows = "sglang, mla_quantize_and_rope_for_fp8 (the query, scale 1)",
                                         .run = run_round,
                                         .tolerance = tolerance_for(RoundFp8::kName, Dtype::kBF16)});

const RegisterKind kRegisterKind(OpKind{
    .name = QuantizeFp4::kName,
    .operands = {input("x", kExpertRows), weight_list("input_scale"), output("codes", kExpertRows, Content::kFp4Codes),
                 output("scales", kExpertRows, Content::kE4m3Scales)},
    .model = model});

const RegisterKernel kKernel(Kernel{.name = "fp4_quantize",
                                    .kind = QuantizeFp4::kName,
                                    .follows = "sglang v0.5.9, layers/quantization/modelopt_quant.py (fp4_quantize)",
                                    .run = run,
                                    .tolerance = tolerance_for(QuantizeFp4::kName, Dtype::kU8)});

}  // namespace
}  // namespace faultline
