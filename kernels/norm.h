// RMSNorm and LayerNorm.
//
// One block normalises one row of `columns` values; thread t takes columns t, t + threads, …
//   rmsnorm    y = narrow(x * rsqrt(mean(x^2) + eps)); out = narrow(y * weight): two roundings, as the server's kernel
//   and
//              Hugging Face's module have them
//   layernorm  out = narrow((x - mean) * rsqrt(variance + eps) * weight + bias): one rounding; the variance is of the
//              differences, not a difference of squares, which would cancel
// x, out: [rows, columns] with row strides in elements; weight, bias: [columns], contiguous.
#pragma once

#include <cmath>

#include "kernels/operand.h"

namespace faultline::kernels {

inline constexpr int kNormThreads = 128;

template <class T>
struct NormOperands {
  Operand<T> x;
  ScalarOperand weight;
  ScalarOperand bias;  // layernorm only
  Operand<T> out;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t x_stride = 0;
  int64_t out_stride = 0;
  float eps = 0;
};

template <class T, bool kChecked>
struct RmsNormBody {
  NormOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto x = open<kChecked>(operands.x, log, block);
    const auto out = open<kChecked>(operands.out, log, block);
    const ScalarView<kChecked> weight(operands.weight, log, block);
    const int64_t columns = operands.columns;
    const int64_t x_row = block.index(0) * operands.x_stride;
    const int64_t out_row = block.index(0) * operands.out_stride;

    PerThread<float, Block> squares(block);
    block.for_each_thread([&](int t) {
      float sum = 0;
      for (int64_t c = t; c < columns; c += block.threads()) {
        const float value = to_float(x.load(x_row + c));
        sum += value * value;
      }
      squares[t] = sum;
    });
    const float scale = 1.0f / sqrtf(block.sum(squares) / static_cast<float>(columns) + operands.eps);
    block.for_each_thread([&](int t) {
      for (int64_t c = t; c < columns; c += block.threads()) {
        const T normalized = narrow<T>(to_float(x.load(x_row + c)) * scale);
        out.store(out_row + c, narrow<T>(to_float(normalized) * weight.load(c)));
      }
    });
  }
};

template <class T, bool kChecked>
struct LayerNormBody {
  NormOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto x = open<kChecked>(operands.x, log, block);
    const auto out = open<kChecked>(operands.out, log, block);
    const ScalarView<kChecked> weight(operands.weight, log, block);
    const ScalarView<kChecked> bias(operands.bias, log, block);
    const int64_t columns = operands.columns;
    const int64_t x_row = block.index(0) * operands.x_stride;
    const int64_t out_row = block.index(0) * operands.out_stride;

    PerThread<float, Block> partial(block);
    block.for_each_thread([&](int t) {
      float sum = 0;
      for (int64_t c = t; c < columns; c += block.threads()) sum += to_float(x.load(x_row + c));
      partial[t] = sum;
    });
    const float mean = block.sum(partial) / static_cast<float>(columns);
    block.for_each_thread([&](int t) {
      float sum = 0;
      for (int64_t c = t; c < columns; c += block.threads()) {
        const float difference = to_float(x.load(x_row + c)) - mean;
        sum += difference * difference;
      }
      partial[t] = sum;
    });
    const float scale = 1.0f / sqrtf(block.sum(partial) / static_cast<float>(columns) + operands.eps);
    block.for_each_thread([&](int t) {
      for (int64_t c = t; c < columns; c += block.threads()) {
        const float normalized = (to_float(x.load(x_row + c)) - mean) * scale;
        out.store(out_row + c, narrow<T>(normalized * weight.load(c) + bias.load(c)));
      }
    });
  }
};

#ifdef FAULTLINE_HAVE_CUDA
bool cuda_faster(const LaunchContext& context, Grid grid, const RmsNormBody<Bf16, false>& body);    // cuda_rows.cu
bool cuda_faster(const LaunchContext& context, Grid grid, const LayerNormBody<Bf16, false>& body);  // cuda_rows.cu
#endif

template <class T, bool kChecked>
void launch_rmsnorm(const LaunchContext& context, const NormOperands<T>& operands) {
  launch(context, Grid{operands.rows}, kNormThreads, 0, RmsNormBody<T, kChecked>{operands, context.log});
}

template <class T, bool kChecked>
void launch_layernorm(const LaunchContext& context, const NormOperands<T>& operands) {
  launch(context, Grid{operands.rows}, kNormThreads, 0, LayerNormBody<T, kChecked>{operands, context.log});
}

}  // namespace faultline::kernels
