#include "grid/profile.h"

#include <algorithm>

#include "base/text.h"
#include "grid/profile_tables.h"

namespace faultline {
namespace {

constexpr Arch kArchs[] = {Arch::kSm90, Arch::kSm100, Arch::kSm120};

const std::vector<Profile>& all_profiles() {
  static const std::vector<Profile> instance = {make_profile_sglang_0_5_9(), make_profile_sglang_2026_04(),
                                                make_profile_sglang_2026_08()};
  return instance;
}

}  // namespace

std::string_view arch_name(Arch arch) {
  switch (arch) {
    case Arch::kSm90:
      return "sm_90";
    case Arch::kSm100:
      return "sm_100";
    case Arch::kSm120:
      return "sm_120";
  }
  return "?";
}

std::vector<std::string> target_names() {
  std::vector<std::string> names = {"any", "native"};
  for (const Arch arch : kArchs) names.emplace_back(arch_name(arch));
  return names;
}

Result<Target> find_target(std::string_view name) {
  Target target;
  if (name == "any") return target;
  if (name == "native") {
    target.note =
        "arch native: no GPU can be used here, so this is arch any: no architecture rules, defaults of sm_100";
    return target;
  }
  for (const Arch arch : kArchs) {
    if (name != arch_name(arch)) continue;
    target.arch = arch;
    target.rules = true;
    target.name = name;
    return target;
  }
  return bad_input("unknown arch '{}'{}", quotable(name), suggestion(name, target_names()));
}

const Profile* find_profile(std::string_view name) {
  for (const Profile& profile : all_profiles())
    if (profile.name == name) return &profile;
  return nullptr;
}

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (const Profile& profile : all_profiles()) names.push_back(profile.name);
  return names;
}

bool applies_to(const std::vector<Arch>& archs, Arch arch) {
  return archs.empty() || std::find(archs.begin(), archs.end(), arch) != archs.end();
}

const ArchDefault& default_for(const std::vector<ArchDefault>& table, Arch arch) {
  const auto it =
      std::find_if(table.begin(), table.end(), [&](const ArchDefault& d) { return applies_to(d.archs, arch); });
  FAULTLINE_CHECK(it != table.end());
  return *it;
}

const std::vector<ArchDefault>* defaults_of(const Profile& profile, std::string_view axis) {
  const std::pair<std::string_view, const std::vector<ArchDefault>*> tables[] = {
      {"attention_backend", &profile.attention_backend}, {"kv_cache_dtype", &profile.kv_cache_dtype},
      {"fp4_gemm_backend", &profile.fp4_gemm_backend},   {"moe_runner_backend", &profile.moe_runner_backend},
      {"sampling_backend", &profile.sampling_backend},   {"shared_experts_fusion", &profile.shared_experts_fusion}};
  for (const auto& [name, table] : tables)
    if (name == axis) return table;
  return nullptr;
}

const NsaDefault& nsa_default(const Profile& profile, std::string_view kv_cache_dtype, Arch arch) {
  const std::string_view key = kv_cache_dtype == "fp8_e4m3" ? kv_cache_dtype : "bf16";
  const auto& table = profile.nsa_backends;
  const auto it = std::find_if(table.begin(), table.end(), [&](const NsaDefault& entry) {
    return entry.kv_cache_dtype == key && applies_to(entry.archs, arch);
  });
  FAULTLINE_CHECK(it != table.end());
  return *it;
}

Profile common_rules() {
  Profile p;
  p.attention_backend = {{{}, "nsa", "sglang 93109cc server_args.py:1536-1538"}};
  p.kv_cache_dtype = {{{Arch::kSm90}, "bf16", "sglang 93109cc server_args.py:1417-1443"},
                      {{}, "fp8_e4m3", "sglang 93109cc server_args.py:1417-1443 (capability major >= 10)"}};
  p.sampling_backend = {{{}, "flashinfer", "sglang 93109cc server_args.py:2211-2215"}};
  p.kv_dtype_guard = {"AssertionError: DeepSeek DSA only supports bf16/bfloat16 or fp8_e4m3 kv_cache_dtype",
                      "sglang 93109cc server_args.py:1440-1443"};
  p.packed_store_guard = {"AssertionError: assert not self.nsa_kv_cache_store_fp8, in MLATokenToKVPool.set_kv_buffer",
                          "sglang 93109cc mem_cache/memory_pool.py:1558"};
  p.cache_dimension = {"an FP8 pool is plain (576 a token) when either NSA backend is trtllm, otherwise packed (656)",
                       "sglang 93109cc model_executor/model_runner_kv_cache_mixin.py:240-285"};
  p.packed_read_as_plain = {
      "the cache is written packed (e4m3 with fp32 scales and bf16 rope, 656 bytes a token) and read as plain e4m3: "
      "scales are "
      "ignored, and bytes of scales and rope are taken for values",
      "sglang 93109cc mem_cache/memory_pool.py:1569-1620"};
  p.sparse_decode_guard = {
      "decode hands the FP8 pool to flash_mla_sparse_fwd as it is, and that kernel checks that kv is BF16",
      "sglang v0.5.9 layers/attention/nsa_backend.py forward_decode, _forward_flashmla_sparse; FlashMLA "
      "9804b12 csrc/api/sparse_fwd.h:141"};
  p.gather_guard = {
      "AssertionError: dim_quant: 576 != 656 detected in dequantize_k_cache_paged, at the first prefill with a prefix",
      "sglang 93109cc layers/attention/nsa/dequant_k_cache.py:168-282"};
  p.flashmla_kv_guard = {
      "flash_mla_with_kvcache checks for 656 bytes a token, and a trtllm backend beside it makes the pool 576",
      "FlashMLA 9804b12 csrc/api/sparse_decode.h:231-380; sglang 93109cc "
      "model_executor/model_runner_kv_cache_mixin.py:251-261"};
  p.fused_rope_note = {
      "RoPE is fused into trtllm's FP8 quantisation when either side is trtllm, so the other side gets q and k without "
      "it",
      "sglang 93109cc layers/attention/nsa_backend.py:1917-2041"};
  p.nvfp4_guard = {"ValueError: Current platform does not support NVFP4 quantization. Please use Blackwell and above.",
                   "sglang 93109cc layers/quantization/modelopt_quant.py:1530"};
  p.indexer_guard = {"the indexer's DeepGEMM logits kernel: \"Unsupported architecture\"",
                     "DeepGEMM 54e2261 csrc/apis/attention.hpp:189, 227, 393"};
  p.indexer_archs = {Arch::kSm90, Arch::kSm100};
  p.dense_prefill = {{{Arch::kSm90}, "2048", "sglang 93109cc server_args.py:1516-1535"},
                     {{}, "0", "sglang 93109cc server_args.py:1516-1535 (off for GlmMoeDsaForCausalLM on Blackwell)"}};
  p.shared_experts_fusion = {
      {{}, "on", "sglang d69c39b models/deepseek_v2.py:2131-2173, models/glm4_moe.py:1290 (256 experts, one shared)"}};
  p.page_size = {"the server forces 64 for this model", "sglang 93109cc server_args.py:1573-1582"};
  p.forced_yarn = {
      "rope_type deepseek_yarn without a factor: a warning, factor 1.0 and no mscale, which changes nothing (read in "
      "the "
      "source, not run); older versions stop with KeyError 'factor'",
      "sglang d69c39b layers/rotary_embedding/factory.py:269, configs/model_config.py:1409-1423; sglang 3e4a39e"};
  p.fusion_off = {"--disable-shared-experts-fusion is set by this MoE runner",
                  "sglang d69c39b server_args.py:2633, 2644"};
  p.fusion_off_runners = {"flashinfer_trtllm", "flashinfer_trtllm_routed"};
  p.router_bias = {"with modelopt_fp4 this MoE runner takes the router's correction bias in BF16",
                   "sglang v0.5.9 models/deepseek_v2.py:308-313, 93109cc models/deepseek_v2.py:279-285; sglang #37133, "
                   "#31001"};
  p.router_bias_runners = {"flashinfer_trtllm"};
  p.gate_up_scale = {"this MoE runner takes gate's weight_scale_2 for up as well, with a warning where they differ",
                     "sglang 93109cc layers/quantization/modelopt_quant.py:1703"};
  p.gate_up_scale_runners = {"flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl", "cutlass"};
  const Cited falls_through = {
      "NVFP4 experts have no path of this runner's, and what is left of apply() is "
      "cutlass_moe_fp4, as under cutlass",
      "sglang v0.5.9, 93109cc layers/quantization/modelopt_quant.py "
      "ModelOptNvFp4FusedMoEMethod.apply; sglang #19948 ran deep_gemm so"};
  const auto no_choices = [](const char* output) {
    return Cited{
        fmt::format("AttributeError: {} has no topk_weights, which the path that NVFP4 experts take reads", output),
        "sglang v0.5.9, 93109cc layers/moe/topk.py TopK.forward_cuda, layers/quantization/modelopt_quant.py "
        "ModelOptNvFp4FusedMoEMethod.apply"};
  };
  p.nvfp4_runners = {
      {"deep_gemm", "cutlass", false, falls_through},
      {"triton", "cutlass", false, falls_through},
      {"triton_kernel", "", false, no_choices("TritonKernelTopKOutput")},
      {"flashinfer_mxfp4", "", false, no_choices("BypassedTopKOutput")},
      {"flashinfer_trtllm_routed",
       "",
       true,
       {"AssertionError: FlashInfer TRTLLM routed MOE supports only: 'fp8', 'mxfp8', or bfloat16 (None).",
        "sglang 93109cc server_args.py:2694-2700 _handle_moe_kernel_config"}}};
  p.index_hadamard = {"the indexer's queries and keys pass a Hadamard transform after RoPE",
                      "sglang 93109cc layers/attention/nsa/nsa_indexer.py:135, 143"};
  p.index_query = {"the indexer's queries are quantised to e4m3, one scale a head",
                   "sglang 93109cc layers/attention/nsa/tilelang_kernel.py:32-132"};
  p.expert_input_scales = {"this MoE runner has an input scale for each expert",
                           "sglang 93109cc layers/quantization/modelopt_quant.py:1713-1720"};
  p.expert_input_scale_runners = {"cutlass"};
  p.query_in_fp8 = {"over an FP8 cache the query is quantised to e4m3 too",
                    "sglang 93109cc layers/attention/nsa_backend.py:1917-2041"};
  p.ue8m0 = {
      "FP8 block scales are rounded up to powers of two (act_quant with scale_fmt ue8m0, and what DEEPGEMM_SCALE_UE8M0 "
      "makes of weights on Blackwell, SM120 included)",
      "sglang 93109cc layers/attention/nsa/tilelang_kernel.py:32-132, layers/deep_gemm_wrapper/configurer.py:10-25"};
  p.fp4_race_note = {
      "fp4_gemm_backend=flashinfer_cutlass on SM120 is known for NaN in dense MLP layers with mixed batches: a "
      "dependent "
      "launch whose wait is compiled out",
      "sglang #20043, #20047; flashinfer #2708, #2716"};
  p.gather_overflow = {
      "dequantize_k_cache_paged computes offsets in int32, which overflow for slots from 3273603 on (656 bytes a row)",
      "sglang 93109cc layers/attention/nsa/dequant_k_cache.py:168-282"};
  p.index_overflow = {
      "the fused store of index keys computes offsets of pages in int32, which overflow past 254200 pages of 8448 "
      "bytes",
      "sglang 93109cc jit_kernel/csrc/nsa/fused_store_index_cache.cuh"};
  p.pool_memory = {"RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
                   "sglang d69c39b model_executor/model_runner_kv_cache_mixin.py:55"};
  return p;
}

}  // namespace faultline
