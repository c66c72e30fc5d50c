#include "grid/resolve.h"

#include "grid/axes.h"
#include "grid/build_features.h"
#include "grid/preflight_memory.h"
#include "grid/resolver.h"

namespace faultline {
namespace {

constexpr int64_t kForcedPageSize = 64;
constexpr int64_t kIndexHeadDim = 128;  // the pool and the indexer

}  // namespace

ResolvedConfiguration Resolver::run() {
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

void Resolver::check_choices() {
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
void Resolver::choose_cache() {
  kv_ = asked_or_default("kv_cache_dtype");
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

void Resolver::choose_nsa_backends() {
  const NsaDefault& automatic = nsa_default(profile_, kv_, target_.arch);
  const auto pick = [&](std::string_view axis, const std::string& chosen) {
    const std::string& user = asked(axis);
    if (user == kAuto) return chosen;
    if (!automatic.overwrites || user == chosen) return user;
    if (!reference_) note(fmt::format("the server replaces {}={} by {} ({})", axis, user, chosen, automatic.source));
    return chosen;
  };
  nsa_prefill_ = pick("nsa_prefill_backend", automatic.prefill);
  nsa_decode_ = pick("nsa_decode_backend", automatic.decode);
}

void Resolver::choose_sampling() {
  const std::string value = asked_or_default("sampling_backend");
  effect("sampling_backend") = effect("sampling") = value;
  if (value == "flashinfer" || value == "pytorch") return;
  if (const Kernel* kernel = kernel_serving("sampling_backend", value, "sample"))
    effect("sampling") = kernel->name;
  else
    not_built(fmt::format("sampling_backend={}: no kernel of this backend is in this build yet", value));
}

void Resolver::choose_rope() {
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
void Resolver::choose_engine() {
  for (const auto& [key, value] :
       {std::pair{"experts_input_scale", "shared"}, std::pair{"router_bias", "f32"}, std::pair{"query_format", "bf16"},
        std::pair{"prefill_form", "absorbed"}, std::pair{"gate_up_scale", "own"}, std::pair{"index_hadamard", "off"},
        std::pair{"index_query", "bf16"}})
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

void Resolver::choose_scales() {
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

// int32 offsets of the pool, and memory.
void Resolver::check_memory() {
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

void Resolver::choose_rest() {
  effect("cuda_graph") = asked("cuda_graph");
  effect("page_size") = std::to_string(kForcedPageSize);
  if (asked("page_size") != effect("page_size"))
    note(fmt::format("page_size={}: {} ({})", asked("page_size"), profile_.page_size.text, profile_.page_size.source));
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
