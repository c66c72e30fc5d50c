#include "ops/weights.h"

#include <algorithm>

#include "kernels/blas.h"

namespace faultline {
namespace {

constexpr int64_t kPanelRows = 64;  // weight rows that are floats at a time

TensorView view_at(const Argument& argument, size_t at) {
  return at < argument.views.size() ? argument.views[at] : TensorView{};
}

}  // namespace

Weight weight_at(const OpCall& call, int values, int block_scale, int global_scale, size_t at) {
  const Argument& list = call.argument(values);
  FAULTLINE_CHECK(at < list.views.size());
  return Weight{list.views[at], view_at(call.argument(block_scale), at), view_at(call.argument(global_scale), at),
                list.format};
}

kernels::MatmulWeight matmul_weight(const Weight& weight) {
  kernels::MatmulWeight result;
  result.values = weight.values.data;
  result.stride = weight.values.stride[0];
  result.rows = weight.rows();
  result.columns = weight.columns();
  if (weight.format == Format::kNvfp4) {
    result.type = kernels::WeightType::kFp4;
    result.fp4_scales = weight.block_scale.as<uint8_t>();
    result.scale_stride = weight.block_scale.stride[0];
    return result;
  }
  switch (weight.values.dtype) {
    case Dtype::kF32:
      result.type = kernels::WeightType::kF32;
      break;
    case Dtype::kBF16:
      result.type = kernels::WeightType::kBf16;
      break;
    case Dtype::kF16:
      result.type = kernels::WeightType::kF16;
      break;
    case Dtype::kF8E4M3:
      result.type = kernels::WeightType::kFp8;
      if (weight.block_scale.data == nullptr) break;
      FAULTLINE_CHECK(weight.block_scale.dtype == Dtype::kF32);
      result.fp8_scales = weight.block_scale.as<float>();
      result.scale_stride = weight.fp8_blocks() ? weight.block_scale.stride[0] : 0;
      break;
    default:
      FAULTLINE_CHECK(!"a weight of this dtype has no product");
  }
  return result;
}

void dequantize_row(const Weight& weight, int64_t row, float* out) {
  const TensorView& values = weight.values;
  const int64_t columns = weight.columns();
  if (weight.format == Format::kNvfp4) {
    dequantize_codes(values, weight.block_scale, row, out);
    if (weight.global_scale.data == nullptr) return;
    const float global = weight.global_scale.load(0);
    for (int64_t c = 0; c < columns; ++c) out[c] *= global;
    return;
  }
  load_row(values, row, out);
  if (values.dtype != Dtype::kF8E4M3 || weight.block_scale.data == nullptr) return;
  for (int64_t c = 0; c < columns; ++c)
    out[c] *= weight.fp8_blocks() ? weight.block_scale.load(weight.block_scale.offset(row / kFp8Block, c / kFp8Block))
                                  : weight.block_scale.load(0);
}

void dequantize_codes(const TensorView& codes, const TensorView& scales, int64_t row, float* out) {
  const uint8_t* bytes = codes.as<uint8_t>() + codes.offset(row);
  const uint8_t* scale = scales.as<uint8_t>() + scales.offset(row);
  const int64_t columns = codes.dim(1) * 2;
  for (int64_t c = 0; c < columns; ++c) {
    const uint8_t code = c % 2 == 0 ? bytes[c / 2] & 15u : bytes[c / 2] >> 4;
    out[c] = e2m1_to_float(code) * e4m3_to_float(scale[c / kFp4Block]);
  }
}

float largest_scalar(const Argument& argument) {
  return largest_scalar(argument, 0, static_cast<int64_t>(argument.views.size()));
}

float largest_scalar(const Argument& argument, int64_t group, int64_t each) {
  const auto views = argument.views.subspan(static_cast<size_t>(group * each), static_cast<size_t>(each));
  float largest = views.front().load(0);
  for (const TensorView& view : views) {
    const float value = view.load(0);
    if (value > largest || value != value) largest = value;
  }
  return largest;
}

void load_row(const TensorView& view, int64_t row, float* out) {
  const int64_t begin = view.offset(row);
  const int64_t columns = view.dim(1);
  switch (view.dtype) {
    case Dtype::kF32:
      std::copy(view.as<float>() + begin, view.as<float>() + begin + columns, out);
      return;
    case Dtype::kBF16:
      for (int64_t c = 0; c < columns; ++c) out[c] = to_float(view.as<Bf16>()[begin + c]);
      return;
    default:
      for (int64_t c = 0; c < columns; ++c) out[c] = view.load(begin + c);
  }
}

void store_row(const TensorView& view, int64_t row, const float* values) {
  const int64_t begin = view.offset(row);
  const int64_t columns = view.dim(1);
  if (view.dtype == Dtype::kF32) {
    std::copy(values, values + columns, view.as<float>() + begin);
    return;
  }
  for (int64_t c = 0; c < columns; ++c) view.store(begin + c, values[c]);
}

std::vector<float> load_rows(const TensorView& view) {
  std::vector<float> result(static_cast<size_t>(view.elements()));
  for (int64_t row = 0; row < view.dim(0); ++row) load_row(view, row, result.data() + row * view.dim(1));
  return result;
}

void scale_rows(float* values, int64_t rows, int64_t columns, int64_t stride, float factor) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < columns; ++n) values[r * stride + n] *= factor;
}

void reference_product(const float* x, int64_t rows, const Weight& weight, float* out, int64_t out_stride) {
  if (rows == 0) return;
  const int64_t columns = weight.columns();
  std::vector<float> panel(static_cast<size_t>(kPanelRows * columns));
  for (int64_t begin = 0; begin < weight.rows(); begin += kPanelRows) {
    const int64_t count = std::min(kPanelRows, weight.rows() - begin);
    for (int64_t n = 0; n < count; ++n) dequantize_row(weight, begin + n, panel.data() + n * columns);
    kernels::sgemm_nt(rows, count, columns, x, columns, panel.data(), columns, out + begin, out_stride);
  }
}

}  // namespace faultline
