// Dot products and scaled sums of contiguous floats in shared memory: the inner loops of attention and of the indexer.
#pragma once

#include <cstdint>

#include "base/codec.h"

namespace faultline::kernels {

// Eight running sums, so that a host compiler can use vector registers without reordering a sum on its own.
FAULTLINE_HD inline float dot(const float* a, const float* b, int64_t count) {
  constexpr int kLanes = 8;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int k = 0; k < kLanes; ++k) lanes[k] += a[i + k] * b[i + k];
  for (; i < count; ++i) lanes[0] += a[i] * b[i];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// out[i] += factor * values[i]
FAULTLINE_HD inline void add_scaled(float* __restrict out, float factor, const float* __restrict values,
                                    int64_t count) {
  constexpr int kLanes = 8;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int k = 0; k < kLanes; ++k) out[i + k] += factor * values[i + k];
  for (; i < count; ++i) out[i] += factor * values[i];
}

}  // namespace faultline::kernels
