#include "kernels/blas.h"

#include <cblas.h>

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace faultline::kernels {
namespace {

void single_thread() {
  static const bool done = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

blasint narrow(int64_t value) {
  FAULTLINE_CHECK(value >= 0 && value <= std::numeric_limits<blasint>::max());
  return static_cast<blasint>(value);
}

void sgemm(CBLAS_TRANSPOSE transpose_b, int64_t rows, int64_t columns, int64_t k, const float* a, int64_t a_stride,
           const float* b, int64_t b_stride, float* out, int64_t out_stride) {
  if (rows == 0 || columns == 0) return;
  single_thread();
  // A stride of a single row may be anything, yet BLAS insists on at least the row's length.
  const int64_t b_row = transpose_b == CblasTrans ? k : columns;
  cblas_sgemm(CblasRowMajor, CblasNoTrans, transpose_b, narrow(rows), narrow(columns), narrow(k), 1.0f, a,
              narrow(std::max(a_stride, k)), b, narrow(std::max(b_stride, b_row)), 0.0f, out,
              narrow(std::max(out_stride, columns)));
}

}  // namespace

void sgemm_nt(int64_t rows, int64_t columns, int64_t k, const float* a, int64_t a_stride, const float* b,
              int64_t b_stride, float* out, int64_t out_stride) {
  sgemm(CblasTrans, rows, columns, k, a, a_stride, b, b_stride, out, out_stride);
}

void sgemm_nn(int64_t rows, int64_t columns, int64_t k, const float* a, int64_t a_stride, const float* b,
              int64_t b_stride, float* out, int64_t out_stride) {
  sgemm(CblasNoTrans, rows, columns, k, a, a_stride, b, b_stride, out, out_stride);
}

}  // namespace faultline::kernels
