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

inline constexpr int kFp4BlockColumns = 16;

inline constexpr float kFp4LargestCode = 6.0f;
inline constexpr uint8_t kFp4ScaleNan = 0x7F;

// One block of 16 columns: its scale, and its codes two a byte.
template <class T, bool kChecked>
FAULTLINE_HD void quantize_fp4_block(const View<T, kChecked>& x, int64_t x_at, float inverse,
                                     const View<uint8_t, kChecked>& codes, int64_t codes_at,
                                     const View<uint8_t, kChecked>& scales, int64_t scale_at) {
  float values[kFp4BlockColumns];
  for (int i = 0; i < kFp4BlockColumns; ++i) values[i] = to_float(x.load(x_at + i));
  float amax = fabsf(values[0]);
  for (int i = 1; i < kFp4BlockColumns; ++i) amax = fmaxf(amax, fabsf(values[i]));
  const uint8_t rounded = float_to_e4m3(clamp_e4m3(inverse * amax / kFp4LargestCode));
  // The hardware's conversion gives the positive NaN, whatever the sign of the float's.
  const uint8_t code = e4m3_is_nan(rounded) ? kFp4ScaleNan : rounded;
  scales.store(scale_at, code);
  const float scale = e4m3_to_float(code);
  const float factor = scale == 0.0f ? 0.0f : inverse / scale;
  for (int i = 0; i < kFp4BlockColumns; i += 2) {
    const uint8_t low = float_to_e2m1(values[i] * factor);
    const uint8_t high = float_to_e2m1(values[i + 1] * factor);
    codes.store(codes_at + i / 2, static_cast<uint8_t>(low | (high << 4)));
  }
}

template <class T, bool kChecked>
struct QuantizeFp4Body {
  static constexpr int kBlockColumns = kFp4BlockColumns;
  static constexpr float kLargestCode = kFp4LargestCode;
  static constexpr uint8_t kE4m3Nan = kFp4ScaleNan;

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
      for (int64_t b = t; b < columns / kBlockColumns; b += block.threads())
        quantize_fp4_block<T, kChecked>(x_view, row * x_stride + b * kBlockColumns, inverse, codes_view,
                                        row * codes_stride + b * kBlockColumns / 2, scales_view,
                                        row * scales_stride + b);
    });
  }
};

// The same for rows that go to experts: row t*k+j has the largest of the `each` input scales of expert ids[t][j]. ids
// [T, k] int32 with a row stride; x has a row a token, or one a choice.
template <class T, bool kChecked>
struct QuantizeFp4ExpertsBody {
  Operand<T> x;
  Operand<int32_t> ids;
  Operand<uint8_t> codes;
  Operand<uint8_t> scales;
  int64_t columns = 0;
  int64_t k = 1;
  int64_t rows_per_x = 1;  // k where x has a row a token
  int64_t x_stride = 0;
  int64_t ids_stride = 0;
  int64_t codes_stride = 0;
  int64_t scales_stride = 0;
  int32_t each = 1;          // input scales an expert
  InputScales input_scales;  // expert-major; in memory that the kernel reads
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto x_view = open<kChecked>(x, log, block);
    const auto ids_view = open<kChecked>(ids, log, block);
    const auto codes_view = open<kChecked>(codes, log, block);
    const auto scales_view = open<kChecked>(scales, log, block);
    const int64_t row = block.index(0);
    block.for_each_thread([&](int t) {
      const int64_t expert = ids_view.load(row / k * ids_stride + row % k);
      const float inverse = 1.0f / input_scale(expert, block.place());
      for (int64_t b = t; b < columns / kFp4BlockColumns; b += block.threads())
        quantize_fp4_block<T, kChecked>(x_view, row / rows_per_x * x_stride + b * kFp4BlockColumns, inverse, codes_view,
                                        row * codes_stride + b * kFp4BlockColumns / 2, scales_view,
                                        row * scales_stride + b);
    });
  }

 private:
  // The largest, a NaN winning; of an expert that does not exist NaN, and a record.
  FAULTLINE_HD float input_scale(int64_t expert, const Place* place) const {
    if constexpr (kChecked) {
      const int64_t experts = input_scales.count / each;
      if (expert < 0 || expert >= experts) {
        static_cast<void>(View<int32_t, true>(nullptr, experts, ids.position, log, place).load(expert));
        return BadValue<float>::get();
      }
    }
    float largest = *input_scales.at[expert * each];
    for (int64_t i = 1; i < each; ++i) {
      const float value = *input_scales.at[expert * each + i];
      if (value > largest || value != value) largest = value;
    }
    return largest;
  }
};

#ifdef FAULTLINE_HAVE_CUDA
bool cuda_faster(const LaunchContext& context, Grid grid, const QuantizeFp4Body<Bf16, false>& body);  // cuda_formats.cu
#endif

template <class T, bool kChecked>
void launch_quantize_fp4(const LaunchContext& context, int64_t rows, const QuantizeFp4Body<T, kChecked>& body) {
  launch(context, Grid{rows}, kQuantizeFp4Threads, 0, body);
}

template <class T, bool kChecked>
void launch_quantize_fp4_experts(const LaunchContext& context, int64_t rows,
                                 const QuantizeFp4ExpertsBody<T, kChecked>& body) {
  launch(context, Grid{rows}, kQuantizeFp4Threads, 0, body);
}

}  // namespace faultline::kernels
