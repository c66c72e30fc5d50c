// What each server version chooses by itself: facts by version, cache dtype and architecture.
#include "grid/profile.h"

#include "grid/axes.h"
#include "grid/resolve.h"
#include "testing.h"

namespace faultline {
namespace {

using Catch::Matchers::Contains;

ResolvedConfiguration resolve_row(std::string_view profile, std::string_view arch, const AxisValues& axes) {
  ShapeInfo shape;
  shape.nvfp4 = arch != "sm_90";  // its refusal of NVFP4 is tested by itself, and would hide the rest
  return resolve(axes, *find_profile(profile), *find_target(arch), shape);
}

std::string all_notes(const ResolvedConfiguration& row) {
  std::string text;
  for (const std::string& note : row.notes) text += note + "\n";
  return text;
}

struct NsaCase {
  const char* profile;
  const char* arch;
  const char* kv;
  const char* prefill;
  const char* decode;
};

}  // namespace

TEST_CASE("profiles are found by name, and their tables are complete") {
  CHECK(find_profile("sglang-0.5.8") == nullptr);
  REQUIRE(find_profile(kDefaultProfile) != nullptr);
  for (const std::string& name : profile_names()) {
    const Profile& p = *find_profile(name);
    INFO(name);
    for (const Cited* rule :
         {&p.kv_dtype_guard, &p.packed_store_guard, &p.cache_dimension, &p.packed_read_as_plain, &p.sparse_decode_guard,
          &p.gather_guard, &p.flashmla_kv_guard, &p.fused_rope_note, &p.nvfp4_guard}) {
      CHECK_FALSE(rule->text.empty());
      CHECK_FALSE(rule->source.empty());
    }
    for (const FlagChoices& flag : p.choices) {
      CHECK_FALSE(flag.source.empty());
      REQUIRE(find_axis(flag.axis) != nullptr);
      for (const std::string& value : flag.values)
        CHECK(canonical_value(*find_axis(flag.axis), value).value() == value);
    }
    for (const Arch arch : {Arch::kSm90, Arch::kSm100, Arch::kSm120}) {
      CHECK(canonical_value(*find_axis("fp4_gemm_backend"), default_for(p.fp4_gemm_backend, arch).value));
      CHECK(canonical_value(*find_axis("moe_runner_backend"), default_for(p.moe_runner_backend, arch).value));
    }
  }
}

TEST_CASE("the automatic NSA backends follow version, cache dtype and architecture") {
  const NsaCase cases[] = {
      // flashmla_auto shows as what it becomes.
      {"sglang-0.5.9", "sm_90", "fp8_e4m3", "flashmla_kv", "flashmla_kv"},
      {"sglang-0.5.9", "sm_100", "fp8_e4m3", "flashmla_sparse", "flashmla_kv"},
      {"sglang-0.5.9", "any", "fp8_e4m3", "flashmla_sparse", "flashmla_kv"},
      {"sglang-0.5.9", "sm_120", "fp8_e4m3", "flashmla_sparse", "flashmla_kv"},
      {"sglang-0.5.9", "sm_90", "bf16", "flashmla_sparse", "fa3"},
      {"sglang-0.5.9", "sm_100", "bf16", "flashmla_sparse", "trtllm"},
      {"sglang-0.5.9", "sm_120", "bf16", "flashmla_sparse", "trtllm"},
      {"sglang-2026-04", "sm_90", "fp8_e4m3", "flashmla_kv", "flashmla_kv"},
      {"sglang-2026-04", "sm_100", "fp8_e4m3", "trtllm", "trtllm"},
      {"sglang-2026-04", "sm_120", "fp8_e4m3", "trtllm", "trtllm"},
      {"sglang-2026-04", "sm_90", "bf16", "flashmla_sparse", "fa3"},
      {"sglang-2026-04", "any", "bf16", "flashmla_sparse", "trtllm"},
      {"sglang-2026-08", "sm_90", "fp8_e4m3", "flashmla_kv", "flashmla_kv"},
      {"sglang-2026-08", "sm_100", "fp8_e4m3", "trtllm", "trtllm"},
      {"sglang-2026-08", "sm_120", "fp8_e4m3", "flashinfer_sparse_mla", "flashinfer_sparse_mla"},
      {"sglang-2026-08", "any", "bf16", "flashmla_sparse", "trtllm"},
  };
  for (const NsaCase& c : cases) {
    INFO(c.profile << " " << c.arch << " " << c.kv);
    const auto row = resolve_row(c.profile, c.arch, {{"kv_cache_dtype", c.kv}});
    CHECK(row.resolved.at("nsa_prefill_backend") == c.prefill);
    CHECK(row.resolved.at("nsa_decode_backend") == c.decode);
    CHECK(row.requested.at("nsa_decode_backend") == "auto");
  }
}

TEST_CASE("an automatic cache is FP8 from capability 10 on, SM120 included, and bf16 before") {
  for (const std::string& profile : profile_names()) {
    CHECK(resolve_row(profile, "sm_90", {}).resolved.at("kv_cache_dtype") == "bf16");
    CHECK(resolve_row(profile, "sm_100", {}).resolved.at("kv_cache_dtype") == "fp8_e4m3");
    CHECK(resolve_row(profile, "sm_120", {}).resolved.at("kv_cache_dtype") == "fp8_e4m3");
    CHECK(resolve_row(profile, "any", {}).resolved.at("kv_cache_dtype") == "fp8_e4m3");
  }
}

TEST_CASE("the version of April 2026 overwrites the user's NSA backends on FP8, the others keep them") {
  const AxisValues user = {{"nsa_prefill_backend", "flashmla_sparse"},
                           {"nsa_decode_backend", "flashmla_kv"},
                           {"kv_cache_dtype", "fp8_e4m3"}};
  for (const char* arch : {"any", "sm_100", "sm_120"}) {
    const auto april = resolve_row("sglang-2026-04", arch, user);
    CHECK(april.resolved.at("nsa_decode_backend") == "trtllm");
    CHECK(april.resolved.at("kv_format") == "kv_plain_fp8");
    REQUIRE_FALSE(april.notes.empty());
    CHECK_THAT(april.notes.front(), Contains("replaces nsa_prefill_backend=flashmla_sparse by trtllm"));
  }
  CHECK(resolve_row("sglang-2026-04", "sm_90", user).resolved.at("nsa_decode_backend") == "flashmla_kv");
  CHECK(resolve_row("sglang-0.5.9", "sm_100", user).resolved.at("nsa_decode_backend") == "flashmla_kv");
  CHECK(resolve_row("sglang-2026-08", "sm_100", user).resolved.at("nsa_decode_backend") == "flashmla_kv");
  const AxisValues bf16 = {{"nsa_decode_backend", "flashmla_kv"}, {"kv_cache_dtype", "bf16"}};
  CHECK(resolve_row("sglang-2026-04", "sm_100", bf16).resolved.at("nsa_decode_backend") == "flashmla_kv");
}

TEST_CASE("triton on SM120 with an automatic cache: an assertion in v0.5.9, a plain cache in April 2026") {
  const AxisValues triton = {{"attention_backend", "triton"}};
  CHECK(resolve_row("sglang-0.5.9", "sm_120", triton).status == TargetStatus::kGuard);
  const auto april = resolve_row("sglang-2026-04", "sm_120", triton);
  CHECK(april.status == TargetStatus::kRuns);
  CHECK(april.resolved.at("kv_format") == "kv_plain_fp8");
}

TEST_CASE("a value of another version is no choice of the flag") {
  const auto cutlass = resolve_row("sglang-0.5.9", "any", {{"fp4_gemm_backend", "cutlass"}});
  CHECK(cutlass.status == TargetStatus::kGuard);
  CHECK_THAT(cutlass.reason, Contains("'cutlass' is not a choice of --fp4-gemm-backend in sglang-0.5.9"));
  CHECK(resolve_row("sglang-2026-04", "any", {{"fp4_gemm_backend", "cutlass"}}).status == TargetStatus::kRuns);
  CHECK(resolve_row("sglang-2026-08", "any", {{"fp4_gemm_backend", "cutlass"}}).status == TargetStatus::kGuard);
  CHECK(resolve_row("sglang-0.5.9", "any", {{"fp4_gemm_backend", "marlin"}}).status == TargetStatus::kGuard);
  CHECK(resolve_row("sglang-0.5.9", "any", {{"moe_runner_backend", "flashinfer_trtllm_routed"}}).status ==
        TargetStatus::kGuard);
  CHECK(resolve_row("sglang-0.5.9", "any", {{"nsa_decode_backend", "flashinfer_sparse_mla"}}).status ==
        TargetStatus::kGuard);
  CHECK(resolve_row("sglang-0.5.9", "any", {{"kv_cache_dtype", "f32"}, {"nsa_decode_backend", "flashmla_kv"}}).status ==
        TargetStatus::kRuns);
}

TEST_CASE("products: marlin is weight-only, W4A4 backends share one product, and others are missing or refused") {
  const auto marlin =
      resolve_row("sglang-2026-08", "any", {{"fp4_gemm_backend", "marlin"}, {"moe_runner_backend", "marlin"}});
  CHECK(marlin.resolved.at("fp4_linear") == "weight_only");
  CHECK(marlin.resolved.at("fp4_experts") == "weight_only");
  const auto cudnn = resolve_row("sglang-0.5.9", "any", {{"fp4_gemm_backend", "flashinfer_cudnn"}});
  const auto cutlass = resolve_row("sglang-0.5.9", "any", {{"fp4_gemm_backend", "flashinfer_cutlass"}});
  CHECK(cudnn.resolved == cutlass.resolved);
  CHECK(cudnn.resolved.at("fp4_linear") == "w4a4");
  CHECK_THAT(cudnn.notes.front(), Contains("stands for every such backend"));
  const auto routed = resolve_row("sglang-2026-04", "any", {{"moe_runner_backend", "flashinfer_trtllm_routed"}});
  CHECK(routed.status == TargetStatus::kGuard);
  CHECK_THAT(routed.source, Contains("server_args.py:2694"));
  const AxisValues trtllm = {
      {"moe_runner_backend", "flashinfer_trtllm"}, {"attention_backend", "triton"}, {"kv_cache_dtype", "bf16"}};
  CHECK_THAT(resolve_row("sglang-0.5.9", "sm_120", trtllm).reason, Contains("sm_100 only"));
  CHECK(resolve_row("sglang-0.5.9", "sm_100", trtllm).status == TargetStatus::kRuns);
}

TEST_CASE("a MoE runner without a path of its own for NVFP4 is cutlass_moe_fp4 up to April 2026, and refused after") {
  const auto cutlass = resolve_row("sglang-2026-04", "any", {{"moe_runner_backend", "cutlass"}});
  for (const char* runner : {"deep_gemm", "triton"}) {
    const auto row = resolve_row("sglang-2026-04", "any", {{"moe_runner_backend", runner}});
    INFO(row.reason);
    CHECK(row.status == TargetStatus::kRuns);
    CHECK(row.resolved == cutlass.resolved);
    CHECK(row.resolved.at("experts_input_scale") == "per_expert");
    CHECK_THAT(all_notes(row), Contains("cutlass_moe_fp4"));
    CHECK_THAT(resolve_row("sglang-2026-08", "any", {{"moe_runner_backend", runner}}).reason,
               Contains("NotImplementedError"));
  }
  CHECK_THAT(resolve_row("sglang-0.5.9", "any", {{"moe_runner_backend", "triton_kernel"}}).reason,
             Contains("AttributeError"));
  CHECK(resolve_row("sglang-2026-08", "any", {{"moe_runner_backend", "cutlass"}}).status == TargetStatus::kGuard);
  CHECK(resolve_row("sglang-2026-08", "any", {{"moe_runner_backend", "humming"}}).status == TargetStatus::kGuard);
}

TEST_CASE("what a MoE runner computes otherwise than the model is a setting, unless it is another target's default") {
  using Settings = std::vector<std::string>;
  const auto trtllm = resolve_row("sglang-0.5.9", "any", {{"moe_runner_backend", "flashinfer_trtllm"}});
  CHECK(trtllm.resolved.at("router_bias") == "bf16");
  CHECK(trtllm.resolved.at("gate_up_scale") == "first");
  CHECK(trtllm.settings == Settings{"gate_up_scale", "router_bias"});
  const auto any = resolve_row("sglang-0.5.9", "any", {});
  CHECK(any.resolved.at("router_bias") == "f32");
  CHECK(any.settings.empty());
  CHECK_THAT(all_notes(any), Contains("router_bias=f32") && Contains("that arch any leaves aside"));
  CHECK(resolve_row("sglang-0.5.9", "sm_100", {}).settings == trtllm.settings);
  CHECK(resolve_row("sglang-0.5.9", "any", {{"moe_runner_backend", "cutlass"}}).settings == Settings{"gate_up_scale"});
  // The last version has an alpha for up with trtllm, and the bias in F32; its other runners still have one alpha.
  CHECK(resolve_row("sglang-2026-08", "sm_100", {}).settings.empty());
  CHECK(resolve_row("sglang-2026-08", "any", {{"moe_runner_backend", "marlin"}}).settings == Settings{"gate_up_scale"});
}

TEST_CASE("a model with another number of shared experts than one has them apart, as the server does") {
  ShapeInfo shape;
  shape.model_shared_experts = 2;
  const AxisValues axes = {{"moe_runner_backend", "cutlass"}, {"shared_experts_fusion", "on"}};
  const auto row = resolve(axes, *find_profile("sglang-0.5.9"), *find_target("any"), shape);
  CHECK(row.status == TargetStatus::kRuns);
  CHECK(row.resolved.at("shared_experts") == "apart");
  CHECK_THAT(all_notes(row), Contains("Config does not support fused shared expert(s)"));
  CHECK(resolve(axes, *find_profile("sglang-0.5.9"), *find_target("any"), {}).resolved.at("shared_experts") == "fused");
}

TEST_CASE("flashmla as a dense backend prefills with flashinfer's kernel, on any architecture") {
  const auto row = resolve_row("sglang-0.5.9", "any", {{"attention_backend", "flashmla"}, {"kv_cache_dtype", "bf16"}});
  CHECK(row.resolved.at("prefill_attention") == "flashinfer");
  CHECK(row.resolved.at("decode_attention") == "flashmla_dense");
  CHECK(find_backend("attention_backend", "flashmla", AttentionPhase::kPrefill).archs.empty());
  CHECK(find_backend("attention_backend", "flashmla", AttentionPhase::kDecode).archs == std::vector{Arch::kSm90});
}

TEST_CASE("before Blackwell NVFP4 is refused, but for the version that falls back to marlin") {
  const AxisValues axes = {{"nsa_decode_backend", "flashmla_kv"}};
  const auto on = [&](const char* profile, const AxisValues& a) {
    return resolve(a, *find_profile(profile), *find_target("sm_90"), {});
  };
  CHECK(on("sglang-0.5.9", axes).status == TargetStatus::kGuard);
  CHECK(on("sglang-2026-04", axes).status == TargetStatus::kGuard);
  const auto august = on("sglang-2026-08", axes);
  CHECK(august.status == TargetStatus::kRuns);
  CHECK(august.resolved.at("fp4_experts") == "weight_only");
  AxisValues cutlass = axes;
  cutlass["moe_runner_backend"] = "flashinfer_cutlass";
  CHECK_THAT(on("sglang-2026-08", cutlass).reason, Contains("moe_runner_backend=marlin"));
}

TEST_CASE("flashinfer_sparse_mla, SM120 and an FP8 cache need each other in August 2026") {
  const AxisValues sparse = {{"nsa_prefill_backend", "flashinfer_sparse_mla"},
                             {"nsa_decode_backend", "flashinfer_sparse_mla"}};
  const auto on = [&](const char* arch, const char* kv, AxisValues axes) {
    axes["kv_cache_dtype"] = kv;
    return resolve_row("sglang-2026-08", arch, axes).status;
  };
  CHECK(on("sm_120", "fp8_e4m3", sparse) == TargetStatus::kRuns);
  CHECK(on("sm_100", "fp8_e4m3", sparse) == TargetStatus::kGuard);
  CHECK(on("sm_120", "bf16", sparse) == TargetStatus::kGuard);
  CHECK(on("sm_120", "fp8_e4m3", {{"nsa_prefill_backend", "flashmla_sparse"}, {"nsa_decode_backend", "flashmla_kv"}}) ==
        TargetStatus::kGuard);
  CHECK(on("sm_100", "fp8_e4m3", {{"nsa_prefill_backend", "flashmla_sparse"}, {"nsa_decode_backend", "flashmla_kv"}}) ==
        TargetStatus::kRuns);
}

}  // namespace faultline
