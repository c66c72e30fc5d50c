#include "grid/backends.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ops/op.h"

namespace faultline {
namespace {

constexpr std::pair<Format, std::string_view> kFormatNames[] = {{Format::kKvF32, "kv_f32"},
                                                                {Format::kKvBf16, "kv_bf16"},
                                                                {Format::kKvPacked, "kv_packed"},
                                                                {Format::kKvPlainFp8, "kv_plain_fp8"}};

// Any kernel of ours reads an F32 cache, which exists for comparison with other engines and which no server has.
const std::vector<Format> kBf16Only = {Format::kKvF32, Format::kKvBf16};
const std::vector<Arch> kFlashMlaArchs = {Arch::kSm90, Arch::kSm100};
constexpr int64_t kTilelangSharedBytes = 206848;  // reported at 64 heads, sglang #38370

Backend flashmla_sparse(AttentionPhase phase) {
  Backend b;
  b.kernel = "flashmla_sparse";
  b.sparse = true;
  b.formats = kBf16Only;
  if (phase == AttentionPhase::kPrefill) {
    b.formats.push_back(Format::kKvPacked);
    b.gathers_packed = true;
  }
  b.pads_heads = true;
  b.needs_width_576 = true;
  b.archs = kFlashMlaArchs;
  b.elsewhere = "Sparse Attention Forward Kernel is only supported on SM90a and SM100f architectures.";
  b.source =
      "FlashMLA 9804b12 csrc/api/sparse_fwd.h:115-239; sglang 93109cc layers/attention/nsa_backend.py:1355-1420, "
      "1651-1698";
  return b;
}

Backend flashmla_kv() {
  Backend b;
  b.kernel = "flashmla_kv";
  b.sparse = true;
  b.formats = {Format::kKvF32, Format::kKvBf16, Format::kKvPacked};
  b.requantizes_bf16 = true;
  b.needs_width_576 = true;
  b.archs = kFlashMlaArchs;
  b.elsewhere = "Unsupported architecture for sparse decode fwd";
  b.source =
      "FlashMLA 9804b12 csrc/api/sparse_decode.h:231-380; sglang 93109cc layers/attention/nsa_backend.py:1700-1743";
  return b;
}

Backend trtllm_sparse() {
  Backend b;
  b.kernel = "trtllm";
  b.sparse = true;
  b.formats = {Format::kKvF32, Format::kKvBf16, Format::kKvPlainFp8};
  b.archs = {Arch::kSm100};
  b.elsewhere = "TllmGenFmhaRunner: Unsupported architecture";
  b.source =
      "flashinfer fb28d72 include/flashinfer/trtllm/fmha/fmhaRunner.cuh:37-38; sglang 93109cc "
      "layers/attention/nsa_backend.py:1917-2041";
  return b;
}

Backend nsa_without_kernel(std::string_view value) {
  Backend b;
  b.sparse = true;
  if (value == "fa3") {
    b.formats = kBf16Only;
    b.archs = {Arch::kSm90};
    b.elsewhere = "FlashAttention 3 is built for SM8x and SM90 only";
    b.source = "sglang 93109cc sgl-kernel/python/sgl_kernel/flash_attn.py:16-28";
  } else if (value == "tilelang") {
    b.formats = kBf16Only;
    b.shared_memory_bytes = kTilelangSharedBytes;
    b.elsewhere = "Failed to set the allowed dynamic shared memory size to 206848";
    b.source = "sglang 93109cc layers/attention/nsa/tilelang_kernel.py:413-800 (main input KV dtype expected bfloat16)";
  } else if (value == "aiter") {
    b.refused = "ValueError: Unsupported nsa_impl (aiter is for HIP)";
    b.source = "sglang 93109cc layers/attention/nsa_backend.py:1461, 1611";
  } else if (value == "flashmla_auto") {  // in prefill it was resolved to one of two before it gets here
    b.refused = "ValueError: Unsupported nsa_impl (flashmla_auto is no decode backend)";
    b.source = "sglang 93109cc layers/attention/nsa_backend.py:1461, 1611";
  } else if (value == "flashinfer_sparse_mla") {
    b.formats = {Format::kKvPacked};
    b.archs = {Arch::kSm120};
    b.elsewhere = "ValueError: flashinfer_sparse_mla is for SM120";
    b.source = "sglang c863760 kernels/ops/attention/flash_mla_sm120.py:568-600";
  }
  return b;
}

std::optional<Backend> find_nsa(std::string_view value, AttentionPhase phase) {
  if (value == "flashmla_sparse") return flashmla_sparse(phase);
  if (value == "flashmla_kv") return flashmla_kv();
  if (value == "trtllm") return trtllm_sparse();
  return std::nullopt;
}

std::optional<Backend> find_dense(std::string_view value) {
  Backend b;
  if (value == "flashinfer") {
    b.kernel = "flashinfer";
    b.reads_packed_as_plain = true;
    b.prefill_from_rows = true;
    b.source = "sglang v0.5.9 layers/attention/flashinfer_mla_backend.py:613-650";
    return b;
  }
  if (value == "triton") {
    b.kernel = "triton";
    b.stores_by_assertion = true;
    b.prefill_from_rows = true;
    b.source =
        "sglang 93109cc layers/attention/triton_backend.py:827, 834, 1062, 1069; "
        "models/deepseek_common/attention_backend_handler.py";
    return b;
  }
  return std::nullopt;
}

Backend dense_without_kernel(std::string_view value) {
  static const std::map<std::string_view, std::string_view> kStoreByAssertion = {
      {"flashmla", "sglang 93109cc layers/attention/flashmla_backend.py:413, 491"},
      {"torch_native", "sglang 93109cc mem_cache/memory_pool.py:1558"},
      {"flex_attention", "sglang 93109cc mem_cache/memory_pool.py:1558"},
      {"aiter", "sglang 93109cc mem_cache/memory_pool.py:1558"},
      {"wave", "sglang 93109cc mem_cache/memory_pool.py:1558"}};
  Backend b;
  if (const auto it = kStoreByAssertion.find(value); it != kStoreByAssertion.end()) {
    b.stores_by_assertion = true;
    b.source = it->second;
  }
  if (value == "trtllm_mla") {
    b.archs = {Arch::kSm100, Arch::kSm120};
    b.elsewhere = "ValueError: trtllm_mla needs Blackwell";
    b.source = "sglang 93109cc server_args.py:2353-2360";
  }
  return b;
}

Backend from_registry(const Kernel& kernel) {
  Backend b;
  b.kernel = kernel.name;
  b.sparse = kernel.sparse;
  b.formats = kernel.cache_formats;
  for (const int architecture : kernel.architectures) b.archs.push_back(static_cast<Arch>(architecture));
  b.elsewhere = "no kernel image for this architecture";
  b.shared_memory_bytes = kernel.shared_memory_bytes;
  b.source = kernel.source.empty() ? "kernel registration of " + kernel.name : kernel.source;
  return b;
}

}  // namespace

std::string_view resolved_format_name(Format format) {
  for (const auto& [value, name] : kFormatNames)
    if (value == format) return name;
  return "?";
}

std::optional<Format> format_from_resolved(std::string_view name) {
  for (const auto& [value, format] : kFormatNames)
    if (format == name) return value;
  return std::nullopt;
}

Backend find_backend(std::string_view axis, std::string_view value, AttentionPhase phase) {
  const bool dense = axis == "attention_backend";
  if (auto known = dense ? find_dense(value) : find_nsa(value, phase)) return *std::move(known);
  if (const Kernel* kernel = kernel_serving(axis, value, "attention")) return from_registry(*kernel);
  return dense ? dense_without_kernel(value) : nsa_without_kernel(value);
}

int64_t shared_memory_limit(Arch arch) {
  // CUDA C programming guide, technical specifications per compute capability: 227 KB on 9.0 and 10.0, 99 KB on 12.0.
  constexpr int64_t kKiB = 1024;
  return arch == Arch::kSm120 ? 99 * kKiB : 227 * kKiB;
}

}  // namespace faultline
