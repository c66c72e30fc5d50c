#include "base/dtype.h"

#include <array>
#include <utility>

namespace faultline {
namespace {

constexpr std::array<std::pair<Dtype, std::string_view>, 7> kNames = {{{Dtype::kF32, "F32"},
                                                                       {Dtype::kF16, "F16"},
                                                                       {Dtype::kBF16, "BF16"},
                                                                       {Dtype::kF8E4M3, "F8_E4M3"},
                                                                       {Dtype::kU8, "U8"},
                                                                       {Dtype::kI32, "I32"},
                                                                       {Dtype::kI64, "I64"}}};

}  // namespace

std::string_view dtype_name(Dtype dtype) {
  for (const auto& [value, name] : kNames)
    if (value == dtype) return name;
  return "?";
}

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (const auto& [value, text] : kNames)
    if (text == name) return value;
  return std::nullopt;
}

}  // namespace faultline
