#include "grid/build_features.h"

#include <algorithm>
#include <iterator>

namespace faultline {
namespace {

struct BuildFeature {
  std::string_view key;  // of ResolvedConfiguration::resolved
  std::string_view value;
};

constexpr BuildFeature kFeatures[] = {
    {"index_scales", "f32"},        {"shared_experts", "apart"},
    {"max_total_tokens", "auto"},   {"tp", "1"},
    {"slot_placement", "shuffled"}, {"experts_input_scale", "shared"},
    {"router_bias", "f32"},         {"gate_up_scale", "own"},
    {"query_format", "bf16"},       {"prefill_form", "absorbed"},
};

}  // namespace

bool build_does(std::string_view key, std::string_view value) {
  return std::any_of(std::begin(kFeatures), std::end(kFeatures), [&](const BuildFeature& feature) {
    return feature.key == key && (feature.value == value || feature.value == "*");
  });
}

}  // namespace faultline
