#include "grid/resolve.h"

#include <algorithm>
#include <array>

#include "grid/axes.h"
#include "grid/build_features.h"
#include "grid/preflight_memory.h"
#include "ops/op.h"

namespace faultline {
namespace {

constexpr std::string_view kNoEffect = "-";
constexpr int64_t kForcedPageSize = 64;
constexpr int64_t kFastTopK = 2048;      // sgl-kernel's fast_topk
constexpr int64_t kIndexHeadDim = 128;   // the pool and the indexer
constexpr int64_t kFlashMlaWidth = 576;  // latent + rope

// In which order a server meets its reasons not to run a row: the first one is reported. That this build lacks a kernel
// comes after all that the server itself would say.
enum class Stage : uint8_t { kStart, kMissing, kFirstUse, kNotBuilt, kLayout, kNone };

std::string on_off(bool value) {
  return value ? "on" : "off";
}

class Resolver {
 public:
  Resolver(const AxisValues& requested, const Profile& profile, const Target& target, const ShapeInfo& shape)
      : profile_(profile), target_(target), shape_(shape) {
    auto filled = with_defaults(requested);
    FAULTLINE_CHECK(filled.has_value());
    result_.requested = std::move(*filled);
    reference_ = asked("kernels") == "reference";
  }

  ResolvedConfiguration run() {
    check_choices();
    choose_cache();
    choose_attention();
    choose_products();
    choose_sampling();
    choose_rope();
    choose_engine();
    choose_rest();
    check_memory();
    if (!approximations_.empty()) note("this build does otherwise than the server: " + approximations_);
    if (!target_.note.empty()) result_.notes.push_back(target_.note);
    return std::move(result_);
  }

 private:
  const std::string& asked(std::string_view axis) const { return result_.requested.find(std::string(axis))->second; }
  std::string& effect(std::string_view key) { return result_.resolved[std::string(key)]; }
  void note(std::string text) { result_.notes.push_back(std::move(text)); }

  // Keeps the first reason in the server's order. Missing kernels are listed together: each has to be solved.
  void refuse(Stage stage, TargetStatus status, std::string reason, std::string source) {
    if (stage > stage_) return;
    if (stage == stage_) {
      const bool lists = stage == Stage::kMissing || stage == Stage::kNotBuilt;
      if (!lists || result_.reason.find(reason) != std::string::npos) return;
      result_.reason += "; " + reason;
      if (!source.empty() && result_.source.find(source) == std::string::npos)
        result_.source += (result_.source.empty() ? "" : "; ") + source;
      return;
    }
    stage_ = stage;
    result_.status = status;
    result_.reason = std::move(reason);
    result_.source = std::move(source);
  }
  void guard(Stage stage, std::string reason, std::string source) {
    if (!reference_) refuse(stage, TargetStatus::kGuard, std::move(reason), std::move(source));
  }
  void guard(Stage stage, const Cited& rule) { guard(stage, rule.text, rule.source); }
  void missing(std::string reason, std::string source) {
    refuse(Stage::kMissing, TargetStatus::kUnsupported, std::move(reason), std::move(source));
  }
  void not_built(std::string reason, std::string source = "") {
    result_.has_kernels = false;
    if (shape_.any_build) return;
    refuse(Stage::kNotBuilt, TargetStatus::kUnsupported, std::move(reason), std::move(source));
  }

  void check_choices() {
    for (const FlagChoices& flag : profile_.choices) {
      const std::string& value = asked(flag.axis);
      const Axis& axis = *find_axis(flag.axis);
      const bool servers = std::find(axis.values.begin(), axis.values.end(), value) != axis.values.end();
      if (!servers || value == kAuto || value == "f32") continue;  // ours, or a registered kernel's
      if (std::find(flag.values.begin(), flag.values.end(), value) == flag.values.end())
        guard(Stage::kStart, fmt::format("'{}' is not a choice of {} in {}", value, axis.flag, profile_.name),
              flag.source);
    }
  }

  // The cache's dtype, the NSA backends (which decide the layout whatever attention runs), and the layout.
  void choose_cache() {
    kv_ = asked("kv_cache_dtype");
    if (kv_ == kAuto) kv_ = default_for(profile_.kv_cache_dtype, target_.arch).value;
    effect("kv_cache_dtype") = kv_;
    if (kv_ == "fp8_e5m2" || kv_ == "fp4_e2m1") {
      // No format of ours holds these, so that not even the reference runs.
      result_.has_kernels = false;
      refuse(Stage::kStart, TargetStatus::kGuard, profile_.kv_dtype_guard.text, profile_.kv_dtype_guard.source);
    }
    choose_nsa_backends();
    if (shape_.index_head_dim != kIndexHeadDim)
      guard(Stage::kStart,
            fmt::format("the index cache asserts index_head_dim == 128, the model has {}", shape_.index_head_dim),
            "sglang 93109cc mem_cache/memory_pool.py:1850");
    if (kv_ == "f32")
      kv_format_ = Format::kKvF32;
    else if (kv_ == "bf16")
      kv_format_ = Format::kKvBf16;
    else
      kv_format_ = nsa_prefill_ == "trtllm" || nsa_decode_ == "trtllm" ? Format::kKvPlainFp8 : Format::kKvPacked;
    effect("kv_format") = resolved_format_name(kv_format_);
  }

  void choose_nsa_backends() {
    const std::string key = kv_ == "fp8_e4m3" ? "fp8_e4m3" : "bf16";
    const auto it = std::find_if(profile_.nsa_backends.begin(), profile_.nsa_backends.end(), [&](const NsaDefault& d) {
      return d.kv_cache_dtype == key && applies_to(d.archs, target_.arch);
    });
    FAULTLINE_CHECK(it != profile_.nsa_backends.end());
    const auto pick = [&](std::string_view axis, const std::string& chosen) {
      const std::string& user = asked(axis);
      if (user == kAuto) return chosen;
      if (!it->overwrites || user == chosen) return user;
      if (!reference_) note(fmt::format("the server replaces {}={} by {} ({})", axis, user, chosen, it->source));
      return chosen;
    };
    nsa_prefill_ = pick("nsa_prefill_backend", it->prefill);
    nsa_decode_ = pick("nsa_decode_backend", it->decode);
  }

  void choose_attention() {
    const std::string requested = asked("attention_backend");
    const std::string backend =
        requested == kAuto ? default_for(profile_.attention_backend, target_.arch).value : requested;
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

  void choose_sparse() {
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
  std::string auto_prefill() const {
    if (kv_ != "fp8_e4m3" || target_.arch != Arch::kSm90) return "flashmla_sparse";
    return "flashmla_kv";
  }

  void choose_dense(const std::string& backend) {
    effect("nsa_prefill_backend") = effect("nsa_decode_backend") = kNoEffect;
    const Backend traits = find_backend("attention_backend", backend, AttentionPhase::kDecode);
    effect("indexer") = on_off(traits.sparse);
    use("attention_backend", backend, traits, AttentionPhase::kPrefill);
    use("attention_backend", backend, traits, AttentionPhase::kDecode);
    if (traits.sparse) return;
    const bool within = shape_.longest_context > 0 && shape_.longest_context <= shape_.model_index_topk;
    if (within) return;
    result_.settings.emplace_back("dense_attention");
    note(fmt::format("attention_backend={}: dense attention, which differs from the model beyond index_topk", backend));
  }

  void use(std::string_view axis, const std::string& value, const Backend& backend, AttentionPhase phase) {
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

  void check_cache(const std::string& value, const Backend& backend, AttentionPhase phase) {
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

  void check_kernel(std::string_view axis, const std::string& value, const Backend& backend, AttentionPhase phase) {
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
  void check_architecture(std::string_view axis, const std::string& value, const Backend& backend) {
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

  void check_limits(std::string_view axis, const std::string& value, const Backend& backend, AttentionPhase phase) {
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

  int64_t number(std::string_view axis) const {  // 0 where the row leaves it to others
    const std::string& text = asked(axis);
    return text == kAuto || text == kProbe ? 0 : std::stoll(text);
  }
  int64_t heads() const { return std::max<int64_t>(1, shape_.num_attention_heads / number("tp")); }
  int64_t prefill_launch() const {
    const int64_t chunk = number("chunked_prefill_size");
    return chunk > 0 ? chunk : shape_.largest_prefill;
  }
  int64_t decode_batch() const { return number("batch") > 0 ? number("batch") : shape_.largest_batch; }

  void check_padding() {
    const int64_t padded = target_.arch == Arch::kSm90 ? 64 : 128;
    if (padded % heads() != 0)
      guard(Stage::kFirstUse,
            fmt::format("flashmla_sparse pads {} heads to {}, which they do not divide", heads(), padded),
            "sglang 93109cc layers/attention/nsa_backend.py:1671");
  }

  void check_indexer() {
    if (target_.rules && !applies_to(profile_.indexer_archs, target_.arch))
      missing(fmt::format("{} on {}", profile_.indexer_guard.text, target_.name), profile_.indexer_guard.source);
    if (shape_.index_topk != kFastTopK)
      guard(Stage::kFirstUse, fmt::format("fast_topk asserts topk == 2048, the model has {}", shape_.index_topk),
            "sglang 93109cc sgl-kernel/python/sgl_kernel/top_k.py");
    if (!target_.rules || profile_.indexer_archs.empty()) return;
    const std::vector<int64_t> sm90 = {32, 64}, sm100 = {8, 16, 32, 64};
    const std::vector<int64_t>& allowed = target_.arch == Arch::kSm90 ? sm90 : sm100;
    if (std::find(allowed.begin(), allowed.end(), shape_.index_n_heads) == allowed.end())
      guard(Stage::kFirstUse,
            fmt::format("DeepGEMM's logits kernel on {} does not take {} index heads", target_.name,
                        shape_.index_n_heads),
            "DeepGEMM 54e2261 csrc/apis/attention.hpp");
  }

  // flashinfer_sparse_mla and SM120 with an FP8 cache go together, in both directions.
  void check_sparse_mla() {
    if (!profile_.sparse_mla_on_sm120) return;
    const bool asked_for = nsa_prefill_ == "flashinfer_sparse_mla" || nsa_decode_ == "flashinfer_sparse_mla";
    const bool both = nsa_prefill_ == "flashinfer_sparse_mla" && nsa_decode_ == "flashinfer_sparse_mla";
    const bool fp8 = kv_ == "fp8_e4m3";
    const bool here = target_.rules && target_.arch == Arch::kSm120;
    if ((asked_for && !fp8) || (asked_for && target_.rules && !here) || (here && fp8 && !both))
      guard(Stage::kStart, profile_.sparse_mla_guard);
  }

  void choose_products() {
    const std::string linear = asked_or_default("fp4_gemm_backend", profile_.fp4_gemm_backend);
    const std::string experts = asked_or_default("moe_runner_backend", profile_.moe_runner_backend);
    if (reference_ || !shape_.nvfp4) {
      effect("fp4_gemm_backend") = effect("moe_runner_backend") = kNoEffect;
      effect("fp4_linear") = effect("fp4_experts") = "weight_only";
      return;
    }
    const bool marlin = profile_.marlin_without_blackwell && experts == "marlin";
    if (target_.rules && target_.arch == Arch::kSm90 && !marlin) guard(Stage::kStart, profile_.nvfp4_guard);
    static const std::vector<std::string> kLinear = {"cutlass", "flashinfer_cudnn", "flashinfer_cutlass",
                                                     "flashinfer_trtllm", "flashinfer_cutedsl"};
    static const std::vector<std::string> kExperts = {"flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl",
                                                      "cutlass"};
    if (target_.rules && target_.arch == Arch::kSm120 && linear == "flashinfer_cutlass")
      note(profile_.fp4_race_note.text + " (" + profile_.fp4_race_note.source + ")");
    product("fp4_gemm_backend", linear, kLinear, "fp4_linear", {"linear_w4a4", "linear"});
    product("moe_runner_backend", experts, kExperts, "fp4_experts", {"expert_linear_w4a4", "expert_linear"});
    check_runner(experts);
  }

  std::string asked_or_default(std::string_view axis, const std::vector<ArchDefault>& table) const {
    return asked(axis) == kAuto ? default_for(table, target_.arch).value : asked(axis);
  }

  // This build has one product of each arithmetic; values that share it resolve alike, so that none is called innocent
  // on the strength of another's kernel.
  void product(std::string_view axis, const std::string& value, const std::vector<std::string>& w4a4,
               std::string_view key, std::array<std::string_view, 2> kinds) {
    if (std::find(w4a4.begin(), w4a4.end(), value) != w4a4.end()) {
      effect(axis) = effect(key) = "w4a4";
      if (asked(axis) != kAuto)
        note(fmt::format("{}={}: this build has one W4A4 product, which stands for every such backend", axis, value));
      return;
    }
    if (value == "marlin") {
      effect(axis) = effect(key) = "weight_only";
      return;
    }
    effect(axis) = value;
    effect(key) = "w4a4";
    for (const std::string_view kind : kinds) {
      const Kernel* kernel = kernel_serving(axis, value, kind);
      if (kernel == nullptr) continue;
      effect(key) = kind == kinds.front() ? "w4a4" : "weight_only";
      effect(fmt::format("kernel.{}", kind)) = kernel->name;
      return;
    }
    not_built(fmt::format("{}={}: no kernel of this backend is in this build yet", axis, value));
  }

  void check_runner(const std::string& experts) {
    if (experts == "flashinfer_trtllm_routed")
      guard(Stage::kStart, "flashinfer_trtllm_routed takes fp8, mxfp8 or unquantised experts only",
            "sglang 93109cc server_args.py:2651 _handle_moe_kernel_config");
    if (experts == "deep_gemm" || experts == "triton" || experts == "triton_kernel")
      missing(fmt::format("moe_runner_backend={} has no NVFP4 kernel", experts),
              "sglang 93109cc layers/quantization/modelopt_quant.py:1520-2080");
    if (experts == "flashinfer_trtllm" && target_.rules && target_.arch != Arch::kSm100)
      missing(fmt::format("moe_runner_backend=flashinfer_trtllm on {}: trtllm-gen MoE kernels are for sm_100 only",
                          target_.name),
              "sglang c863760 arg_groups/overrides.py:2505");
    const auto runs_with = [&](const std::vector<std::string>& runners) {
      return std::find(runners.begin(), runners.end(), experts) != runners.end();
    };
    if (runs_with(profile_.expert_input_scale_runners))
      prefer("experts_input_scale", "per_expert", "shared", profile_.expert_input_scales, experts);
    if (runs_with(profile_.gate_up_scale_runners))
      prefer("gate_up_scale", "first", "own", profile_.gate_up_scale, experts);
    if (runs_with(profile_.router_bias_runners)) prefer("router_bias", "bf16", "f32", profile_.router_bias, experts);
  }

  void choose_sampling() {
    const std::string value = asked_or_default("sampling_backend", profile_.sampling_backend);
    effect("sampling_backend") = effect("sampling") = value;
    if (value == "flashinfer" || value == "pytorch") return;
    if (const Kernel* kernel = kernel_serving("sampling_backend", value, "sample"))
      effect("sampling") = kernel->name;
    else
      not_built(fmt::format("sampling_backend={}: no kernel of this backend is in this build yet", value));
  }

  void choose_rope() {
    std::string mode = asked("rope_mode");
    // Without the indexer nothing rotates index keys.
    if (mode == "indexer_half_split" && effect("indexer") == "off") mode = "checkpoint";
    if (mode == "swapped_half" && effect("indexer") == "off") mode = "half_split";
    if (mode == "forced_yarn") {
      note(fmt::format("rope_mode=forced_yarn: {} ({})", profile_.forced_yarn.text, profile_.forced_yarn.source));
      mode = "checkpoint";
    }
    effect("rope_mode") = mode;
    effect("rope_theta") = mode == "theta_10000" ? "10000" : "checkpoint";
    const bool swapped = mode == "swapped_half";
    effect("rope_interleaved") = on_off(mode != "half_split" && !swapped);
    effect("indexer_rope_interleaved") = on_off(mode != "indexer_half_split" && !swapped);
    effect("rope_enabled") = on_off(mode != "none");
    if (mode == "checkpoint") return;
    if (mode == "theta_10000") result_.settings.emplace_back("rope_theta");
    if (mode == "half_split" || swapped) result_.settings.emplace_back("rope_interleaved");
    if (mode == "indexer_half_split" || swapped) result_.settings.emplace_back("indexer_rope_interleaved");
    if (mode == "none") result_.settings.emplace_back("rope_enabled");
    note(fmt::format("rope_mode={}: computes another model than the checkpoint's", mode));
  }

  // What the engine is told beside kernels and formats. A value that was asked for and that the engine lacks makes the
  // row unsupported; what the server would do by itself is approximated, and said.
  void choose_engine() {
    for (const auto& [key, value] :
         {std::pair{"experts_input_scale", "shared"}, std::pair{"router_bias", "f32"},
          std::pair{"query_format", "bf16"}, std::pair{"prefill_form", "absorbed"}, std::pair{"gate_up_scale", "own"},
          std::pair{"index_hadamard", "off"}, std::pair{"index_query", "bf16"}})
      result_.resolved.emplace(key, value);
    if (quantizes_query_ && !reference_) prefer("query_format", "fp8", "bf16", profile_.query_in_fp8, "trtllm");
    const std::string& tokens = default_for(profile_.dense_prefill, target_.arch).value;
    if (!reference_ && effect("attention_backend") == "nsa" && target_.rules && tokens != "0")
      prefer("prefill_form", "one_shot", "absorbed",
             {fmt::format("a prefill of up to {} tokens is dense and un-absorbed, over the same keys", tokens),
              default_for(profile_.dense_prefill, target_.arch).source},
             "nsa");
    choose_scales();
    choose_shared_experts();
    require("slot_placement", "slot_placement", asked("slot_placement"));
    require("max_total_tokens", "max_total_tokens", asked("max_total_tokens"));
    effect("mem_fraction_static") = kNoEffect;  // it decides how large the pool may be, not what is computed
  }

  void choose_scales() {
    const bool keys_in_fp8 = effect("indexer") == "on" && kv_format_ != Format::kKvF32 && !reference_;
    effect("index_scales") = "f32";
    if (!keys_in_fp8) {
      effect("scale_format") = kNoEffect;
      return;
    }
    prefer("index_hadamard", "on", "off", profile_.index_hadamard, "nsa");
    prefer("index_query", "fp8", "bf16", profile_.index_query, "nsa");
    effect("scale_format") = asked("scale_format");
    if (asked("scale_format") != "ue8m0") return;
    require("scale_format", "index_scales", "ue8m0");
    note(fmt::format("scale_format=ue8m0: {} ({})", profile_.ue8m0.text, profile_.ue8m0.source));
  }

  void choose_shared_experts() {
    effect("shared_experts") = "apart";
    if (reference_) {
      effect("shared_experts_fusion") = kNoEffect;
      return;
    }
    const ArchDefault& automatic = default_for(profile_.shared_experts_fusion, target_.arch);
    const std::string& user = asked("shared_experts_fusion");
    const std::string experts = asked_or_default("moe_runner_backend", profile_.moe_runner_backend);
    const std::vector<std::string>& off = profile_.fusion_off_runners;
    const bool forced_off = shape_.nvfp4 && std::find(off.begin(), off.end(), experts) != off.end();
    const bool fused = !forced_off && (user == kAuto ? automatic.value : user) == "on";
    effect("shared_experts_fusion") = on_off(fused);
    if (forced_off && user == "on")
      note(fmt::format("shared_experts_fusion=on: {} ({}: {})", profile_.fusion_off.text, experts,
                       profile_.fusion_off.source));
    if (!fused) return;
    if (user == "on")
      require("shared_experts_fusion", "shared_experts", "fused");
    else
      prefer("shared_experts", "fused", "apart",
             {"the shared expert is one more routed expert, with its rounding", automatic.source}, experts);
  }

  // What was asked for, or nothing.
  void require(std::string_view axis, std::string_view key, const std::string& value) {
    effect(key) = value;
    if (!build_does(key, value)) not_built(fmt::format("{}={}: this build's engine does not do it", axis, asked(axis)));
  }
  // What the server does, or the nearest that the engine can.
  void prefer(std::string_view key, const std::string& wanted, const std::string& nearest, const Cited& rule,
              std::string_view who) {
    const bool does = build_does(key, wanted);
    effect(key) = does ? wanted : nearest;
    if (does) return;
    approximations_ += fmt::format("{}{}={}, where ({}) {} [{}]", approximations_.empty() ? "" : "; ", key, nearest,
                                   who, rule.text, rule.source);
  }

  // int32 offsets of the pool, and memory.
  void check_memory() {
    const bool known = target_.rules || shape_.gpu_memory > 0;
    MemoryRequest request{.kv_format = kv_format_, .tp = number("tp"), .max_total_tokens = number("max_total_tokens")};
    const std::string& fraction = asked("mem_fraction_static");
    if (fraction != kAuto && known) request.mem_fraction_static = std::stod(fraction);
    ShapeInfo probes = shape_;
    probes.largest_batch = decode_batch();
    const MemoryPlan plan = plan_memory(probes, target_.arch, request);
    if (reference_) return;
    const bool index_keys = effect("indexer") == "on" && kv_format_ != Format::kKvF32;
    for (const Cited& problem :
         offset_problems(plan, shape_, kv_format_, effect("prefill_gathers") == "on", index_keys, profile_))
      missing(problem.text, problem.source);
    if (!known || plan.fits()) return;
    const Cited problem = memory_problem(plan, profile_);
    missing(problem.text, problem.source);
  }

  void choose_rest() {
    effect("cuda_graph") = asked("cuda_graph");
    effect("page_size") = std::to_string(kForcedPageSize);
    if (asked("page_size") != effect("page_size"))
      note(
          fmt::format("page_size={}: {} ({})", asked("page_size"), profile_.page_size.text, profile_.page_size.source));
    effect("tp") = asked("tp");
    if (!build_does("tp", asked("tp"))) {
      result_.has_kernels = false;
      if (!shape_.target_only) not_built("tp above 1: this build runs one rank");
    }
    effect("batch") = asked("batch");
    effect("chunked_prefill_size") = effect("chunk") = asked("chunked_prefill_size");
    effect("numerics") = asked("numerics");
    effect("kernels") = asked("kernels");
    if (asked("numerics") == "transformers") {
      result_.settings.emplace_back("norm_eps");
      note(
          "numerics=transformers: eps 1e-6 after q_a_proj and kv_a_proj, where the server has the checkpoint's "
          "rms_norm_eps");
    }
  }

  const Profile& profile_;
  const Target& target_;
  const ShapeInfo& shape_;
  ResolvedConfiguration result_;
  Stage stage_ = Stage::kNone;
  bool reference_ = false;
  std::string kv_;
  Format kv_format_ = Format::kKvBf16;
  bool quantizes_query_ = false;
  std::string approximations_;
  std::string nsa_prefill_;
  std::string nsa_decode_;
};

}  // namespace

ResolvedConfiguration resolve(const AxisValues& requested, const Profile& profile, const Target& target,
                              const ShapeInfo& shape) {
  return Resolver(requested, profile, target, shape).run();
}

std::string_view target_status_name(TargetStatus status) {
  switch (status) {
    case TargetStatus::kRuns:
      return "runs";
    case TargetStatus::kLayout:
      return "layout";
    case TargetStatus::kGuard:
      return "guard";
    case TargetStatus::kUnsupported:
      return "unsupported";
  }
  return "?";
}

bool can_run(const ResolvedConfiguration& configuration, bool run_unsupported) {
  if (!configuration.has_kernels || configuration.status == TargetStatus::kGuard) return false;
  return configuration.status != TargetStatus::kUnsupported || run_unsupported;
}

}  // namespace faultline
