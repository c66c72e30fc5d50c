// How a projection's precision is decided: from the dtype of its weight and the scales beside it, never from its name,
// since exports of one model differ in what they leave unquantized.
#pragma once

#include <functional>
#include <string_view>

#include "base/error.h"
#include "model/checkpoint.h"

namespace faultline {

using TensorLookup = std::function<const TensorView*(std::string_view)>;  // null when absent

// The projection `module`, from `find`. Bad input, with the tensor's name: no weight, scales missing, of another dtype
// or shape than the weight needs, or a layout of another exporter.
Result<LinearWeight> resolve_linear(std::string_view module, const TensorLookup& find);

}  // namespace faultline
