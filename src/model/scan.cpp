#include "model/scan.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace faultline {
namespace {

const char* value_problem(float value) {
  if (std::isnan(value)) return "NaN";
  return std::isinf(value) ? "infinite" : nullptr;
}

const char* scale_problem(float value) {
  if (const char* problem = value_problem(value)) return problem;
  if (value == 0) return "zero";
  return value < 0 ? "negative" : nullptr;
}

template <class Problem>
ScanResult scan(const TensorView& tensor, const Problem& problem) {
  ScanResult result;
  const int64_t elements = tensor.elements();
  for (int64_t i = 0; i < elements; ++i) {
    const char* found = problem(i);
    if (found == nullptr) continue;
    if (result.count++ == 0) {
      result.first = i;
      result.problem = found;
    }
  }
  return result;
}

// All ones in the exponent: NaN or infinity. Bit tests vectorise, where load() takes a branch an element.
bool any_set_exponent(const TensorView& tensor) {
  const int64_t elements = tensor.elements();
  bool any = false;
  switch (tensor.dtype) {
    case Dtype::kF32:
      for (int64_t i = 0; i < elements; ++i) any |= (tensor.as<uint32_t>()[i] & 0x7F800000u) == 0x7F800000u;
      return any;
    case Dtype::kBF16:
      for (int64_t i = 0; i < elements; ++i) any |= (tensor.as<uint16_t>()[i] & 0x7F80u) == 0x7F80u;
      return any;
    case Dtype::kF16:
      for (int64_t i = 0; i < elements; ++i) any |= (tensor.as<uint16_t>()[i] & 0x7C00u) == 0x7C00u;
      return any;
    case Dtype::kF8E4M3:
      for (int64_t i = 0; i < elements; ++i) any |= e4m3_is_nan(tensor.as<uint8_t>()[i]);
      return any;
    case Dtype::kU8:
    case Dtype::kI32:
    case Dtype::kI64:
      return false;
  }
  return false;
}

bool any_bad_e4m3_scale(const TensorView& tensor) {
  const auto* codes = tensor.as<uint8_t>();
  const int64_t elements = tensor.elements();
  bool any = false;
  for (int64_t i = 0; i < elements; ++i) any |= static_cast<uint8_t>(codes[i] - 1) >= 0x7Eu;  // 0, 0x7F, 0x80 and above
  return any;
}

}  // namespace

ScanResult scan_values(const TensorView& tensor) {
  if (!any_set_exponent(tensor)) return {};
  return scan(tensor, [&](int64_t i) { return value_problem(tensor.load(i)); });
}

ScanResult scan_scales(const TensorView& tensor) {
  if (tensor.dtype == Dtype::kF8E4M3 && !any_bad_e4m3_scale(tensor)) return {};
  return scan(tensor, [&](int64_t i) { return scale_problem(tensor.load(i)); });
}

ScanResult scan_nvfp4_scales(const LinearWeight& weight) {
  if (!any_bad_e4m3_scale(weight.block_scale)) return {};
  constexpr int64_t kBytesABlock = kNvfp4BlockSize / 2;
  constexpr uint8_t kMagnitudes = 0x77;  // both nibbles without their signs
  return scan(weight.block_scale, [&](int64_t i) -> const char* {
    const char* problem = scale_problem(weight.block_scale.load(i));
    if (problem == nullptr || weight.block_scale.load(i) != 0) return problem;
    const auto* codes = weight.weight.as<uint8_t>() + i * kBytesABlock;
    const bool empty = std::all_of(codes, codes + kBytesABlock, [](uint8_t pair) { return (pair & kMagnitudes) == 0; });
    return empty ? nullptr : problem;
  });
}

ScanResult scan_zero_rows(const TensorView& matrix) {
  ScanResult result;
  for (int64_t row = 0; row < matrix.shape[0]; ++row) {
    bool zero = true;
    for (int64_t k = 0; k < matrix.shape[1] && zero; ++k) zero = matrix.load(matrix.offset(row, k)) == 0;
    if (!zero) continue;
    if (result.count++ == 0) {
      result.first = row;
      result.problem = "zero";
    }
  }
  return result;
}

std::string coordinates(const TensorView& tensor, int64_t flat) {
  std::vector<int64_t> index(static_cast<size_t>(tensor.rank));
  for (size_t i = index.size(); i-- > 0;) {
    index[i] = flat % tensor.shape[i];
    flat /= tensor.shape[i];
  }
  return fmt::format("[{}]", fmt::join(index, ", "));
}

}  // namespace faultline
