#include "grid/backends.h"

#include <algorithm>

namespace faultline {
namespace {

constexpr std::pair<Format, std::string_view> kFormatNames[] = {{Format::kKvF32, "kv_f32"},
                                                                {Format::kKvBf16, "kv_bf16"},
                                                                {Format::kKvPacked, "kv_packed"},
                                                                {Format::kKvPlainFp8, "kv_plain_fp8"}};

constexpr int64_t kGridZ = 65535;  // CUDA C++ programming guide, technical specifications: gridDim.y and gridDim.z

// Any kernel of ours reads an F32 cache, which exists for comparison with other engines and which no server has.
const std::vector<Format> kBf16Only = {Format::kKvF32, Format::kKvBf16};
const std::vector<Format> kBf16OrPlain = {Format::kKvF32, Format::kKvBf16, Format::kKvPlainFp8};
const std::vector<Arch> kFlashMlaArchs = {Arch::kSm90, Arch::kSm100};

// Sparse backends: values of nsa_prefill_backend and nsa_decode_backend.
std::vector<Backend> sparse_table(AttentionPhase phase) {
  const bool prefill = phase == AttentionPhase::kPrefill;
  std::vector<Format> sparse_formats = kBf16Only;
  if (prefill) sparse_formats.push_back(Format::kKvPacked);
  std::vector<Backend> table = {
      {.value = "flashmla_sparse",
       .formats = sparse_formats,
       .gathers_packed = prefill,
       .pads_heads = true,
       .needs_width_576 = true,
       .archs = kFlashMlaArchs,
       .elsewhere = "Sparse Attention Forward Kernel is only supported on SM90a and SM100f architectures.",
       .shared_bytes = {{1, 230784}},  // computed from its SM90 tiles
       .source = "FlashMLA 9804b12 csrc/api/sparse_fwd.h:115-239; sglang 93109cc "
                 "layers/attention/nsa_backend.py:1355-1420, 1651-1698"},
      {.value = "flashmla_kv",
       .formats = {Format::kKvF32, Format::kKvBf16, Format::kKvPacked},
       .requantizes_bf16 = true,
       .needs_width_576 = true,
       .archs = kFlashMlaArchs,
       .elsewhere = "Unsupported architecture for sparse decode fwd",
       .shared_bytes = {{1, 230528}},  // computed from its SM90 tiles
       .source = "FlashMLA 9804b12 csrc/api/sparse_decode.h:231-380; sglang 93109cc "
                 "layers/attention/nsa_backend.py:1700-1743"},
      {.value = "trtllm",
       .formats = kBf16OrPlain,
       .quantizes_query = true,
       .most_tokens = kGridZ,
       .most_tokens_source = "sglang #29453: the tokens of a launch are gridDim.z (CUDA_ERROR_INVALID_VALUE)",
       .archs = {Arch::kSm100},
       .elsewhere = "TllmGenFmhaRunner: Unsupported architecture",
       .source = "flashinfer fb28d72 include/flashinfer/trtllm/fmha/fmhaRunner.cuh:37-38; sglang 93109cc "
                 "layers/attention/nsa_backend.py:1917-2041"},
      {.value = "fa3",
       .formats = kBf16Only,
       .archs = {Arch::kSm90},
       .elsewhere = "FlashAttention 3 is built for SM8x and SM90 only",
       .source = "sglang 93109cc sgl-kernel/python/sgl_kernel/flash_attn.py:16-28, "
                 "layers/attention/nsa_backend.py:1613-1649"},
      {.value = "tilelang",
       .formats = kBf16Only,
       .topk = {2048},
       .archs = {Arch::kSm90},
       .elsewhere = "tilelang's CUDA kernel waits for wgmma, which only SM90 has (read in its source, not run)",
       .launched_anywhere = true,
       // sparse_attention_fwd_kernel_v2, computed from its buffers; 64 heads as reported (v1), sglang #38370.
       .shared_bytes = {{1, 168192}, {32, 188800}, {64, 206848}},
       .packed_refusal = "main input KV dtype expected bfloat16, but got float8_e4m3fn",
       .source = "sglang 93109cc layers/attention/nsa/tilelang_kernel.py:413-800, 1319"},
      {.value = "aiter",
       .refused = "ValueError: Unsupported nsa_impl (aiter is for HIP)",
       .source = "sglang 93109cc layers/attention/nsa_backend.py:1461, 1611"},
      {.value = "flashmla_auto",  // in prefill it was resolved to one of two before it gets here
       .refused = "AssertionError: Unsupported nsa_decode_impl (flashmla_auto is no decode backend)",
       .source = "sglang 93109cc layers/attention/nsa_backend.py:1461, 1611"},
      {.value = "flashinfer_sparse_mla",
       .formats = {Format::kKvF32, Format::kKvPacked},
       .needs_width_576 = true,
       .heads = {8, 16, 32, 64, 128},
       .topk = {128, 512, 1024, 2048},
       .archs = {Arch::kSm120},
       .elsewhere = "ValueError: flashinfer_sparse_mla is for SM120",
       .source = "sglang c863760 kernels/ops/attention/flash_mla_sm120.py:568-600; flashinfer fb28d72 "
                 "flashinfer/mla/_sparse_mla_sm120.py"},
      {.value = "flashmla_sparse_q8",
       .archs = kFlashMlaArchs,
       .elsewhere = "FlashMLA is built for sm_90a, sm_100a and sm_103a only",
       .source = "sglang c863760 server_args.py:349; sglang 93109cc sgl-kernel/cmake/flashmla.cmake"},
  };
  for (Backend& backend : table) backend.sparse = true;
  return table;
}

// Backends of attention_backend other than nsa: dense attention over the whole context, because
// get_indexer_metadata() of anything but nsa is None (sglang 93109cc layers/attention/nsa/nsa_indexer.py:1038-1055).
std::vector<Backend> dense_table(AttentionPhase phase) {
  const bool decode = phase == AttentionPhase::kDecode;
  constexpr std::string_view kOtherHardware = "is for other hardware than NVIDIA's";
  const auto elsewhere = [&](const char* value, bool asserts, const char* source) {
    return Backend{.value = value,
                   .stores_by_assertion = asserts,
                   .refused = asserts ? "" : fmt::format("attention_backend={} {}", value, kOtherHardware),
                   .source = source};
  };
  return {
      {.value = "flashinfer",
       .reads_packed_as_plain = true,
       .prefill_from_rows = true,
       .source = "sglang v0.5.9 layers/attention/flashinfer_mla_backend.py:613-650"},
      {.value = "triton",
       .formats = {Format::kKvF32, Format::kKvBf16, Format::kKvPlainFp8, Format::kKvPacked},
       .stores_by_assertion = true,
       .prefill_from_rows = true,
       .source = "sglang 93109cc layers/attention/triton_backend.py:827, 834, 1062, 1069; "
                 "models/deepseek_common/attention_backend_handler.py"},
      {.value = "torch_native",
       .stores_by_assertion = true,
       .source = "sglang d69c39b layers/attention/torch_native_backend.py:96-99, 170-173 (keys are cast to the query's "
                 "dtype); sglang 93109cc mem_cache/memory_pool.py:1558"},
      {.value =
           "flashmla",  // its extend is FlashInferMLAAttnBackend's, without a k_rope apart: stored by set_kv_buffer
       .served_by = decode ? "" : "flashinfer",
       .stores_by_assertion = true,
       .prefill_from_rows = true,
       .archs = decode ? std::vector<Arch>{Arch::kSm90} : std::vector<Arch>{},
       .elsewhere = "FlashMLA's dense decode kernel exists for SM90a only",
       .source =
           "sglang d69c39b layers/attention/flashmla_backend.py:46, 413-469, 484; FlashMLA README, table of kernels"},
      {.value = "fa3",
       .formats = kBf16OrPlain,
       .archs = {Arch::kSm90},
       .elsewhere = "FlashAttention 3 is built for SM8x and SM90 only",
       .packed_refusal =
           "RuntimeError of view(): columns 512 to 655 of the packed pool are taken for rope of 64, which "
           "144 columns are no multiple of",
       .source = "sglang d69c39b layers/attention/flashattention_backend.py:1335-1348; sglang 93109cc "
                 "sgl-kernel/python/sgl_kernel/flash_attn.py:16-28"},
      {.value = "trtllm_mla",
       .formats = kBf16OrPlain,
       .prefill_from_rows = true,
       .quantizes_query = true,
       .archs = {Arch::kSm100},
       .elsewhere = "TllmGenFmhaRunner: Unsupported architecture",
       .refused_archs = {Arch::kSm90},
       .refusal_there = "ValueError: TRTLLM MLA backend is only supported on Blackwell GPUs (SM100/SM12x).",
       .packed_refusal =
           "RuntimeError of view(-1, 64, 576): a packed pool of 656 bytes a token has that shape only when its "
           "pages are a multiple of 36, and then rows lie elsewhere than they are read",
       .source = "sglang 93109cc server_args.py:2353-2360; sglang d69c39b "
                 "layers/attention/trtllm_mla_backend.py:822-823, 976-977; flashinfer fb28d72 "
                 "include/flashinfer/trtllm/fmha/fmhaRunner.cuh:37-38"},
      {.value = "cutlass_mla",
       .refused = "AssertionError: cutlass_mla changes page_size to 128, and the index pool asserts page_size == 64",
       .source = "sglang d69c39b server_args.py:2277-2284, mem_cache/memory_pool.py:1839"},
      elsewhere("flex_attention", true, "sglang 93109cc mem_cache/memory_pool.py:1558"),
      elsewhere("aiter", true, "sglang 93109cc mem_cache/memory_pool.py:1558"),
      elsewhere("wave", true, "sglang 93109cc mem_cache/memory_pool.py:1558"),
      elsewhere("intel_amx", false, "sglang 93109cc server_args.py:127"),
      elsewhere("intel_xpu", false, "sglang 93109cc server_args.py:127"),
      elsewhere("ascend", false, "sglang 93109cc server_args.py:127"),
  };
}

const std::vector<Backend>& table_of(bool dense, AttentionPhase phase) {
  struct Phases {
    std::vector<Backend> dense, sparse;
  };
  static const Phases prefill = {dense_table(AttentionPhase::kPrefill), sparse_table(AttentionPhase::kPrefill)};
  static const Phases decode = {dense_table(AttentionPhase::kDecode), sparse_table(AttentionPhase::kDecode)};
  const Phases& tables = phase == AttentionPhase::kPrefill ? prefill : decode;
  return dense ? tables.dense : tables.sparse;
}

Backend from_registry(const Kernel& kernel) {
  Backend b;
  b.kernel = &kernel;
  b.sparse = kernel.sparse;
  b.formats = kernel.cache_formats;
  for (const int architecture : kernel.architectures) b.archs.push_back(static_cast<Arch>(architecture));
  b.elsewhere = "no kernel image for this architecture";
  if (kernel.shared_memory_bytes > 0) b.shared_bytes = {{1, kernel.shared_memory_bytes}};
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

int64_t Backend::shared_bytes_at(int64_t heads_per_rank) const {
  int64_t bytes = 0;
  for (const auto& [from, needed] : shared_bytes)
    if (heads_per_rank >= from) bytes = needed;
  return bytes;
}

Backend find_backend(std::string_view axis, std::string_view value, AttentionPhase phase) {
  const bool dense = axis == "attention_backend";
  const std::vector<Backend>& table = table_of(dense, phase);
  const auto known = std::find_if(table.begin(), table.end(), [&](const Backend& b) { return b.value == value; });
  const bool lent = known != table.end() && !known->served_by.empty();
  const Kernel* kernel = kernel_serving(axis, lent ? std::string_view(known->served_by) : value, "attention");
  if (known == table.end() && kernel != nullptr) return from_registry(*kernel);
  Backend backend = known == table.end() ? Backend{.sparse = !dense} : *known;
  backend.value = value;
  backend.kernel = kernel;
  return backend;
}

int64_t shared_memory_limit(Arch arch) {
  // CUDA C++ programming guide, technical specifications per compute capability: 227 KB on 9.0 and 10.0, 99 KB on 12.0.
  constexpr int64_t kKiB = 1024;
  return arch == Arch::kSm120 ? 99 * kKiB : 227 * kKiB;
}

}  // namespace faultline
