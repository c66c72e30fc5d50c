// NVFP4 activations, as SGLang's fp4_quantize makes them.
//
// One block a row; thread t takes blocks of 16 columns t, t + threads, …
//   global = 1 / input_scale, not guarded: an input_scale of 0 gives inf
//   scale  = e4m3(clamp(global * amax / 6)); the largest magnitude ignores a NaN beside numbers, as the hardware's max
//   does code   = e2m1(x * (scale == 0 ? 0 : global / scale)); two codes a byte, the even column in the low nibble
// x [rows, columns] with a row stride; codes [rows, columns / 2], scales [rows, columns / 16] bytes with row strides.
#pragma once

#include <cmath>

#include "kernels/operand.h"

namespace faultline::kernels {

inline constexpr int kQuantizeFp4Threads = 64;

// Scalars in a GPU's memory, of which the largest is the input scale (a NaN wins): the host cannot read them.
struct InputScales {
  static constexpr int kCapacity = 1024;  // 256 experts x 2 projections, twice; a launch parameter has 32764 bytes
  int32_t count = 0;                      // 0: `global` is known
  const float* at[kCapacity];
};

template <class T, bool kChecked>
struct QuantizeFp4Body {
  static constexpr int kBlockColumns = 16;
  static constexpr float kLargestCode = 6.0f;
  static constexpr uint8_t kE4m3Nan = 0x7F;

  Operand<T> x;
  Operand<uint8_t> codes;
  Operand<uint8_t> scales;
  int64_t columns = 0;
  int64_t x_stride = 0;
  int64_t codes_stride = 0;
  int64_t scales_stride = 0;
  float global = 0;
  InputScales input_scales;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto x_view = open<kChecked>(x, log, block);
    const auto codes_view = open<kChecked>(codes, log, block);
    const auto scales_view = open<kChecked>(scales, log, block);
    const int64_t row = block.index(0);
    float inverse = global;
    if (input_scales.count > 0) {
      PerThread<float, Block> largest(block);
      block.for_each_thread([&](int t) {
        float best = -INFINITY;
        for (int i = t; i < input_scales.count; i += block.threads()) {
          const float value = *input_scales.at[i];
          if (value > best || value != value) best = value;
        }
        largest[t] = best;
      });
      inverse = 1.0f / block.max(largest);
    }
    block.for_each_thread([&](int t) {
      for (int64_t b = t; b < columns / kBlockColumns; b += block.threads()) {
        float values[kBlockColumns];
        for (int i = 0; i < kBlockColumns; ++i)
          values[i] = to_float(x_view.load(row * x_stride + b * kBlockColumns + i));
        float amax = fabsf(values[0]);
        for (int i = 1; i < kBlockColumns; ++i) amax = fmaxf(amax, fabsf(values[i]));
        const uint8_t rounded = float_to_e4m3(clamp_e4m3(inverse * amax / kLargestCode));
        // The hardware's conversion gives the positive NaN, whatever the sign of the float's.
        const uint8_t code = e4m3_is_nan(rounded) ? kE4m3Nan : rounded;
        scales_view.store(row * scales_stride + b, code);
        const float scale = e4m3_to_float(code);
        const float factor = scale == 0.0f ? 0.0f : inverse / scale;
        for (int i = 0; i < kBlockColumns; i += 2) {
          const uint8_t low = float_to_e2m1(values[i] * factor);
          const uint8_t high = float_to_e2m1(values[i + 1] * factor);
          codes_view.store(row * codes_stride + (b * kBlockColumns + i) / 2, static_cast<uint8_t>(low | (high << 4)));
        }
      }
    });
  }
};

#ifdef FAULTLINE_HAVE_CUDA
bool cuda_faster(const LaunchContext& context, Grid grid, const QuantizeFp4Body<Bf16, false>& body);  // cuda_formats.cu
#endif

template <class T, bool kChecked>
void launch_quantize_fp4(const LaunchContext& context, int64_t rows, const QuantizeFp4Body<T, kChecked>& body) {
  launch(context, Grid{rows}, kQuantizeFp4Threads, 0, body);
}

}  // namespace faultline::kernels
