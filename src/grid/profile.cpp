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
    target.note = "arch native: no GPU can be used here, so this is arch any: no architecture rules, defaults of sm_100";
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
  return p;
}

}  // namespace faultline
