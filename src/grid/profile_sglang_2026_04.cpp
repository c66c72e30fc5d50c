// SGLang main of 2026-04-05 (93109cc, about v0.5.10).
#include "grid/profile_tables.h"

namespace faultline {

Profile make_profile_sglang_2026_04() {
  Profile p = common_rules();
  p.name = "sglang-2026-04";
  const std::vector<std::string> nsa = {"flashmla_sparse", "flashmla_kv", "flashmla_auto", "fa3",
                                        "tilelang",        "aiter",       "trtllm"};
  p.choices = {
      {"attention_backend",
       {"triton", "torch_native", "flex_attention", "nsa", "cutlass_mla", "fa3", "fa4", "flashinfer", "flashmla",
        "trtllm_mla", "trtllm_mha", "dual_chunk_flash_attn", "aiter", "wave", "intel_amx", "ascend", "intel_xpu"},
       "sglang 93109cc server_args.py:127"},
      {"nsa_prefill_backend", nsa, "sglang 93109cc server_args.py:169, 4709-4720"},
      {"nsa_decode_backend", nsa, "sglang 93109cc server_args.py:169, 4709-4720"},
      {"kv_cache_dtype", {"fp8_e5m2", "fp8_e4m3", "bf16", "fp4_e2m1"}, "sglang 93109cc server_args.py:3857"},
      {"sampling_backend", {"flashinfer", "pytorch", "ascend"}, "sglang 93109cc server_args.py:78, 4680"},
      {"moe_runner_backend",
       {"deep_gemm", "triton", "triton_kernel", "flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutlass",
        "flashinfer_mxfp4", "flashinfer_cutedsl", "cutlass"},
       "sglang 93109cc server_args.py:183, 4916"},
      {"fp4_gemm_backend",
       {"cutlass", "flashinfer_cudnn", "flashinfer_cutlass", "flashinfer_trtllm"},
       "sglang 93109cc server_args.py:217, 4739"},
  };
  p.fp4_gemm_backend = {
      {{Arch::kSm120}, "flashinfer_cudnn", "sglang 93109cc layers/quantization/fp4_utils.py:66-69 (issue 20043: NaN)"},
      {{}, "flashinfer_cutlass", "sglang 93109cc layers/quantization/fp4_utils.py:66-69"}};
  p.moe_runner_backend = {
      {{Arch::kSm100}, "flashinfer_trtllm", "sglang 93109cc server_args.py (modelopt_fp4 on SM100)"},
      {{}, "cutlass", "sglang 93109cc layers/quantization/modelopt_quant.py (auto: cutlass_moe_fp4)"}};
  // On SM100 and above the FP8 defaults replace what the user asked for; 60acdc31f (#22430, 2026-04-09) fixed that.
  p.nsa_backends = {
      {"fp8_e4m3", {Arch::kSm90}, "flashmla_auto", "flashmla_kv", false, "sglang 93109cc server_args.py:1445-1492"},
      {"fp8_e4m3", {}, "trtllm", "trtllm", true, "sglang 93109cc server_args.py:1445-1492"},
      {"bf16", {Arch::kSm90}, "flashmla_sparse", "fa3", false, "sglang 93109cc server_args.py:1445-1492"},
      {"bf16", {}, "flashmla_sparse", "trtllm", false, "sglang 93109cc server_args.py:1445-1492"},
  };
  p.flashmla_kv_heads = {
      "flash_mla_with_kvcache: \"Unsupported h_q\" (it takes 64 or 128 heads, and this version does not pad them)",
      "FlashMLA 9804b12 csrc/api/sparse_decode.h:231-380; sglang #22372 (pads them, later)"};
  return p;
}

}  // namespace faultline
