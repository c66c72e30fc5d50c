// OpenBLAS behind one function, held to one thread: workers run in parallel, one a core.
#pragma once

#include <cstdint>

namespace faultline::kernels {

// out[r][c] = sum_k a[r][k] * b[c][k]; a [rows, k], b [columns, k], out [rows, columns], strides in elements.
void sgemm_nt(int64_t rows, int64_t columns, int64_t k, const float* a, int64_t a_stride, const float* b,
              int64_t b_stride, float* out, int64_t out_stride);
// out[r][c] = sum_k a[r][k] * b[k][c]; b [k, columns].
void sgemm_nn(int64_t rows, int64_t columns, int64_t k, const float* a, int64_t a_stride, const float* b,
              int64_t b_stride, float* out, int64_t out_stride);

}  // namespace faultline::kernels
