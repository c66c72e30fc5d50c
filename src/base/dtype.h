// Element types of tensors, with the names that safetensors uses for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace faultline {

enum class Dtype : uint8_t { kF32, kF16, kBF16, kF8E4M3, kU8, kI32, kI64 };

constexpr size_t dtype_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
    case Dtype::kI32:
      return 4;
    case Dtype::kF16:
    case Dtype::kBF16:
      return 2;
    case Dtype::kF8E4M3:
    case Dtype::kU8:
      return 1;
    case Dtype::kI64:
      return 8;
  }
  return 0;
}

// "F32", "F16", "BF16", "F8_E4M3", "U8", "I32", "I64".
std::string_view dtype_name(Dtype dtype);
std::optional<Dtype> dtype_from_name(std::string_view name);

}  // namespace faultline
