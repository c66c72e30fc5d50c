// From an OpCall to what a kernel body takes: typed operands, cache layouts, and the build (element type, checked or
// not).
#pragma once

#include "base/error.h"
#include "kernels/cache_rows.h"
#include "kernels/operand.h"
#include "ops/op.h"

namespace faultline {

template <class T>
constexpr Dtype dtype_of() {
  if constexpr (std::is_same_v<T, float>) return Dtype::kF32;
  if constexpr (std::is_same_v<T, Bf16>) return Dtype::kBF16;
  if constexpr (std::is_same_v<T, int32_t>) return Dtype::kI32;
}

// The operand must be there and of dtype T: a broken invariant otherwise.
template <class T>
kernels::Operand<T> kernel_operand(const OpCall& call, int operand) {
  FAULTLINE_CHECK(call.argument(operand).present());
  const TensorView& view = call.view(operand);
  FAULTLINE_CHECK(view.dtype == dtype_of<T>());
  return kernels::Operand<T>{view.as<T>(), view.extent(), operand};
}

// A null one where the operand is absent.
template <class T>
kernels::Operand<T> optional_operand(const OpCall& call, int operand) {
  return call.argument(operand).present() ? kernel_operand<T>(call, operand) : kernels::Operand<T>{nullptr, 0, operand};
}

// A cache, or a contiguous buffer of rows, as bytes.
inline kernels::Operand<uint8_t> kernel_pool(const OpCall& call, int operand) {
  const TensorView& view = call.view(operand);
  return kernels::Operand<uint8_t>{view.as<uint8_t>(), view.extent() * static_cast<int64_t>(dtype_bytes(view.dtype)),
                                   operand};
}

inline kernels::ScalarOperand kernel_scalar(const OpCall& call, int operand) {
  const TensorView& view = call.view(operand);
  FAULTLINE_CHECK(view.dtype == Dtype::kF32 || view.dtype == Dtype::kBF16 || view.dtype == Dtype::kF16);
  kernels::Scalar scalar = kernels::Scalar::kF32;
  if (view.dtype == Dtype::kBF16) scalar = kernels::Scalar::kBf16;
  if (view.dtype == Dtype::kF16) scalar = kernels::Scalar::kF16;
  return kernels::ScalarOperand{view.data, view.extent(), operand, scalar};
}

inline kernels::CacheLayout kernel_layout(const CacheGeometry& geometry) {
  kernels::CacheLayout layout;
  switch (geometry.format) {
    case Format::kKvF32:
    case Format::kIndexF32:
      layout.format = kernels::RowFormat::kF32;
      break;
    case Format::kKvBf16:
      layout.format = kernels::RowFormat::kBf16;
      break;
    case Format::kKvPacked:
      layout.format = kernels::RowFormat::kPacked;
      break;
    case Format::kKvPlainFp8:
      layout.format = kernels::RowFormat::kPlainFp8;
      break;
    case Format::kIndexFp8:
      layout.format = kernels::RowFormat::kIndexFp8;
      break;
    case Format::kPlain:
    case Format::kNvfp4:
      FAULTLINE_CHECK(!"a cache has no such format");
  }
  layout.slots = geometry.slots;
  layout.page_size = geometry.page_size;
  layout.latent = geometry.latent;
  layout.rope = geometry.rope;
  layout.row_stride = geometry.stride_bytes();
  return layout;
}

// Which instantiation of a body to run.
template <class T, bool kCheckedBuild>
struct Build {
  using Element = T;
  static constexpr bool kChecked = kCheckedBuild;
};

// Calls run(Build<T, checked>{}) with the element type of the activations (BF16 or F32) and the build that the call
// asks for.
template <class Run>
void with_build(const OpCall& call, Dtype activations, const Run& run) {
  FAULTLINE_CHECK(activations == Dtype::kBF16 || activations == Dtype::kF32);
  FAULTLINE_CHECK(!call.checked || call.launch.log != nullptr);
  if (activations == Dtype::kBF16) {
    if (call.checked)
      run(Build<Bf16, true>{});
    else
      run(Build<Bf16, false>{});
  } else {
    if (call.checked)
      run(Build<float, true>{});
    else
      run(Build<float, false>{});
  }
}

}  // namespace faultline
