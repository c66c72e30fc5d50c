// A query in FP8 without a scale: out = e4m3(clamp(x)), kept in the activations' type.
//
// One block a head of one token. x, out: [tokens, heads, dim], strides in elements. (SGLang,
// mla_quantize_and_rope_for_fp8: the query is cast with a scale of 1.)
#pragma once

#include "kernels/cache_rows.h"

namespace faultline::kernels {

inline constexpr int kRoundFp8Threads = 64;

template <class T, bool kChecked>
struct RoundFp8Body {
  Operand<T> x;
  Operand<T> out;
  int64_t dim = 0;
  int64_t x_token_stride = 0;
  int64_t x_head_stride = 0;
  int64_t out_token_stride = 0;
  int64_t out_head_stride = 0;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto x_view = open<kChecked>(x, log, block);
    const auto out_view = open<kChecked>(out, log, block);
    const int64_t from = block.index(0) * x_token_stride + block.index(1) * x_head_stride;
    const int64_t to = block.index(0) * out_token_stride + block.index(1) * out_head_stride;
    block.for_each_thread([&](int t) {
      for (int64_t d = t; d < dim; d += block.threads())
        out_view.store(to + d, narrow<T>(to_float(to_e4m3(to_float(x_view.load(from + d))))));
    });
  }
};

template <class T, bool kChecked>
void launch_round_fp8(const LaunchContext& context, Grid grid, const RoundFp8Body<T, kChecked>& body) {
  launch(context, grid, kRoundFp8Threads, 0, body);
}

}  // namespace faultline::kernels
