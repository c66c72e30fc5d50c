// quantize_fp4: NVFP4 activations, as SGLang's fp4_quantize makes them.
#include <cmath>

#include "kernels/quantize_fp4.h"
#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"
#include "ops/weights.h"

namespace faultline {
namespace {

using ops::QuantizeFp4;

void model(const OpCall& call) {
  const TensorView& x = call.view(QuantizeFp4::kX);
  const TensorView& codes = call.view(QuantizeFp4::kCodes);
  const TensorView& scales = call.view(QuantizeFp4::kScales);
  const float global = 1.0f / largest_scalar(call.argument(QuantizeFp4::kInputScale));
  for (int64_t r = 0; r < x.dim(0); ++r)
    for (int64_t b = 0; b < scales.dim(1); ++b) {
      const int64_t begin = b * kFp4Block;
      float amax = std::fabs(x.load(x.offset(r, begin)));
      // The hardware's maximum drops a NaN beside a number; only a block of nothing else keeps it.
      for (int64_t c = 1; c < kFp4Block; ++c) amax = std::fmax(amax, std::fabs(x.load(x.offset(r, begin + c))));
      const float unrounded = global * amax / kFp4Largest;
      // NaN has one code here, as in hardware: the positive one, whatever the sign of the float's.
      const uint8_t code = unrounded != unrounded ? uint8_t{0x7F} : float_to_e4m3(clamp_e4m3(unrounded));
      scales.as<uint8_t>()[scales.offset(r, b)] = code;
      const float scale = e4m3_to_float(code);
      const float factor = scale == 0.0f ? 0.0f : global / scale;
      for (int64_t c = 0; c < kFp4Block; c += 2) {
        const uint8_t low = float_to_e2m1(x.load(x.offset(r, begin + c)) * factor);
        const uint8_t high = float_to_e2m1(x.load(x.offset(r, begin + c + 1)) * factor);
        codes.as<uint8_t>()[codes.offset(r, (begin + c) / 2)] = static_cast<uint8_t>(low | (high << 4));
      }
    }
}

// Where the scalars lie, for a kernel on a GPU.
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
