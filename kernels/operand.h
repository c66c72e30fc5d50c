// What a body holds of an op's tensor, and how it opens it as a view. A body is copied to the device as it is, so it
// holds plain pointers; the view, which knows the block's place, is made inside.
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "kernels/view.h"

namespace faultline::kernels {

// `extent` counts elements; `position` is the operand's place in the op's list, for the records of a checked build.
template <class T>
struct Operand {
  T* data = nullptr;
  int64_t extent = 0;
  int position = -1;
};

template <bool kChecked, class T, class Block>
FAULTLINE_HD View<T, kChecked> open(const Operand<T>& operand, AccessLog* log, const Block& block) {
  return View<T, kChecked>(operand.data, operand.extent, operand.position, log, block.place());
}

// The one rounding of a float to a stored activation.
template <class T>
FAULTLINE_HD T narrow(float value);
template <>
FAULTLINE_HD inline float narrow<float>(float value) {
  return value;
}
template <>
FAULTLINE_HD inline Bf16 narrow<Bf16>(float value) {
  return to_bf16(value);
}

// A tensor whose float type is known at run time only: norm weights come as the checkpoint has them.
enum class Scalar : uint8_t { kF32, kBf16, kF16 };

struct ScalarOperand {
  void* data = nullptr;
  int64_t extent = 0;
  int position = -1;
  Scalar scalar = Scalar::kF32;
};

template <bool kChecked>
class ScalarView {
 public:
  template <class Block>
  FAULTLINE_HD ScalarView(const ScalarOperand& operand, AccessLog* log, const Block& block)
      : scalar_(operand.scalar),
        f32_(static_cast<float*>(operand.data), operand.extent, operand.position, log, block.place()),
        bf16_(static_cast<Bf16*>(operand.data), operand.extent, operand.position, log, block.place()),
        f16_(static_cast<F16*>(operand.data), operand.extent, operand.position, log, block.place()) {}

  FAULTLINE_HD float load(int64_t i) const {
    if (scalar_ == Scalar::kBf16) return to_float(bf16_.load(i));
    if (scalar_ == Scalar::kF32) return f32_.load(i);
    return to_float(f16_.load(i));
  }

 private:
  Scalar scalar_;
  View<float, kChecked> f32_;
  View<Bf16, kChecked> bf16_;
  View<F16, kChecked> f16_;
};

}  // namespace faultline::kernels
