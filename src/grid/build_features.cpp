#include "grid/build_features.h"

#include <algorithm>
#include <iterator>

namespace faultline {
namespace {

struct BuildFeature {
  std::string_view key;  // of ResolvedConfiguration::resolved
  std::string_view value;
};

// The engine also does gate_up_scale=first and router_bias=bf16, and reports each as a `setting`. Neither is here, so a
// row resolves to the model's own arithmetic and says so: a checkpoint whose scales agree, or whose bias bf16 holds, is
// the same either way, while on any other the row's verdict would be that setting's, in the place of what was looked
// for.
constexpr BuildFeature kFeatures[] = {
    {"index_scales", "f32"},
    {"index_scales", "ue8m0"},
    {"index_hadamard", "off"},
    {"index_hadamard", "on"},
    {"index_query", "bf16"},
    {"index_query", "fp8"},
    {"query_format", "bf16"},
    {"query_format", "fp8"},
    {"experts_input_scale", "shared"},
    {"experts_input_scale", "per_expert"},
    {"gate_up_scale", "own"},
    {"router_bias", "f32"},
    {"shared_experts", "apart"},
    {"shared_experts", "fused"},
    {"max_total_tokens", "*"},
    {"slot_placement", "shuffled"},
    {"slot_placement", "high"},
    {"prefill_form", "absorbed"},
    {"tp", "1"},
};

}  // namespace

bool build_does(std::string_view key, std::string_view value) {
  return std::any_of(std::begin(kFeatures), std::end(kFeatures), [&](const BuildFeature& feature) {
    return feature.key == key && (feature.value == value || feature.value == "*");
  });
}

}  // namespace faultline
