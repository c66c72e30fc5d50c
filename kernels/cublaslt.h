// cuBLASLt behind one function, opened at run time: a program that was built with CUDA starts, and computes the same
// with its own bodies, where the library is missing or of another major version.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace faultline::kernels {

// out[b][r][n] = sum_k x[b][r][k] * w[b][n][k] (w[b][k][n] with weight_kn), for bf16 x and w, sums in float. Strides in
// elements. Everything lies in device memory.
struct DenseProduct {
  const void* x = nullptr;
  int64_t x_stride = 0;
  int64_t x_batch = 0;
  const void* w = nullptr;
  int64_t w_stride = 0;
  int64_t w_batch = 0;
  bool weight_kn = false;
  void* out = nullptr;
  bool out_f32 = false;  // else bf16
  int64_t out_stride = 0;
  int64_t out_batch = 0;
  int64_t rows = 0;
  int64_t out_columns = 0;
  int64_t columns = 0;
  int64_t batch = 1;
};

// False: the library is absent or has no algorithm for this product, and nothing was launched. Asynchronous on
// context.stream; the first call (and the first of a shape) makes handles and asks for the algorithm, so it must not
// happen in a capture.
bool cublaslt_product(const LaunchContext& context, const DenseProduct& product);

// For reports: which library serves dense products, "cuBLASLt 13.0.2 (libcublasLt.so.13)", or why none does.
const char* cublaslt_status();

}  // namespace faultline::kernels
