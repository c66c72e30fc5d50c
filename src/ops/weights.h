// Weights as the references see them: plain floats, whatever the checkpoint's precision (ops/kinds.h, Linear).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/matmul.h"
#include "ops/op.h"

namespace faultline {

using kernels::kFp4Block;
using kernels::kFp8Block;
inline constexpr float kFp4Largest = 6.0f;  // largest e2m1 magnitude

// One matrix [rows, columns] of a list, with the scales that its precision has; null views where it has none.
struct Weight {
  TensorView values;
  TensorView block_scale;   // NVFP4: e4m3 [rows, columns / 16]; FP8: one F32, or F32 [rows / 128, columns / 128]
  TensorView global_scale;  // NVFP4: one F32
  Format format = Format::kPlain;

  int64_t rows() const { return values.dim(0); }
  int64_t columns() const { return format == Format::kNvfp4 ? values.dim(1) * 2 : values.dim(1); }
  bool fp8_blocks() const { return block_scale.data != nullptr && block_scale.elements() > 1; }
};

// Matrix `at` of the lists in three operands of a call.
Weight weight_at(const OpCall& call, int values, int block_scale, int global_scale, size_t at);

// The same as the products of kernels/ take it.
kernels::MatmulWeight matmul_weight(const Weight& weight);

// One row as floats; without a global scale where that view is null.
void dequantize_row(const Weight& weight, int64_t row, float* out);

// NVFP4 activations as floats without their global scale: code * e4m3 scale.
void dequantize_codes(const TensorView& codes, const TensorView& scales, int64_t row, float* out);

// A scalar operand's maximum over its list. NaN wins, as in torch.max.
float largest_scalar(const Argument& argument);
// Of the `each` views of group `group`.
float largest_scalar(const Argument& argument, int64_t group, int64_t each);

// A rank 2 view's row as floats.
void load_row(const TensorView& view, int64_t row, float* out);
void store_row(const TensorView& view, int64_t row, const float* values);
std::vector<float> load_rows(const TensorView& view);

// values[r][n] *= factor: an epilogue.
void scale_rows(float* values, int64_t rows, int64_t columns, int64_t stride, float factor);

// out[r][n] = x[r] . w[n], with x [rows, columns] and out [rows, out_stride] in floats. Dequantizes a panel at a time.
void reference_product(const float* x, int64_t rows, const Weight& weight, float* out, int64_t out_stride);

}  // namespace faultline
