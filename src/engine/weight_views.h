// Lists of weights as operands.
#pragma once

#include <string>
#include <vector>

#include "model/checkpoint.h"

namespace faultline {

// Does the row's choice ("w4a4", "weight_only") apply to the weight: NVFP4 with an input scale.
inline bool uses_w4a4(const LinearWeight& weight, const std::string& choice) {
  return choice == "w4a4" && weight.precision == Precision::kNvfp4 && weight.input_scale.data != nullptr;
}

// One view of each weight, in order.
inline std::vector<TensorView> views_of(const std::vector<LinearWeight>& weights, TensorView LinearWeight::*member) {
  std::vector<TensorView> views;
  views.reserve(weights.size());
  for (const LinearWeight& weight : weights) views.push_back(weight.*member);
  return views;
}

}  // namespace faultline
