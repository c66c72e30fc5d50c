// Rotary position embedding of the first `rope_dim` dims of each head; the other dims are copied.
//
// One block takes one token; its threads share the token's (head, pair) and (head, dim) items. Pair i is (2i, 2i + 1)
// when interleaved, else (i, i + rope_dim / 2), and stays where it was. angle = position * inv_freq[i] in float, cos
// and sin in float, products in float, one rounding: the arithmetic of a float cos/sin cache (SGLang v0.5.9,
// layers/rotary_embedding). inv_freq is computed once by the launcher, since a float pow on a device would differ.
// x, out: [tokens, heads, dim], strides in elements; positions: [tokens].
#pragma once

#include <cmath>

#include "kernels/operand.h"

namespace faultline::kernels {

inline constexpr int kRopeThreads = 64;
inline constexpr int64_t kMaxRopePairs = 128;  // the frequencies travel as a launch parameter; GLM-5 has 32 pairs

template <class T>
struct RopeOperands {
  Operand<T> x;
  Operand<int32_t> positions;
  Operand<T> out;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t rope_dim = 0;  // 0: copies everything
  int64_t x_token_stride = 0;
  int64_t x_head_stride = 0;
  int64_t out_token_stride = 0;
  int64_t out_head_stride = 0;
  int64_t position_stride = 1;
  bool interleaved = true;
  float inv_freq[kMaxRopePairs] = {};
};

template <class T, bool kChecked>
struct RopeBody {
  RopeOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto x = open<kChecked>(operands.x, log, block);
    const auto positions = open<kChecked>(operands.positions, log, block);
    const auto out = open<kChecked>(operands.out, log, block);
    const int64_t token = block.index(0);
    const int64_t pairs = operands.rope_dim / 2;
    const int64_t rest = operands.dim - operands.rope_dim;
    float* cosine = block.template shared<float>(kMaxRopePairs);
    float* sine = block.template shared<float>(kMaxRopePairs);

    block.for_each_thread([&](int t) {
      if (t >= pairs) return;
      const auto position = static_cast<float>(positions.load(token * operands.position_stride));
      for (int64_t i = t; i < pairs; i += block.threads()) {
        const float angle = position * operands.inv_freq[i];
        cosine[i] = cosf(angle);
        sine[i] = sinf(angle);
      }
    });
    block.for_each_thread([&](int t) {
      for (int64_t item = t; item < operands.heads * pairs; item += block.threads()) {
        const int64_t head = item / pairs;
        const int64_t i = item % pairs;
        const int64_t first = operands.interleaved ? 2 * i : i;
        const int64_t second = operands.interleaved ? 2 * i + 1 : i + pairs;
        const int64_t from = token * operands.x_token_stride + head * operands.x_head_stride;
        const int64_t to = token * operands.out_token_stride + head * operands.out_head_stride;
        const float a = to_float(x.load(from + first));
        const float b = to_float(x.load(from + second));
        out.store(to + first, narrow<T>(a * cosine[i] - b * sine[i]));
        out.store(to + second, narrow<T>(b * cosine[i] + a * sine[i]));
      }
      for (int64_t item = t; item < operands.heads * rest; item += block.threads()) {
        const int64_t head = item / rest;
        const int64_t d = operands.rope_dim + item % rest;
        out.store(token * operands.out_token_stride + head * operands.out_head_stride + d,
                  x.load(token * operands.x_token_stride + head * operands.x_head_stride + d));
      }
    });
  }
};

#ifdef FAULTLINE_HAVE_CUDA
bool cuda_faster(const LaunchContext& context, Grid grid, const RopeBody<Bf16, false>& body);  // cuda_rows.cu
#endif

template <class T, bool kChecked>
void launch_rope(const LaunchContext& context, const RopeOperands<T>& operands) {
  constexpr size_t kSharedBytes = 2 * kMaxRopePairs * sizeof(float);
  launch(context, Grid{operands.tokens}, kRopeThreads, kSharedBytes, RopeBody<T, kChecked>{operands, context.log});
}

}  // namespace faultline::kernels
