#include "bisect/engine_config.h"

#include <charconv>

#include "base/error.h"
#include "grid/backends.h"

namespace faultline {
namespace {

class Reader {
 public:
  explicit Reader(const AxisValues& values) : values_(values) {}

  std::string text(const std::string& key) {
    const auto it = values_.find(key);
    if (it == values_.end()) {
      fail(key, "is missing");
      return {};
    }
    return it->second;
  }
  // One of two values: is it the second? A row written by an earlier version lacks newer keys, and meant the first.
  bool chosen(const std::string& key, const char* first, const char* second) {
    const auto it = values_.find(key);
    if (it == values_.end() || it->second == first) return false;
    if (it->second != second) fail(key, fmt::format("is neither {} nor {}", first, second));
    return it->second == second;
  }
  bool flag(const std::string& key) {
    const std::string value = text(key);
    if (value != "on" && value != "off" && value != "-") fail(key, "is neither on nor off");
    return value == "on";
  }
  // An integer above 0, or 0 for "auto".
  int64_t size(const std::string& key) {
    const auto it = values_.find(key);
    if (it == values_.end() || it->second == "auto") return 0;
    const int64_t result = integer(key);
    if (problem_.empty() && result <= 0) fail(key, "is not above 0");
    return result;
  }
  int64_t integer(const std::string& key) {
    const std::string value = text(key);
    int64_t result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc{} || end != value.data() + value.size()) fail(key, "is no integer");
    return result;
  }
  double real(const std::string& key) {
    const std::string value = text(key);
    double result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc{} || end != value.data() + value.size()) fail(key, "is no number");
    return result;
  }
  Format format(const std::string& key) {
    const auto result = format_from_resolved(text(key));
    if (!result) fail(key, "is no cache format");
    return result.value_or(Format::kKvBf16);
  }
  Status status() const { return problem_.empty() ? Status{} : bad_input("resolved configuration: {}", problem_); }

 private:
  void fail(const std::string& key, const std::string& what) {
    if (problem_.empty()) problem_ = fmt::format("'{}' {}", key, what);
  }
  const AxisValues& values_;
  std::string problem_;
};

}  // namespace

Result<EngineConfig> engine_config(const AxisValues& resolved, CheckLevel checks, uint64_t seed, int64_t probe_chunk) {
  Reader read(resolved);
  EngineConfig config;
  config.checks = checks;
  config.seed = seed;
  config.reference_kernels = read.text("kernels") == "reference";
  config.prefill_attention = read.text("prefill_attention");
  config.decode_attention = read.text("decode_attention");
  config.indexer = read.flag("indexer");
  config.kv_format = read.format("kv_format");
  config.prefill_reads = read.format("prefill_reads");
  config.decode_reads = read.format("decode_reads");
  config.prefill_gathers = read.flag("prefill_gathers");
  config.prefill_from_rows = read.flag("prefill_from_rows");
  config.prefill_requantizes = read.flag("prefill_requantizes");
  config.decode_requantizes = read.flag("decode_requantizes");
  config.page_size = read.integer("page_size");
  if (read.text("rope_theta") != "checkpoint") config.rope_theta = read.real("rope_theta");
  config.rope_interleaved = read.flag("rope_interleaved");
  config.indexer_rope_interleaved = read.flag("indexer_rope_interleaved");
  config.rope_enabled = read.flag("rope_enabled");
  config.fp4_linear = read.text("fp4_linear");
  config.fp4_experts = read.text("fp4_experts");
  config.index_ue8m0 = read.chosen("index_scales", "f32", "ue8m0");
  config.index_hadamard = read.chosen("index_hadamard", "off", "on");
  config.index_query_fp8 = read.chosen("index_query", "bf16", "fp8");
  config.query_fp8 = read.chosen("query_format", "bf16", "fp8");
  config.experts_own_input_scale = read.chosen("experts_input_scale", "shared", "per_expert");
  config.first_gate_up_scale = read.chosen("gate_up_scale", "own", "first");
  config.router_bias_bf16 = read.chosen("router_bias", "f32", "bf16");
  config.shared_experts_fused = read.chosen("shared_experts", "apart", "fused");
  config.max_total_tokens = read.size("max_total_tokens");
  config.high_slots = read.chosen("slot_placement", "shuffled", "high");
  config.sampling = read.text("sampling");
  config.cuda_graph = read.flag("cuda_graph");
  config.transformers_numerics = read.text("numerics") == "transformers";
  config.chunk = read.text("chunk") == "probe" ? probe_chunk : read.integer("chunk");
  constexpr std::string_view kKernelPrefix = "kernel.";
  for (const auto& [key, value] : resolved)
    if (key.starts_with(kKernelPrefix)) config.kernels[key.substr(kKernelPrefix.size())] = value;
  FAULTLINE_TRY_STATUS(read.status());
  for (const std::string& attention : {config.prefill_attention, config.decode_attention})
    if (attention == "-") return cannot_run("this build has no attention kernel for this row");
  return config;
}

Result<CheckLevel> check_level(std::string_view name) {
  if (name == "off") return CheckLevel::kOff;
  if (name == "finite") return CheckLevel::kFinite;
  if (name == "full") return CheckLevel::kFull;
  if (name == "reference") return CheckLevel::kReference;
  return bad_input("check level '{}': it is off, finite, full or reference", name);
}

std::string_view check_level_name(CheckLevel level) {
  switch (level) {
    case CheckLevel::kOff:
      return "off";
    case CheckLevel::kFinite:
      return "finite";
    case CheckLevel::kFull:
      return "full";
    case CheckLevel::kReference:
      return "reference";
  }
  return "?";
}

}  // namespace faultline
