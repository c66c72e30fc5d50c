// Short forms for the operand lists of op kinds.
#pragma once

#include <string>
#include <utility>

#include "ops/op.h"

namespace faultline {

inline constexpr Region kAllRows{.rows = Rows::kAll};
inline constexpr Region kTokenRows{.rows = Rows::kTokens};
inline constexpr Region kRequestRows{.rows = Rows::kRequests};
// Rows of the top-k experts of each token, where the op has the attribute "k"; token rows otherwise.
inline constexpr Region kExpertRows{.rows = Rows::kTokens, .multiplier = Region::kTopK};
// The same for an input that is per token where the op says so ("x_per_token").
inline constexpr Region kExpertInputRows{.rows = Rows::kTokens, .multiplier = Region::kTopKUnlessPerToken};

inline OperandSpec input(std::string name, Region region = kTokenRows, Content content = Content::kValues) {
  return OperandSpec{.name = std::move(name), .direction = Direction::kIn, .content = content, .region = region};
}
inline OperandSpec output(std::string name, Region region = kTokenRows, Content content = Content::kValues) {
  return OperandSpec{.name = std::move(name), .direction = Direction::kOut, .content = content, .region = region};
}
inline OperandSpec weight(std::string name) {
  return OperandSpec{
      .name = std::move(name), .direction = Direction::kIn, .content = Content::kWeight, .region = kAllRows};
}
inline OperandSpec weight_list(std::string name) {
  OperandSpec spec = weight(std::move(name));
  spec.many = true;
  return spec;
}
// Integers held to a rule. Ends that depend on the sizes of a model or a pass stay 0 here; the engine fills them in.
inline OperandSpec index_input(std::string name, Region region, IndexRule rule = {}) {
  OperandSpec spec = input(std::move(name), region, Content::kIndices);
  spec.index = rule;
  return spec;
}
inline OperandSpec index_output(std::string name, Region region, IndexRule rule = {}) {
  OperandSpec spec = output(std::move(name), region, Content::kIndices);
  spec.index = rule;
  return spec;
}

}  // namespace faultline
