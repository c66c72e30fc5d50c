#include "base/tensor.h"

namespace faultline {

float TensorView::load(int64_t at) const {
  switch (dtype) {
    case Dtype::kF32:
      return as<float>()[at];
    case Dtype::kBF16:
      return to_float(as<Bf16>()[at]);
    case Dtype::kF16:
      return to_float(as<F16>()[at]);
    case Dtype::kF8E4M3:
      return e4m3_to_float(as<uint8_t>()[at]);
    case Dtype::kU8:
      return static_cast<float>(as<uint8_t>()[at]);
    case Dtype::kI32:
      return static_cast<float>(as<int32_t>()[at]);
    case Dtype::kI64:
      return static_cast<float>(as<int64_t>()[at]);
  }
  return 0;
}

void TensorView::store(int64_t at, float value) const {
  switch (dtype) {
    case Dtype::kF32:
      as<float>()[at] = value;
      return;
    case Dtype::kBF16:
      as<Bf16>()[at] = to_bf16(value);
      return;
    case Dtype::kF8E4M3:
      as<uint8_t>()[at] = float_to_e4m3(value);
      return;
    case Dtype::kI32:
      as<int32_t>()[at] = static_cast<int32_t>(value);
      return;
    case Dtype::kI64:
      as<int64_t>()[at] = static_cast<int64_t>(value);
      return;
    case Dtype::kU8:
      as<uint8_t>()[at] = static_cast<uint8_t>(value);
      return;
    case Dtype::kF16:
      break;  // no activation or output is F16; only weights are
  }
  FAULTLINE_CHECK(!"store to a dtype that is never written");
}

int64_t TensorView::load_index(int64_t at) const {
  if (dtype == Dtype::kI32) return as<int32_t>()[at];
  FAULTLINE_CHECK(dtype == Dtype::kI64);
  return as<int64_t>()[at];
}

void TensorView::store_index(int64_t at, int64_t value) const {
  if (dtype == Dtype::kI32) {
    as<int32_t>()[at] = static_cast<int32_t>(value);
    return;
  }
  FAULTLINE_CHECK(dtype == Dtype::kI64);
  as<int64_t>()[at] = value;
}

TensorView make_view(void* data, Dtype dtype, std::initializer_list<int64_t> shape) {
  FAULTLINE_CHECK(shape.size() <= static_cast<size_t>(kMaxRank));
  TensorView view;
  view.data = static_cast<std::byte*>(data);
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  int i = 0;
  for (const int64_t extent : shape) view.shape[i++] = extent;
  int64_t stride = 1;
  for (i = view.rank - 1; i >= 0; --i) {
    view.stride[i] = stride;
    stride *= view.shape[i];
  }
  return view;
}

TensorView slice_last(const TensorView& view, int64_t begin, int64_t count) {
  FAULTLINE_CHECK(view.rank > 0 && begin >= 0 && count >= 0 && begin + count <= view.shape[view.rank - 1]);
  TensorView result = view;
  result.data += begin * static_cast<int64_t>(dtype_bytes(view.dtype));
  result.shape[view.rank - 1] = count;
  return result;
}

TensorView slice_rows(const TensorView& view, int64_t begin, int64_t count) {
  FAULTLINE_CHECK(view.rank > 0 && begin >= 0 && count >= 0 && begin + count <= view.shape[0]);
  TensorView result = view;
  result.data += begin * view.stride[0] * static_cast<int64_t>(dtype_bytes(view.dtype));
  result.shape[0] = count;
  return result;
}

TensorView split_last(const TensorView& view, int64_t count, int64_t size) {
  FAULTLINE_CHECK(view.rank > 0 && view.rank < kMaxRank && view.shape[view.rank - 1] == count * size);
  TensorView result = view;
  result.rank = view.rank + 1;
  result.shape[view.rank - 1] = count;
  result.stride[view.rank - 1] = size;
  result.shape[view.rank] = size;
  result.stride[view.rank] = 1;
  return result;
}

uint32_t raw_bits(const TensorView& view, int64_t at) {
  uint32_t bits = 0;
  const size_t bytes = dtype_bytes(view.dtype);
  memcpy(&bits, view.data + at * static_cast<int64_t>(bytes), bytes < 4 ? bytes : 4);
  return bits;
}

}  // namespace faultline
