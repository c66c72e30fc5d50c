#include "grid/axes.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"
#include "base/yaml.h"
#include "ops/op.h"

namespace faultline {
namespace {

constexpr int64_t kMaxTp = 64;                  // GPUs that one model of 64 heads can be split over
constexpr int64_t kMaxBatch = 4096;             // requests of one decode step
constexpr int64_t kMaxChunk = 1 << 20;          // tokens
constexpr int64_t kMaxPageSize = 1 << 10;       // tokens
constexpr int64_t kMinPool = 64;                // tokens, one page
constexpr int64_t kMaxPool = int64_t{1} << 32;  // tokens
constexpr size_t kFractionPlaces = 3;

// Values of a flag are its choices in any of the profiles' versions (profile_*.cpp says which version has which).
std::vector<Axis> make_axes() {
  const std::vector<std::string> nsa = {
      "auto",     "flashmla_sparse", "flashmla_kv", "flashmla_auto",      "fa3",
      "tilelang", "aiter",           "trtllm",      "flashmla_sparse_q8", "flashinfer_sparse_mla"};
  const std::vector<std::pair<std::string, std::string>> no_aliases;
  return {
      {"attention_backend",
       "--attention-backend",
       {"auto",
        "nsa",
        "flashinfer",
        "triton",
        "torch_native",
        "flex_attention",
        "cutlass_mla",
        "fa3",
        "fa4",
        "flashmla",
        "trtllm_mla",
        "trtllm_mha",
        "dual_chunk_flash_attn",
        "aiter",
        "wave",
        "intel_amx",
        "ascend",
        "intel_xpu",
        "dsv4",
        "compressed",
        "cutedsl_mla",
        "tokenspeed_mla",
        "hpc_ops"},
       "auto",
       "attention of prefill and decode; nsa is the model's own sparse attention, the others are dense",
       {{"dsa", "nsa"}}},
      {"nsa_prefill_backend", "--nsa-prefill-backend", nsa, "auto", "kernel of sparse attention in prefill",
       no_aliases},
      {"nsa_decode_backend", "--nsa-decode-backend", nsa, "auto", "kernel of sparse attention in decode", no_aliases},
      {"kv_cache_dtype",
       "--kv-cache-dtype",
       {"auto", "f32", "bf16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1"},
       "auto",
       "precision of the latent cache; f32 is this program's own, for comparison with other engines",
       {{"bfloat16", "bf16"}, {"float32", "f32"}}},
      {"fp4_gemm_backend",
       "--fp4-gemm-backend",
       {"auto", "cutlass", "flashinfer_cudnn", "flashinfer_cutlass", "flashinfer_trtllm", "flashinfer_cutedsl",
        "marlin"},
       "auto",
       "NVFP4 products of dense MLP and shared experts",
       no_aliases},
      {"moe_runner_backend",
       "--moe-runner-backend",
       {"auto", "deep_gemm", "triton", "triton_kernel", "flashinfer_trtllm", "flashinfer_trtllm_routed",
        "flashinfer_cutlass", "flashinfer_mxfp4", "flashinfer_cutedsl", "cutlass", "experimental_sgl_trtllm", "aiter",
        "marlin", "humming", "experimental_sgl_marlin", "hpc_ops", "megamoe"},
       "auto",
       "products of the routed experts",
       no_aliases},
      {"sampling_backend",
       "--sampling-backend",
       {"auto", "flashinfer", "pytorch", "ascend"},
       "auto",
       "how a token is drawn from the probabilities",
       no_aliases},
      {"cuda_graph",
       "--disable-cuda-graph",
       {"off", "on"},
       "on",
       "decode replays a captured graph (off: the flag is given)",
       no_aliases},
      {"rope_mode",
       "",
       {"checkpoint", "theta_10000", "forced_yarn", "half_split", "indexer_half_split", "swapped_half", "none"},
       "checkpoint",
       "rotary embedding as the checkpoint says, or broken in a way that config conversions have",
       no_aliases},
      {"scale_format",
       "",
       {"checkpoint", "ue8m0"},
       "checkpoint",
       "FP8 block scales as they are, or rounded up to powers of two; an NVFP4 checkpoint has them in the index keys "
       "only",
       no_aliases},
      {"shared_experts_fusion",
       "--disable-shared-experts-fusion",
       {"auto", "on", "off"},
       "auto",
       "the shared expert as one more routed expert (off: the flag is given)",
       no_aliases},
      {"page_size",
       "--page-size",
       {},
       "64",
       "tokens a page; the server forces 64 for this model",
       no_aliases,
       true,
       1,
       kMaxPageSize},
      {"mem_fraction_static",
       "--mem-fraction-static",
       {},
       "auto",
       "share of a GPU's memory for weights and cache: it decides the size of the pool, and nothing that is computed",
       no_aliases,
       false,
       0,
       0,
       true},
      {"max_total_tokens",
       "--max-total-tokens",
       {},
       "auto",
       "tokens of the cache's pool",
       no_aliases,
       true,
       kMinPool,
       kMaxPool},
      {"slot_placement",
       "",
       {"shuffled", "high"},
       "shuffled",
       "which pages of the pool are handed out: any, or those with the largest offsets first",
       no_aliases},
      {"tp", "--tp-size", {}, "1", "tensor parallel size", no_aliases, true, 1, kMaxTp},
      {"batch",
       "",
       {},
       "probe",
       "requests that decode together, instead of the probe's list",
       no_aliases,
       true,
       1,
       kMaxBatch},
      {"chunked_prefill_size",
       "--chunked-prefill-size",
       {},
       "probe",
       "tokens of a prefill chunk, instead of the probe's; 0: whole",
       no_aliases,
       true,
       0,
       kMaxChunk},
      {"numerics",
       "",
       {"sglang", "transformers"},
       "sglang",
       "whose epsilon the norms after q_a_proj and kv_a_proj have",
       no_aliases},
      {"kernels", "", {"own", "reference"}, "own", "reference: the model's plain arithmetic in every op", no_aliases},
  };
}

bool contains(const std::vector<std::string>& list, std::string_view value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

Result<std::string> canonical_integer(const Axis& axis, std::string_view text) {
  if (text == axis.fallback) return std::string(text);
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < axis.least || value > axis.most)
    return bad_input("{} takes integers from {} to {}, not '{}'", axis.name, axis.least, axis.most, quotable(text));
  return std::to_string(value);
}

// "0.850" as "0.85"; the value is compared and printed as text.
Result<std::string> canonical_fraction(const Axis& axis, std::string_view text) {
  if (text == axis.fallback) return std::string(text);
  std::string_view digits = text.starts_with("0.") ? text.substr(2) : text.starts_with(".") ? text.substr(1) : "";
  while (digits.ends_with('0')) digits.remove_suffix(1);
  const bool decimal = std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (digits.empty() || !decimal || digits.size() > kFractionPlaces)
    return bad_input("{} takes fractions between 0 and 1 with up to {} places, not '{}'", axis.name, kFractionPlaces,
                     quotable(text));
  return "0." + std::string(digits);
}

}  // namespace

const std::vector<Axis>& all_axes() {
  static const std::vector<Axis> instance = make_axes();
  return instance;
}

const Axis* find_axis(std::string_view name) {
  for (const Axis& axis : all_axes())
    if (axis.name == name) return &axis;
  return nullptr;
}

std::vector<std::string> axis_names() {
  std::vector<std::string> names;
  for (const Axis& axis : all_axes()) names.push_back(axis.name);
  return names;
}

std::vector<std::string> axis_values(const Axis& axis) {
  std::vector<std::string> values = axis.values;
  for (const std::string& served : values_served(axis.name))
    if (!contains(values, served)) values.push_back(served);
  return values;
}

Result<std::string> canonical_value(const Axis& axis, std::string_view text) {
  if (axis.integers) return canonical_integer(axis, text);
  if (axis.fraction) return canonical_fraction(axis, text);
  std::string value(text);
  for (const auto& [alias, meant] : axis.aliases)
    if (value == alias) value = meant;
  if (contains(axis.values, value)) return value;  // before the registry is asked: this is called for every row
  const std::vector<std::string> values = axis_values(axis);
  if (contains(values, value)) return value;
  if (contains(values, "on") && is_yaml_true(text)) return std::string("on");
  if (contains(values, "off") && is_yaml_false(text)) return std::string("off");
  return bad_input("{} has no value '{}'{}", axis.name, quotable(text), suggestion(text, values));
}

Result<AxisValues> with_defaults(const AxisValues& axes) {
  AxisValues filled;
  for (const auto& [name, text] : axes) {
    const Axis* axis = find_axis(name);
    if (axis == nullptr) return bad_input("no axis '{}'{}", quotable(name), suggestion(name, axis_names()));
    FAULTLINE_TRY(filled[name], canonical_value(*axis, text));
  }
  for (const Axis& axis : all_axes()) filled.emplace(axis.name, axis.fallback);
  return filled;
}

}  // namespace faultline
