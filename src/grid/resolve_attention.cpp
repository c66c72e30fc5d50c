// Attention: which kernels a row selects, and what refuses them.
#include <algorithm>

#include "grid/axes.h"
#include "grid/resolver.h"

namespace faultline {
namespace {

constexpr int64_t kFastTopK = 2048;      // sgl-kernel's fast_topk
constexpr int64_t kFlashMlaWidth = 576;  // latent + rope

}  // namespace

void Resolver::choose_attention() {
  const std::string backend = asked_or_default("attention_backend");
  for (const std::string_view key :
       {"prefill_gathers", "prefill_from_rows", "prefill_requantizes", "decode_requantizes"})
    effect(key) = "off";
  effect("prefill_reads") = effect("decode_reads") = effect("kv_format");
  if (reference_) {
    for (const std::string_view axis : {"attention_backend", "nsa_prefill_backend", "nsa_decode_backend"})
      effect(axis) = kNoEffect;
    effect("prefill_attention") = effect("decode_attention") = "reference";
    effect("indexer") = "on";
    return;
  }
  effect("attention_backend") = backend;
  if (backend == "nsa")
    choose_sparse();
  else
    choose_dense(backend);
}

void Resolver::choose_sparse() {
  if (nsa_prefill_ == "flashmla_auto") nsa_prefill_ = auto_prefill();
  effect("nsa_prefill_backend") = nsa_prefill_;
  effect("nsa_decode_backend") = nsa_decode_;
  effect("indexer") = "on";
  check_indexer();
  check_sparse_mla();
  const Backend prefill = find_backend("nsa_prefill_backend", nsa_prefill_, AttentionPhase::kPrefill);
  const Backend decode = find_backend("nsa_decode_backend", nsa_decode_, AttentionPhase::kDecode);
  use("nsa_prefill_backend", nsa_prefill_, prefill, AttentionPhase::kPrefill);
  use("nsa_decode_backend", nsa_decode_, decode, AttentionPhase::kDecode);
  if (kv_format_ == Format::kKvPlainFp8 && nsa_prefill_ != nsa_decode_)
    note(profile_.fused_rope_note.text + " (" + profile_.fused_rope_note.source + ")");
}

// sglang 93109cc nsa_backend.py:2068-2116. The test on Blackwell is total_kv < 512 x total_q, which prefill probes
// meet up to chunks after a prefix 511 times as long.
std::string Resolver::auto_prefill() const {
  if (kv_ != "fp8_e4m3" || target_.arch != Arch::kSm90) return "flashmla_sparse";
  return "flashmla_kv";
}

void Resolver::choose_dense(const std::string& backend) {
  effect("nsa_prefill_backend") = effect("nsa_decode_backend") = kNoEffect;
  const Backend prefill = find_backend("attention_backend", backend, AttentionPhase::kPrefill);
  const Backend decode = find_backend("attention_backend", backend, AttentionPhase::kDecode);
  effect("indexer") = on_off(decode.sparse);
  use("attention_backend", backend, prefill, AttentionPhase::kPrefill);
  use("attention_backend", backend, decode, AttentionPhase::kDecode);
  if (decode.sparse) return;
  const bool within = shape_.longest_context > 0 && shape_.longest_context <= shape_.model_index_topk;
  if (within) return;
  result_.settings.emplace_back("dense_attention");
  note(fmt::format("attention_backend={}: dense attention, which differs from the model beyond index_topk", backend));
}

void Resolver::use(std::string_view axis, const std::string& value, const Backend& backend, AttentionPhase phase) {
  const bool prefill = phase == AttentionPhase::kPrefill;
  effect(prefill ? "prefill_attention" : "decode_attention") =
      backend.kernel == nullptr ? std::string(kNoEffect) : backend.kernel->name;
  quantizes_query_ = quantizes_query_ || (backend.quantizes_query && kv_format_ == Format::kKvPlainFp8);
  if (prefill) {
    effect("prefill_gathers") = on_off(backend.gathers_packed && kv_format_ == Format::kKvPacked);
    const bool sparse_from_rows = backend.gathers_packed && kv_ == "fp8_e4m3";
    effect("prefill_from_rows") = on_off(backend.prefill_from_rows || sparse_from_rows);
  }
  effect(prefill ? "prefill_requantizes" : "decode_requantizes") =
      on_off(backend.requantizes_bf16 && kv_format_ == Format::kKvBf16);
  check_cache(value, backend, phase);
  check_kernel(axis, value, backend, phase);
}

void Resolver::check_cache(const std::string& value, const Backend& backend, AttentionPhase phase) {
  if (!backend.refused.empty()) return guard(Stage::kFirstUse, backend.refused, backend.source);
  const auto layout_source = [&](const Cited& rule) { return rule.source + "; " + profile_.cache_dimension.source; };
  if (kv_format_ == Format::kKvPacked && backend.stores_by_assertion)
    return guard(Stage::kFirstUse,
                 fmt::format("{} stores into a packed FP8 cache: {}", value, profile_.packed_store_guard.text),
                 layout_source(profile_.packed_store_guard));
  if (kv_format_ == Format::kKvPacked && backend.reads_packed_as_plain) {
    effect(phase == AttentionPhase::kPrefill ? "prefill_reads" : "decode_reads") =
        resolved_format_name(Format::kKvPlainFp8);
    return refuse(Stage::kLayout, TargetStatus::kLayout,
                  fmt::format("{}: {}", value, profile_.packed_read_as_plain.text),
                  layout_source(profile_.packed_read_as_plain));
  }
  const bool takes = backend.formats.empty() ||
                     std::find(backend.formats.begin(), backend.formats.end(), kv_format_) != backend.formats.end();
  if (takes) return;
  const bool plain = kv_format_ == Format::kKvPlainFp8;
  if (value == "flashmla_sparse" && phase == AttentionPhase::kDecode)
    guard(Stage::kFirstUse, "flashmla_sparse: " + profile_.sparse_decode_guard.text,
          profile_.sparse_decode_guard.source);
  else if (value == "flashmla_sparse" && plain)
    guard(Stage::kFirstUse, profile_.gather_guard);
  else if (value == "flashmla_kv" && plain)
    guard(Stage::kFirstUse, "flashmla_kv: " + profile_.flashmla_kv_guard.text, profile_.flashmla_kv_guard.source);
  else if (!backend.packed_refusal.empty())
    guard(Stage::kFirstUse, fmt::format("{} on an FP8 cache: {}", value, backend.packed_refusal), backend.source);
  else
    guard(Stage::kFirstUse, fmt::format("{} takes no {} cache", value, resolved_format_name(kv_format_)),
          backend.source);
}

void Resolver::check_kernel(std::string_view axis, const std::string& value, const Backend& backend,
                            AttentionPhase phase) {
  check_architecture(axis, value, backend);
  const Kernel* kernel = backend.kernel;
  if (kernel == nullptr) {
    result_.has_kernels = false;
    if (backend.refused.empty())
      not_built(fmt::format("{}={}: this build has no kernel that follows it", axis, value), backend.source);
  } else if (target_.rules && kernel->own_shared_bytes != nullptr && !shape_.target_only) {
    const CacheGeometry rows{.format = kv_format_, .latent = shape_.kv_lora_rank, .rope = shape_.qk_rope_head_dim};
    const auto bytes = static_cast<int64_t>(kernel->own_shared_bytes(rows));
    if (bytes > shared_memory_limit(target_.arch))
      missing(fmt::format("this build's kernel {} needs {} bytes of shared memory a block, {} has {}", kernel->name,
                          bytes, target_.name, shared_memory_limit(target_.arch)),
              "its launch (src/ops/attention.cpp)");
  }
  if (backend.needs_width_576 && shape_.kv_lora_rank + shape_.qk_rope_head_dim != kFlashMlaWidth)
    guard(Stage::kFirstUse,
          fmt::format("{} takes rows of 576 values, the model has {}", value,
                      shape_.kv_lora_rank + shape_.qk_rope_head_dim),
          backend.source);
  if (backend.pads_heads) check_padding();
  check_limits(axis, value, backend, phase);
}

// Where the kernel of the real server exists, and whether it fits there.
void Resolver::check_architecture(std::string_view axis, const std::string& value, const Backend& backend) {
  if (applies_to(backend.refused_archs, target_.arch) && target_.rules && !backend.refused_archs.empty())
    return guard(Stage::kStart, backend.refusal_there, backend.source);
  if (!target_.rules || !backend.refused.empty()) return;
  const int64_t bytes = backend.shared_bytes_at(heads());
  const bool here = applies_to(backend.archs, target_.arch);
  if (bytes > shared_memory_limit(target_.arch) && (here || backend.launched_anywhere))
    missing(fmt::format("{}={} needs {} bytes of shared memory a block, {} has {}", axis, value, bytes, target_.name,
                        shared_memory_limit(target_.arch)),
            backend.source);
  else if (!here)
    missing(fmt::format("{}={} on {}: \"{}\"", axis, value, target_.name, backend.elsewhere), backend.source);
}

void Resolver::check_limits(std::string_view axis, const std::string& value, const Backend& backend,
                            AttentionPhase phase) {
  const auto lacks = [](const std::vector<int64_t>& list, int64_t number) {
    return !list.empty() && std::find(list.begin(), list.end(), number) == list.end();
  };
  if (lacks(backend.heads, heads()))
    guard(Stage::kFirstUse, fmt::format("{} takes no {} heads", value, heads()), backend.source);
  if (value == "flashmla_kv" && !profile_.flashmla_kv_heads.text.empty() && lacks({64, 128}, heads()))
    guard(Stage::kFirstUse, fmt::format("{} (here {} a rank)", profile_.flashmla_kv_heads.text, heads()),
          profile_.flashmla_kv_heads.source);
  if (lacks(backend.topk, shape_.index_topk))
    guard(Stage::kFirstUse, fmt::format("{} takes no top-k of {}", value, shape_.index_topk), backend.source);
  const int64_t tokens = phase == AttentionPhase::kPrefill ? prefill_launch() : decode_batch();
  if (backend.most_tokens > 0 && tokens > backend.most_tokens)
    missing(fmt::format("{}={}: a launch of {} tokens, its grid takes {}", axis, value, tokens, backend.most_tokens),
            backend.most_tokens_source);
}

void Resolver::check_padding() {
  const int64_t padded = target_.arch == Arch::kSm90 ? 64 : 128;
  if (padded % heads() != 0)
    guard(Stage::kFirstUse,
          fmt::format("flashmla_sparse pads {} heads to {}, which they do not divide", heads(), padded),
          "sglang 93109cc layers/attention/nsa_backend.py:1671");
}

void Resolver::check_indexer() {
  if (target_.rules && !applies_to(profile_.indexer_archs, target_.arch))
    missing(fmt::format("{} on {}", profile_.indexer_guard.text, target_.name), profile_.indexer_guard.source);
  if (shape_.index_topk != kFastTopK)
    guard(Stage::kFirstUse, fmt::format("fast_topk asserts topk == 2048, the model has {}", shape_.index_topk),
          "sglang 93109cc sgl-kernel/python/sgl_kernel/top_k.py");
  if (!target_.rules || profile_.indexer_archs.empty()) return;
  const std::vector<int64_t> sm90 = {32, 64}, sm100 = {8, 16, 32, 64};
  const std::vector<int64_t>& allowed = target_.arch == Arch::kSm90 ? sm90 : sm100;
  if (std::find(allowed.begin(), allowed.end(), shape_.index_n_heads) == allowed.end())
    guard(
        Stage::kFirstUse,
        fmt::format("DeepGEMM's logits kernel on {} does not take {} index heads", target_.name, shape_.index_n_heads),
        "DeepGEMM 54e2261 csrc/apis/attention.hpp");
}

// flashinfer_sparse_mla and SM120 with an FP8 cache go together, in both directions.
void Resolver::check_sparse_mla() {
  if (!profile_.sparse_mla_on_sm120) return;
  const bool asked_for = nsa_prefill_ == "flashinfer_sparse_mla" || nsa_decode_ == "flashinfer_sparse_mla";
  const bool both = nsa_prefill_ == "flashinfer_sparse_mla" && nsa_decode_ == "flashinfer_sparse_mla";
  const bool fp8 = kv_ == "fp8_e4m3";
  const bool here = target_.rules && target_.arch == Arch::kSm120;
  if ((asked_for && !fp8) || (asked_for && target_.rules && !here) || (here && fp8 && !both))
    guard(Stage::kStart, profile_.sparse_mla_guard);
}

}  // namespace faultline
