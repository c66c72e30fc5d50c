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
    {"gate_up_scale", "first"},
    {"router_bias", "f32"},
    {"router_bias", "bf16"},
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
