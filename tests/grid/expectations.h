// What each row of a grid must come to, written down apart from the code that decides it: a table of patterns with
// sources, the first that matches a row counts. tests/grid holds resolve() to it, tests/cli holds whole runs to it.
//
// The order of the table is the order in which a server meets its reasons: refused at the start; no kernel, or no room,
// on the target; refused at first use; not in this build; a layout conflict; another model than the checkpoint's.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "grid/build_features.h"
#include "ops/op.h"
#include "report/findings.h"

namespace faultline {

struct Expectation {
  std::string_view profiles;  // "*", or names separated by |
  std::string_view targets;   // "*", or names separated by |
  // "axis=value|value axis!=value": all must hold, on the requested values with defaults filled in.
  std::string_view pattern;
  std::string_view verdict;  // pass, guard, unsupported, layout, setting
  std::string_view source;
  // The row counts only while this build lacks it: "kernel AXIS=VALUE" or "KEY=VALUE" of build_features.h. Empty:
  // always.
  std::string_view lacks;
};

namespace expectations_detail {

inline constexpr std::string_view kV = "sglang-0.5.9";
inline constexpr std::string_view kA = "sglang-2026-04";
inline constexpr std::string_view kH = "sglang-2026-08";
inline constexpr std::string_view kBefore = "sglang-0.5.9|sglang-2026-04";

inline constexpr std::string_view kAttention = "sglang 93109cc server_args.py:127";
inline constexpr std::string_view kPool = "sglang 93109cc mem_cache/memory_pool.py:1558";
inline constexpr std::string_view kNsa = "sglang 93109cc layers/attention/nsa_backend.py:1461, 1611";
inline constexpr std::string_view kPlainPool = "sglang 93109cc model_executor/model_runner_kv_cache_mixin.py:251-261";
inline constexpr std::string_view kRunners = "sglang v0.5.9, 93109cc layers/quantization/modelopt_quant.py";
inline constexpr std::string_view kRunnersH =
    "sglang c863760 layers/quantization/modelopt_quant.py:2381-2402, 2713, 2887";
inline constexpr std::string_view kSparseMla = "sglang c863760 kernels/ops/attention/flash_mla_sm120.py:568-600";
inline constexpr std::string_view kBuild = "src/grid/build_features.cpp";
inline constexpr std::string_view kRegistry = "registered kernels (src/ops/attention.cpp)";

inline constexpr Expectation kTable[] = {
    // The model in every op: only what cannot exist at all.
    {"*", "*", "kv_cache_dtype=fp8_e5m2|fp4_e2m1", "guard", "sglang 93109cc server_args.py:1440-1443", ""},
    // --- refused at the start
    {kV, "*", "kernels=own fp4_gemm_backend=cutlass", "guard", "sglang v0.5.9 server_args.py (no cutlass)", ""},
    {kBefore, "*", "kernels=own fp4_gemm_backend=marlin|flashinfer_cutedsl", "guard",
     "sglang 93109cc server_args.py:217", ""},
    {kH, "*", "kernels=own fp4_gemm_backend=cutlass", "guard", "sglang c863760 server_args.py (no cutlass)", ""},
    {kBefore, "*", "kernels=own moe_runner_backend=marlin", "guard", "sglang 93109cc server_args.py:183, 4916", ""},
    {kBefore, "*", "kernels=own nsa_prefill_backend=flashinfer_sparse_mla|flashmla_sparse_q8", "guard",
     "sglang 93109cc server_args.py:169", ""},
    {kBefore, "*", "kernels=own nsa_decode_backend=flashinfer_sparse_mla|flashmla_sparse_q8", "guard",
     "sglang 93109cc server_args.py:169", ""},
    {kBefore, "*", "kernels=own moe_runner_backend=flashinfer_trtllm_routed", "guard",
     "sglang 93109cc server_args.py:2694-2700", ""},
    {kH, "*", "kernels=own moe_runner_backend=cutlass", "guard", kRunnersH, ""},
    {kH, "*",
     "kernels=own attention_backend=nsa|auto nsa_prefill_backend=flashinfer_sparse_mla kv_cache_dtype=f32|bf16",
     "guard", kSparseMla, ""},
    {kH, "*", "kernels=own attention_backend=nsa|auto nsa_decode_backend=flashinfer_sparse_mla kv_cache_dtype=f32|bf16",
     "guard", kSparseMla, ""},
    {kH, "sm_120",
     "kernels=own attention_backend=nsa|auto nsa_prefill_backend!=auto|flashinfer_sparse_mla "
     "kv_cache_dtype=auto|fp8_e4m3",
     "guard", kSparseMla, ""},
    {kH, "sm_120",
     "kernels=own attention_backend=nsa|auto nsa_decode_backend!=auto|flashinfer_sparse_mla "
     "kv_cache_dtype=auto|fp8_e4m3",
     "guard", kSparseMla, ""},
    // --- no kernel on the target, or in the library
    {"*", "sm_120", "kernels=own moe_runner_backend=flashinfer_trtllm|flashinfer_trtllm_routed", "unsupported",
     "sglang c863760 arg_groups/overrides.py:2505", ""},
    {kBefore, "sm_120", "kernels=own attention_backend=nsa|auto", "unsupported",
     "DeepGEMM 54e2261 csrc/apis/attention.hpp:189, 227, 393", ""},
    {kH, "sm_120", "kernels=own attention_backend=nsa|auto nsa_prefill_backend!=aiter kv_cache_dtype=f32|bf16",
     "unsupported", "FlashMLA, FlashAttention 3, tilelang and trtllm-gen have no kernel for sm_120", ""},
    {kH, "sm_120",
     "kernels=own attention_backend=nsa|auto nsa_decode_backend!=aiter|flashmla_auto kv_cache_dtype=f32|bf16",
     "unsupported", "FlashMLA, FlashAttention 3, tilelang and trtllm-gen have no kernel for sm_120", ""},
    {"*", "sm_120", "kernels=own attention_backend=fa3|flashmla", "unsupported",
     "sglang 93109cc sgl-kernel/python/sgl_kernel/flash_attn.py:16-28; FlashMLA README", ""},
    {"*", "sm_120", "kernels=own attention_backend=trtllm_mla", "unsupported",
     "flashinfer fb28d72 include/flashinfer/trtllm/fmha/fmhaRunner.cuh:37-38", ""},
    // --- refused at first use: MoE runners
    {kBefore, "*", "kernels=own moe_runner_backend=triton_kernel|flashinfer_mxfp4", "guard",
     "sglang v0.5.9, 93109cc layers/moe/topk.py TopK.forward_cuda", ""},
    {kH, "*",
     "kernels=own moe_runner_backend=deep_gemm|triton|triton_kernel|flashinfer_mxfp4|experimental_sgl_trtllm|aiter|"
     "humming|experimental_sgl_marlin|hpc_ops|megamoe",
     "guard", kRunnersH, ""},
    // --- refused at first use: sparse backends
    {"*", "*", "kernels=own attention_backend=nsa|auto nsa_prefill_backend=aiter kv_cache_dtype=f32|bf16", "guard",
     kNsa, ""},
    {"*", "*", "kernels=own attention_backend=nsa|auto nsa_decode_backend=aiter|flashmla_auto kv_cache_dtype=f32|bf16",
     "guard", kNsa, ""},
    //     FP8 in 0.5.9: packed unless either side is trtllm, and then only trtllm takes it.
    {kV, "any",
     "kernels=own attention_backend=nsa|auto nsa_prefill_backend=aiter|fa3|tilelang kv_cache_dtype=auto|fp8_e4m3",
     "guard", "sglang 93109cc layers/attention/nsa/tilelang_kernel.py:413-800; flash_attn.py takes bf16", ""},
    {kV, "any",
     "kernels=own attention_backend=nsa|auto nsa_decode_backend=aiter|flashmla_auto|fa3|tilelang "
     "kv_cache_dtype=auto|fp8_e4m3",
     "guard", kNsa, ""},
    {kV, "any",
     "kernels=own attention_backend=nsa|auto nsa_decode_backend=flashmla_sparse kv_cache_dtype=auto|fp8_e4m3", "guard",
     "FlashMLA 9804b12 csrc/api/sparse_fwd.h:141", ""},
    {kV, "any",
     "kernels=own attention_backend=nsa|auto nsa_prefill_backend=trtllm nsa_decode_backend!=trtllm "
     "kv_cache_dtype=auto|fp8_e4m3",
     "guard", kPlainPool, ""},
    {kV, "any",
     "kernels=own attention_backend=nsa|auto nsa_decode_backend=trtllm nsa_prefill_backend!=trtllm "
     "kv_cache_dtype=auto|fp8_e4m3",
     "guard", kPlainPool, ""},
    //     flashmla_kv on part of the heads, which 2026-04 does not pad.
    {kA, "*", "kernels=own attention_backend=nsa|auto nsa_prefill_backend=flashmla_kv kv_cache_dtype=f32|bf16 tp!=1",
     "guard", "FlashMLA 9804b12 csrc/api/sparse_decode.h:231-380; sglang #22372", ""},
    {kA, "*", "kernels=own attention_backend=nsa|auto nsa_decode_backend=flashmla_kv kv_cache_dtype=f32|bf16 tp!=1",
     "guard", "FlashMLA 9804b12 csrc/api/sparse_decode.h:231-380; sglang #22372", ""},
    //     FP8 in 2026-08: trtllm is the default, and makes the pool plain; asked for otherwise, packed.
    {kH, "any",
     "kernels=own attention_backend=nsa|auto nsa_prefill_backend=trtllm|auto nsa_decode_backend!=trtllm|auto "
     "kv_cache_dtype=auto|fp8_e4m3",
     "guard", kPlainPool, ""},
    {kH, "any",
     "kernels=own attention_backend=nsa|auto nsa_decode_backend=trtllm|auto nsa_prefill_backend!=trtllm|auto "
     "kv_cache_dtype=auto|fp8_e4m3",
     "guard", kPlainPool, ""},
    {kH, "any",
     "kernels=own attention_backend=nsa|auto nsa_prefill_backend=aiter|fa3|tilelang kv_cache_dtype=auto|fp8_e4m3",
     "guard", "sglang 93109cc layers/attention/nsa/tilelang_kernel.py:413-800; flash_attn.py takes bf16", ""},
    {kH, "any",
     "kernels=own attention_backend=nsa|auto nsa_decode_backend=aiter|flashmla_auto|fa3|tilelang|flashmla_sparse "
     "kv_cache_dtype=auto|fp8_e4m3",
     "guard", kNsa, ""},
    // --- refused at first use: dense backends
    {"*", "*", "kernels=own attention_backend=cutlass_mla", "guard", "sglang d69c39b server_args.py:2277-2284", ""},
    {"*", "*", "kernels=own attention_backend=ascend|intel_amx|intel_xpu", "guard", kAttention, ""},
    {kV, "*",
     "kernels=own attention_backend=triton|torch_native|flashmla|flex_attention|aiter|wave nsa_prefill_backend!=trtllm "
     "nsa_decode_backend!=trtllm kv_cache_dtype=auto|fp8_e4m3",
     "guard", kPool, ""},
    {kV, "*",
     "kernels=own attention_backend=fa3|trtllm_mla nsa_prefill_backend!=trtllm nsa_decode_backend!=trtllm "
     "kv_cache_dtype=auto|fp8_e4m3",
     "guard", "sglang d69c39b flashattention_backend.py:1335-1348, trtllm_mla_backend.py:822-823", ""},
    {kH, "any",
     "kernels=own attention_backend=triton|torch_native|flashmla|flex_attention|aiter|wave|fa3|trtllm_mla "
     "nsa_prefill_backend!=trtllm|auto nsa_decode_backend!=trtllm|auto kv_cache_dtype=auto|fp8_e4m3",
     "guard", kPool, ""},
    {kH, "sm_120",
     "kernels=own attention_backend=triton|torch_native|flex_attention|aiter|wave nsa_prefill_backend!=trtllm "
     "nsa_decode_backend!=trtllm kv_cache_dtype=auto|fp8_e4m3",
     "guard", kPool, ""},
    // --- this build lacks it
    {"*", "*", "kernels=own attention_backend=nsa|auto scale_format=ue8m0 kv_cache_dtype!=f32", "unsupported", kBuild,
     "index_scales=ue8m0"},
    {kBefore, "sm_120", "kernels=own shared_experts_fusion=on", "unsupported", kBuild, "shared_experts=fused"},
    {"*", "any", "kernels=own shared_experts_fusion=on moe_runner_backend!=auto|flashinfer_trtllm", "unsupported",
     kBuild, "shared_experts=fused"},
    {"*", "*", "slot_placement=high", "unsupported", kBuild, "slot_placement=high"},
    {"*", "*", "max_total_tokens!=auto", "unsupported", kBuild, "max_total_tokens=4096"},
    {"*", "*", "tp!=1", "unsupported", kBuild, "tp=8"},
    {"*", "any", "kernels=own attention_backend=nsa|auto nsa_prefill_backend=fa3 kv_cache_dtype=f32|bf16",
     "unsupported", kRegistry, "kernel nsa_prefill_backend=fa3"},
    {"*", "any", "kernels=own attention_backend=nsa|auto nsa_decode_backend=fa3 kv_cache_dtype=f32|bf16", "unsupported",
     kRegistry, "kernel nsa_decode_backend=fa3"},
    {"*", "any", "kernels=own attention_backend=nsa|auto nsa_prefill_backend=tilelang kv_cache_dtype=f32|bf16",
     "unsupported", kRegistry, "kernel nsa_prefill_backend=tilelang"},
    {"*", "any", "kernels=own attention_backend=nsa|auto nsa_decode_backend=tilelang kv_cache_dtype=f32|bf16",
     "unsupported", kRegistry, "kernel nsa_decode_backend=tilelang"},
    {"*", "*", "kernels=own attention_backend=fa3", "unsupported", kRegistry, "kernel attention_backend=fa3"},
    {"*", "*", "kernels=own attention_backend=trtllm_mla", "unsupported", kRegistry,
     "kernel attention_backend=trtllm_mla"},
    {"*", "*", "kernels=own attention_backend=flashmla", "unsupported", kRegistry, "kernel attention_backend=flashmla"},
    {"*", "*", "kernels=own attention_backend=torch_native", "unsupported", kRegistry,
     "kernel attention_backend=torch_native"},
    {"*", "*", "kernels=own attention_backend=fa4|trtllm_mha|dual_chunk_flash_attn|flex_attention|aiter|wave",
     "unsupported", kRegistry, ""},
    // --- written in one format, read in another
    {kV, "*",
     "kernels=own attention_backend=flashinfer nsa_prefill_backend!=trtllm nsa_decode_backend!=trtllm "
     "kv_cache_dtype=auto|fp8_e4m3",
     "layout", "sglang v0.5.9 layers/attention/flashinfer_mla_backend.py:613-619, 639-650", ""},
    {kH, "any",
     "kernels=own attention_backend=flashinfer nsa_prefill_backend!=trtllm|auto nsa_decode_backend!=trtllm|auto "
     "kv_cache_dtype=auto|fp8_e4m3",
     "layout", "sglang 93109cc mem_cache/memory_pool.py:1569-1620", ""},
    {kH, "sm_120",
     "kernels=own attention_backend=flashinfer nsa_prefill_backend!=trtllm nsa_decode_backend!=trtllm "
     "kv_cache_dtype=auto|fp8_e4m3",
     "layout", "sglang 93109cc mem_cache/memory_pool.py:1569-1620", ""},
    // --- another model than the checkpoint's
    //     MoE runners: gate's scale for up, the router's bias in BF16 (which `any` does not take from a default)
    {kBefore, "*",
     "kernels=own moe_runner_backend=flashinfer_trtllm|flashinfer_cutlass|flashinfer_cutedsl|cutlass|deep_gemm|triton",
     "setting", "sglang 93109cc layers/quantization/modelopt_quant.py:1703; models/deepseek_v2.py:279-285", ""},
    {kBefore, "sm_120", "kernels=own moe_runner_backend=auto", "setting", kRunners, ""},
    {kH, "*", "kernels=own moe_runner_backend=flashinfer_cutlass|flashinfer_cutedsl|marlin", "setting", kRunnersH, ""},
    {kH, "sm_120", "kernels=own moe_runner_backend=auto", "setting", kRunnersH, ""},
    {"*", "*", "numerics=transformers", "setting", "transformers glm_moe_dsa: eps 1e-6 (class default)", ""},
    {"*", "*", "rope_mode=theta_10000|half_split|swapped_half|none", "setting", "docs: RoPE and transformers 5", ""},
    {"*", "*", "kernels=reference rope_mode=indexer_half_split", "setting", "transformers #46842", ""},
    {"*", "*", "attention_backend=nsa|auto rope_mode=indexer_half_split", "setting", "transformers #46842", ""},
    {"*", "*", "kernels=own attention_backend=flashinfer|triton|fa3|trtllm_mla|flashmla|torch_native", "setting",
     "sglang 93109cc layers/attention/nsa/nsa_indexer.py:1038-1055 (dense attention past top-k)", ""},
    {"*", "*", "", "pass", "nothing refuses it", ""},
};

template <class Visitor>
void split(std::string_view text, char separator, Visitor&& visitor) {
  while (true) {
    const size_t at = text.find(separator);
    visitor(text.substr(0, at));
    if (at == std::string_view::npos) return;
    text.remove_prefix(at + 1);
  }
}

inline bool one_of(std::string_view value, std::string_view list) {
  bool found = false;
  split(list, '|', [&](std::string_view item) { found = found || item == value; });
  return found;
}

inline bool holds(std::string_view pattern, const AxisValues& axes) {
  bool all = true;
  split(pattern, ' ', [&](std::string_view term) {
    if (term.empty()) return;
    const size_t at = term.find('=');
    FAULTLINE_CHECK(at != std::string_view::npos && at > 0);
    const bool negated = term[at - 1] == '!';
    const auto axis = axes.find(std::string(term.substr(0, negated ? at - 1 : at)));
    FAULTLINE_CHECK(axis != axes.end());
    all = all && one_of(axis->second, term.substr(at + 1)) != negated;
  });
  return all;
}

inline bool built(std::string_view what) {
  constexpr std::string_view kKernel = "kernel ";
  const bool kernel = what.starts_with(kKernel);
  if (kernel) what.remove_prefix(kKernel.size());
  const size_t at = what.find('=');
  FAULTLINE_CHECK(at != std::string_view::npos);
  const std::string_view key = what.substr(0, at), value = what.substr(at + 1);
  return kernel ? kernel_serving(key, value, "attention") != nullptr : build_does(key, value);
}

}  // namespace expectations_detail

// The entry for a row; aborts when none matches (the last one matches all). `axes` has every axis.
inline const Expectation& expectation(std::string_view profile, std::string_view target, const AxisValues& axes) {
  using namespace expectations_detail;
  for (const Expectation& entry : kTable) {
    if (entry.profiles != "*" && !one_of(profile, entry.profiles)) continue;
    if (entry.targets != "*" && !one_of(target, entry.targets)) continue;
    if (!entry.lacks.empty() && built(entry.lacks)) continue;
    if (holds(entry.pattern, axes)) return entry;
  }
  FAULTLINE_CHECK(!"the last entry matches every row");
}

// The verdict that `bisect` must give a row: of `setting` rows "mismatch" under checks: reference, else "pass".
inline std::string expected_verdict(const Expectation& expectation, bool reference) {
  if (expectation.verdict == "setting") return reference ? "mismatch" : "pass";
  return std::string(expectation.verdict);
}

}  // namespace faultline
