// Hadamard transform of each head: out = dim^-0.5 * H x with Sylvester's matrix, H[i][j] = (-1)^popcount(i & j).
//
// One block a head of one token. log2(dim) passes over a row in shared memory: pass p adds and subtracts the values
// whose positions differ in bit p, in float; then one product with the scale and one rounding (SGLang,
// rotate_activation in layers/attention/nsa/nsa_indexer.py, over fast_hadamard_transform). x, out: [tokens, heads,
// dim], strides in elements; dim is a power of two.
#pragma once

#include <cmath>

#include "kernels/operand.h"

namespace faultline::kernels {

inline constexpr int kHadamardThreads = 64;

template <class T>
struct HadamardOperands {
  Operand<T> x;
  Operand<T> out;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t x_token_stride = 0;
  int64_t x_head_stride = 0;
  int64_t out_token_stride = 0;
  int64_t out_head_stride = 0;
};

template <class T, bool kChecked>
struct HadamardBody {
  HadamardOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto x = open<kChecked>(operands.x, log, block);
    const auto out = open<kChecked>(operands.out, log, block);
    const int64_t dim = operands.dim;
    const int64_t from = block.index(0) * operands.x_token_stride + block.index(1) * operands.x_head_stride;
    const int64_t to = block.index(0) * operands.out_token_stride + block.index(1) * operands.out_head_stride;
    const float scale = 1.0f / sqrtf(static_cast<float>(dim));
    float* row = block.template shared<float>(dim);
    block.for_each_thread([&](int t) {
      for (int64_t d = t; d < dim; d += block.threads()) row[d] = to_float(x.load(from + d));
    });
    for (int64_t bit = 1; bit < dim; bit *= 2)
      block.for_each_thread([&](int t) {
        for (int64_t pair = t; pair < dim / 2; pair += block.threads()) {
          const int64_t low = pair / bit * 2 * bit + pair % bit;
          const float a = row[low];
          const float b = row[low + bit];
          row[low] = a + b;
          row[low + bit] = a - b;
        }
      });
    block.for_each_thread([&](int t) {
      for (int64_t d = t; d < dim; d += block.threads()) out.store(to + d, narrow<T>(row[d] * scale));
    });
  }
};

template <class T, bool kChecked>
void launch_hadamard(const LaunchContext& context, const HadamardOperands<T>& operands) {
  launch(context, Grid{operands.tokens, operands.heads}, kHadamardThreads,
         static_cast<size_t>(operands.dim) * sizeof(float), HadamardBody<T, kChecked>{operands, context.log});
}

}  // namespace faultline::kernels
