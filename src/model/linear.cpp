#include "model/linear.h"

#include <algorithm>

namespace faultline {
namespace {

std::string shape_text(const TensorView& view) {
  return fmt::format("[{}]", fmt::join(view.shape.begin(), view.shape.begin() + view.rank, ", "));
}

std::string described(const TensorView& view) {
  return fmt::format("{} {}", dtype_name(view.dtype), shape_text(view));
}

bool is_scalar(const TensorView& view) {
  return view.elements() == 1 && view.rank <= 1;
}

bool has_shape(const TensorView& view, int64_t rows, int64_t columns) {
  return view.rank == 2 && view.shape[0] == rows && view.shape[1] == columns;
}

int64_t blocks(int64_t size) {
  return (size + kFp8BlockSize - 1) / kFp8BlockSize;
}

// An F32 scalar beside the weight; an empty view when it is absent.
Result<TensorView> scalar(std::string_view module, std::string_view suffix, const TensorLookup& find) {
  const std::string name = fmt::format("{}.{}", module, suffix);
  const TensorView* found = find(name);
  if (found == nullptr) return TensorView{};
  if (found->dtype != Dtype::kF32 || !is_scalar(*found)) {
    return bad_input("{} is {}; it must be one F32 number", name, described(*found));
  }
  return *found;
}

Result<LinearWeight> resolve_nvfp4(LinearWeight linear, const TensorLookup& find) {
  linear.precision = Precision::kNvfp4;
  linear.in_features = 2 * linear.weight.shape[1];
  if (linear.in_features % kNvfp4BlockSize != 0) {
    return bad_input("{}.weight is {}: {} columns are no multiple of the NVFP4 block of {}", linear.name,
                     described(linear.weight), linear.in_features, kNvfp4BlockSize);
  }
  const TensorView* scale = find(linear.name + ".weight_scale");
  if (scale == nullptr) {
    return bad_input("{}.weight is U8 (NVFP4 codes), but {}.weight_scale is missing; export the checkpoint again",
                     linear.name, linear.name);
  }
  const int64_t columns = linear.in_features / kNvfp4BlockSize;
  if (scale->dtype != Dtype::kF8E4M3 || !has_shape(*scale, linear.out_features, columns)) {
    return bad_input("{}.weight_scale is {}; NVFP4 needs F8_E4M3 [{}, {}], one scale per {} columns", linear.name,
                     described(*scale), linear.out_features, columns, kNvfp4BlockSize);
  }
  linear.block_scale = *scale;
  FAULTLINE_TRY(linear.global_scale, scalar(linear.name, "weight_scale_2", find));
  if (linear.global_scale.data == nullptr) {
    return bad_input("{}.weight is U8 (NVFP4 codes), but {}.weight_scale_2 is missing; export the checkpoint again",
                     linear.name, linear.name);
  }
  return linear;
}

Result<LinearWeight> resolve_fp8(LinearWeight linear, const TensorLookup& find) {
  const std::string inverse_name = linear.name + ".weight_scale_inv";
  const std::string plain_name = linear.name + ".weight_scale";
  const TensorView* inverse = find(inverse_name);
  const TensorView* scale = inverse != nullptr ? inverse : find(plain_name);
  const std::string& name = inverse != nullptr ? inverse_name : plain_name;
  if (scale == nullptr) {
    return bad_input("{}.weight is F8_E4M3, but neither {} nor {} is there", linear.name, plain_name, inverse_name);
  }
  const int64_t rows = blocks(linear.out_features);
  const int64_t columns = blocks(linear.in_features);
  const bool blockwise = has_shape(*scale, rows, columns);
  if (scale->dtype != Dtype::kF32 || (!blockwise && !is_scalar(*scale))) {
    return bad_input("{} is {}; an F8_E4M3 weight needs one F32 number, or F32 [{}, {}], one a block of {}x{}", name,
                     described(*scale), rows, columns, kFp8BlockSize, kFp8BlockSize);
  }
  linear.precision = blockwise ? Precision::kFp8Block : Precision::kFp8Tensor;
  linear.block_scale = *scale;
  return linear;
}

}  // namespace

std::string_view precision_name(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return "BF16";
    case Precision::kF16:
      return "F16";
    case Precision::kF32:
      return "F32";
    case Precision::kFp8Tensor:
      return "FP8";
    case Precision::kFp8Block:
      return "FP8-128x128";
    case Precision::kNvfp4:
      return "NVFP4";
  }
  return "";
}

Result<LinearWeight> resolve_linear(std::string_view module, const TensorLookup& find) {
  LinearWeight linear;
  linear.name = std::string(module);
  const TensorView* weight = find(linear.name + ".weight");
  if (weight == nullptr) {
    if (find(linear.name + ".weight_packed") != nullptr) {
      return bad_input(
          "{}.weight_packed: a compressed-tensors export; only the ModelOpt layout (.weight, .weight_scale, "
          ".weight_scale_2) is supported",
          linear.name);
    }
    return bad_input("tensor {}.weight is missing", linear.name);
  }
  if (weight->rank != 2 || weight->elements() == 0) {
    return bad_input("{}.weight is {}; a projection is a matrix", linear.name, described(*weight));
  }
  linear.weight = *weight;
  linear.out_features = weight->shape[0];
  linear.in_features = weight->shape[1];
  FAULTLINE_TRY(linear.input_scale, scalar(linear.name, "input_scale", find));
  switch (weight->dtype) {
    case Dtype::kBF16:
      linear.precision = Precision::kBf16;
      return linear;
    case Dtype::kF16:
      linear.precision = Precision::kF16;
      return linear;
    case Dtype::kF32:
      linear.precision = Precision::kF32;
      return linear;
    case Dtype::kF8E4M3:
      return resolve_fp8(std::move(linear), find);
    case Dtype::kU8:
      return resolve_nvfp4(std::move(linear), find);
    case Dtype::kI32:
    case Dtype::kI64:
      break;
  }
  return bad_input("{}.weight is {}; a projection is BF16, F16, F32, F8_E4M3 or U8 (NVFP4 codes)", linear.name,
                   described(*weight));
}

void dequantize_row(const LinearWeight& w, int64_t row, float* out) {
  switch (w.precision) {
    case Precision::kBf16:
    case Precision::kF16:
    case Precision::kF32:
      for (int64_t k = 0; k < w.in_features; ++k) out[k] = w.weight.load(w.weight.offset(row, k));
      return;
    case Precision::kFp8Tensor: {
      const float scale = w.block_scale.load(0);
      for (int64_t k = 0; k < w.in_features; ++k) out[k] = w.weight.load(w.weight.offset(row, k)) * scale;
      return;
    }
    case Precision::kFp8Block:
      for (int64_t k = 0; k < w.in_features; ++k) {
        const float scale = w.block_scale.load(w.block_scale.offset(row / kFp8BlockSize, k / kFp8BlockSize));
        out[k] = w.weight.load(w.weight.offset(row, k)) * scale;
      }
      return;
    case Precision::kNvfp4: {
      const float global = w.global_scale.load(0);
      const auto* codes = w.weight.as<uint8_t>() + w.weight.offset(row);
      const auto* scales = w.block_scale.as<uint8_t>() + w.block_scale.offset(row);
      for (int64_t k = 0; k < w.in_features; ++k) {
        const auto code = static_cast<uint8_t>(k % 2 == 0 ? codes[k / 2] & 15 : codes[k / 2] >> 4);
        // In this order, as the exporter dequantizes: block scale times global scale first.
        out[k] = e2m1_to_float(code) * (e4m3_to_float(scales[k / kNvfp4BlockSize]) * global);
      }
      return;
    }
  }
}

}  // namespace faultline
