// SGLang v0.5.9 (tag, bbe9c7e).
#include "grid/profile_tables.h"

namespace faultline {

Profile make_profile_sglang_0_5_9() {
  Profile p = common_rules();
  p.name = "sglang-0.5.9";
  const std::vector<std::string> nsa = {"flashmla_sparse", "flashmla_kv", "flashmla_auto", "fa3",
                                        "tilelang",        "aiter",       "trtllm"};
  p.choices = {
      {"attention_backend",
       {"triton", "torch_native", "flex_attention", "nsa", "cutlass_mla", "fa3", "fa4", "flashinfer", "flashmla",
        "trtllm_mla", "trtllm_mha", "dual_chunk_flash_attn", "aiter", "wave", "intel_amx", "ascend", "intel_xpu"},
       "sglang 93109cc server_args.py:127"},
      {"nsa_prefill_backend", nsa, "sglang 93109cc server_args.py:169"},
      {"nsa_decode_backend", nsa, "sglang 93109cc server_args.py:169"},
      {"kv_cache_dtype", {"fp8_e5m2", "fp8_e4m3", "bf16", "fp4_e2m1"}, "sglang 93109cc server_args.py:3857"},
      {"sampling_backend", {"flashinfer", "pytorch", "ascend"}, "sglang 93109cc server_args.py:78"},
      {"moe_runner_backend",
       {"deep_gemm", "triton", "triton_kernel", "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_mxfp4",
        "flashinfer_cutedsl", "cutlass"},
       "sglang v0.5.9 server_args.py (no flashinfer_trtllm_routed)"},
      {"fp4_gemm_backend",
       {"flashinfer_cudnn", "flashinfer_cutlass", "flashinfer_trtllm"},
       "sglang v0.5.9 server_args.py (no cutlass)"},
  };
  p.fp4_gemm_backend = {{{}, "flashinfer_cutlass", "sglang v0.5.9 server_args.py (default flashinfer_cutlass)"}};
  p.moe_runner_backend = {
      {{Arch::kSm100}, "flashinfer_trtllm", "sglang 93109cc server_args.py (modelopt_fp4 on SM100)"},
      {{}, "cutlass", "sglang 93109cc layers/quantization/modelopt_quant.py (auto: cutlass_moe_fp4)"}};
  // SM120 has no branch of its own: the test is capability major >= 10.
  p.nsa_backends = {
      {"fp8_e4m3", {}, "flashmla_auto", "flashmla_kv", false, "sglang v0.5.9 server_args.py:1154-1180"},
      {"bf16", {Arch::kSm90}, "flashmla_sparse", "fa3", false, "sglang v0.5.9 server_args.py:1154-1180"},
      {"bf16", {}, "flashmla_sparse", "trtllm", false, "sglang v0.5.9 server_args.py:1154-1180"},
  };
  p.packed_store_guard.source = "sglang v0.5.9 mem_cache/memory_pool.py:1498";
  p.packed_read_as_plain.source =
      "sglang v0.5.9 layers/attention/flashinfer_mla_backend.py:613-619 (store), 639-650 (read)";
  return p;
}

}  // namespace faultline
