// SGLang main of 2026-08-18 (c863760). It calls NSA "dsa" (#25821); the values are the same, and the axes keep their
// names.
#include "grid/profile_tables.h"

namespace faultline {

Profile make_profile_sglang_2026_08() {
  Profile p = common_rules();
  p.name = "sglang-2026-08";
  const std::vector<std::string> nsa = {
      "flashmla_sparse", "flashmla_kv",        "flashmla_auto",        "fa3", "tilelang", "aiter",
      "trtllm",          "flashmla_sparse_q8", "flashinfer_sparse_mla"};
  p.choices = {
      {"attention_backend",
       {"triton",     "torch_native", "flex_attention", "nsa",        "cutlass_mla", "fa3",
        "fa4",        "flashinfer",   "flashmla",       "trtllm_mla", "trtllm_mha",  "dual_chunk_flash_attn",
        "aiter",      "wave",         "intel_amx",      "ascend",     "intel_xpu",   "dsv4",
        "compressed", "cutedsl_mla",  "tokenspeed_mla", "hpc_ops"},
       "sglang c863760 server_args.py"},
      {"nsa_prefill_backend", nsa, "sglang c863760 server_args.py:349"},
      {"nsa_decode_backend", nsa, "sglang c863760 server_args.py:349"},
      {"kv_cache_dtype", {"fp8_e5m2", "fp8_e4m3", "bf16", "fp4_e2m1"}, "sglang 93109cc server_args.py:3857"},
      {"sampling_backend", {"flashinfer", "pytorch", "ascend"}, "sglang 93109cc server_args.py:78, 4680"},
      {"moe_runner_backend",
       {"deep_gemm", "triton", "triton_kernel", "flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutlass",
        "flashinfer_mxfp4", "flashinfer_cutedsl", "cutlass", "experimental_sgl_trtllm", "aiter", "marlin", "humming",
        "experimental_sgl_marlin", "hpc_ops", "megamoe"},
       "sglang c863760 server_args.py"},
      {"fp4_gemm_backend",
       {"flashinfer_cudnn", "flashinfer_cutlass", "flashinfer_trtllm", "flashinfer_cutedsl", "marlin"},
       "sglang c863760 server_args.py (no cutlass)"},
  };
  p.fp4_gemm_backend = {{{Arch::kSm90},
                         "marlin",
                         "sglang 2026-08 layers/quantization/modelopt_quant.py (read for MoE; products assumed alike)"},
                        {{Arch::kSm120}, "flashinfer_cudnn", "sglang 93109cc layers/quantization/fp4_utils.py:66-69"},
                        {{}, "flashinfer_cutlass", "sglang 93109cc layers/quantization/fp4_utils.py:66-69"}};
  p.moe_runner_backend = {
      {{Arch::kSm90}, "marlin", "sglang 2026-08 layers/quantization/modelopt_quant.py (auto before capability 10)"},
      {{Arch::kSm120},
       "flashinfer_cutlass",
       "sglang c863760 arg_groups/overrides.py:2505 (trtllm-gen MoE kernels are SM100-only)"},
      {{}, "flashinfer_trtllm", "sglang 93109cc server_args.py (modelopt_fp4 on SM100)"}};
  p.nsa_backends = {
      {"fp8_e4m3", {Arch::kSm90}, "flashmla_kv", "flashmla_kv", false, "sglang c863760 arg_groups/overrides.py"},
      {"fp8_e4m3",
       {Arch::kSm120},
       "flashinfer_sparse_mla",
       "flashinfer_sparse_mla",
       false,
       "sglang c863760 arg_groups/overrides.py:1690-1696"},
      {"fp8_e4m3", {}, "trtllm", "trtllm", false, "sglang c863760 arg_groups/overrides.py"},
      {"bf16", {Arch::kSm90}, "flashmla_sparse", "fa3", false, "sglang 93109cc server_args.py:1445-1492"},
      {"bf16", {}, "flashmla_sparse", "trtllm", false, "sglang 93109cc server_args.py:1445-1492"},
  };
  p.marlin_without_blackwell = true;
  p.nvfp4_guard = {
      "ValueError: Current platform does not support NVFP4 quantization with the selected MoE backend. Please use "
      "Blackwell and "
      "above, or use moe_runner_backend=marlin on SM80+.",
      "sglang 2026-08 layers/quantization/modelopt_quant.py, ModelOptNvFp4FusedMoEMethod"};
  p.router_bias_runners = {};  // F32 again: models/deepseek_v2.py:478-487
  p.gate_up_scale = {"this MoE runner takes gate's weight_scale_2 for up as well",
                     "sglang c863760 layers/quantization/modelopt_quant.py _compute_gemm1_alphas (one alpha), "
                     "process_weights_after_loading (marlin)"};
  p.gate_up_scale_runners = {"flashinfer_cutlass", "flashinfer_cutedsl", "marlin"};
  p.nvfp4_runners = {{"cutlass",
                      "",
                      true,
                      {"NotImplementedError: moe_runner_backend=cutlass is not supported for NVFP4 MoE. Use "
                       "--moe-runner-backend flashinfer_cutlass instead.",
                       "sglang c863760 layers/quantization/modelopt_quant.py:2713-2717"}}};
  for (const char* runner : {"deep_gemm", "triton", "triton_kernel", "flashinfer_mxfp4", "experimental_sgl_trtllm",
                             "aiter", "humming", "experimental_sgl_marlin", "hpc_ops", "megamoe"})
    p.nvfp4_runners.push_back(
        {runner,
         "",
         false,
         {fmt::format("NotImplementedError: Unsupported moe_runner_backend for NVFP4 MoE: {}. Use --moe-runner-backend "
                      "flashinfer_cutlass instead.",
                      runner),
          "sglang c863760 layers/quantization/modelopt_quant.py:2887-2890"}});
  p.indexer_archs = {};  // other logits kernels than DeepGEMM's can be chosen
  p.fusion_off = {"--disable-shared-experts-fusion is set by this MoE runner",
                  "sglang c863760 arg_groups/overrides.py:2520-2543"};
  p.fusion_off_runners = {"flashinfer_cutedsl", "flashinfer_trtllm", "experimental_sgl_trtllm",
                          "flashinfer_trtllm_routed"};
  p.sparse_mla_on_sm120 = true;
  p.sparse_mla_guard = {
      "ValueError: flashinfer_sparse_mla goes with SM120, an FP8 cache and page size 64, and they with it",
      "sglang c863760 kernels/ops/attention/flash_mla_sm120.py:568-600"};
  return p;
}

}  // namespace faultline
