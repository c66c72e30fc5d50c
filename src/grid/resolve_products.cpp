// FP4 products, MoE runners and the shared expert.
#include <algorithm>

#include "grid/axes.h"
#include "grid/resolver.h"
#include "ops/op.h"

namespace faultline {

void Resolver::choose_products() {
  const std::string linear = asked_or_default("fp4_gemm_backend");
  const std::string experts = asked_or_default("moe_runner_backend");
  if (reference_ || !shape_.nvfp4) {
    effect("fp4_gemm_backend") = effect("moe_runner_backend") = kNoEffect;
    effect("fp4_linear") = effect("fp4_experts") = "weight_only";
    return;
  }
  const bool marlin = profile_.marlin_without_blackwell && experts == "marlin";
  if (target_.rules && target_.arch == Arch::kSm90 && !marlin) guard(Stage::kStart, profile_.nvfp4_guard);
  static const std::vector<std::string> kLinear = {"cutlass", "flashinfer_cudnn", "flashinfer_cutlass",
                                                   "flashinfer_trtllm", "flashinfer_cutedsl"};
  static const std::vector<std::string> kExperts = {"flashinfer_trtllm", "flashinfer_trtllm_routed",
                                                    "flashinfer_cutlass", "flashinfer_cutedsl", "cutlass"};
  if (target_.rules && target_.arch == Arch::kSm120 && linear == "flashinfer_cutlass")
    note(profile_.fp4_race_note.text + " (" + profile_.fp4_race_note.source + ")");
  product("fp4_gemm_backend", linear, kLinear, "fp4_linear", {"linear_w4a4", "linear"});
  const std::string runner = runner_for(experts);
  product("moe_runner_backend", runner, kExperts, "fp4_experts", {"expert_linear_w4a4", "expert_linear"});
  check_runner(runner);
}

// The runner that the server really uses.
std::string Resolver::runner_for(const std::string& asked_for) {
  const auto& rules = profile_.nvfp4_runners;
  const auto rule =
      std::find_if(rules.begin(), rules.end(), [&](const RunnerRule& r) { return r.runner == asked_for; });
  if (rule == rules.end()) return asked_for;
  const std::string text = fmt::format("moe_runner_backend={}: {}", asked_for, rule->why.text);
  if (rule->runs_as.empty()) {
    guard(rule->at_start ? Stage::kStart : Stage::kFirstUse, text, rule->why.source);
    return asked_for;
  }
  note(fmt::format("{} ({})", text, rule->why.source));
  return rule->runs_as;
}

// This build has one product of each arithmetic; values that share it resolve alike, so that none is called innocent
// on the strength of another's kernel.
void Resolver::product(std::string_view axis, const std::string& value, const std::vector<std::string>& w4a4,
                       std::string_view key, std::array<std::string_view, 2> kinds) {
  if (std::find(w4a4.begin(), w4a4.end(), value) != w4a4.end()) {
    effect(axis) = effect(key) = "w4a4";
    if (asked(axis) != kAuto)
      note(fmt::format("{}={}: this build has one W4A4 product, which stands for every such backend", axis, value));
    return;
  }
  if (value == "marlin") {
    effect(axis) = effect(key) = "weight_only";
    return;
  }
  effect(axis) = value;
  effect(key) = "w4a4";
  for (const std::string_view kind : kinds) {
    const Kernel* kernel = kernel_serving(axis, value, kind);
    if (kernel == nullptr) continue;
    effect(key) = kind == kinds.front() ? "w4a4" : "weight_only";
    effect(fmt::format("kernel.{}", kind)) = kernel->name;
    return;
  }
  not_built(fmt::format("{}={}: no kernel of this backend is in this build yet", axis, value));
}

void Resolver::check_runner(const std::string& experts) {
  if (experts.starts_with("flashinfer_trtllm") && target_.rules && target_.arch != Arch::kSm100)
    missing(
        fmt::format("moe_runner_backend={} on {}: trtllm-gen MoE kernels are for sm_100 only", experts, target_.name),
        "sglang c863760 arg_groups/overrides.py:2505");
  const auto among = [&](const std::vector<std::string>& runners) {
    return std::find(runners.begin(), runners.end(), experts) != runners.end();
  };
  if (among(profile_.expert_input_scale_runners))
    prefer("experts_input_scale", "per_expert", "shared", profile_.expert_input_scales, experts);
  if (among(profile_.gate_up_scale_runners))
    runner_setting("gate_up_scale", "first", "own", profile_.gate_up_scale, experts);
  if (among(profile_.router_bias_runners)) runner_setting("router_bias", "bf16", "f32", profile_.router_bias, experts);
}

// What a runner computes otherwise than the model. One that nobody asked for, and that is the default of an
// architecture which is not the target, does not make a setting of every row.
void Resolver::runner_setting(std::string_view key, const std::string& wanted, const std::string& model,
                              const Cited& rule, const std::string& experts) {
  if (asked("moe_runner_backend") == kAuto && !target_.rules)
    return approximate(key, model,
                       {rule.text + ", as the default of one architecture that arch any leaves aside", rule.source},
                       experts);
  prefer(key, wanted, model, rule, experts);
  if (effect(key) != wanted) return;
  result_.settings.emplace_back(key);
  note(fmt::format("{}={}: {} ({}: {})", key, wanted, rule.text, experts, rule.source));
}

void Resolver::choose_shared_experts() {
  effect("shared_experts") = "apart";
  if (reference_) {
    effect("shared_experts_fusion") = kNoEffect;
    return;
  }
  const ArchDefault& automatic = default_for(profile_.shared_experts_fusion, target_.arch);
  const std::string& user = asked("shared_experts_fusion");
  const std::string experts = asked_or_default("moe_runner_backend");
  const std::vector<std::string>& off = profile_.fusion_off_runners;
  const bool forced_off = shape_.nvfp4 && std::find(off.begin(), off.end(), experts) != off.end();
  const bool fusable = shape_.model_shared_experts == 1;
  const bool fused = fusable && !forced_off && (user == kAuto ? automatic.value : user) == "on";
  effect("shared_experts_fusion") = on_off(fused);
  if (!fusable && user == "on")
    note(fmt::format(
        "shared_experts_fusion=on: \"Config does not support fused shared expert(s)\", since the model has {} "
        "shared experts ({})",
        shape_.model_shared_experts, automatic.source));
  else if (forced_off && user == "on")
    note(fmt::format("shared_experts_fusion=on: {} ({}: {})", profile_.fusion_off.text, experts,
                     profile_.fusion_off.source));
  if (!fused) return;
  if (user == "on")
    require("shared_experts_fusion", "shared_experts", "fused");
  else
    prefer("shared_experts", "fused", "apart",
           {"the shared expert is one more routed expert, with its rounding", automatic.source}, experts);
}

}  // namespace faultline
