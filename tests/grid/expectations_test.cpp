// resolve() against the table of what each row must come to.
#include "grid/expectations.h"

#include <map>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "grid/axes.h"
#include "grid/resolve.h"
#include "testing.h"

namespace faultline {
namespace {

std::string status_of(const Expectation& expected) {
  if (expected.verdict == "pass" || expected.verdict == "setting") return "runs";
  return std::string(expected.verdict);
}

// Values of the axes that decide what a row comes to; toys that other tests register are left out.
const std::map<std::string, std::vector<std::string>>& values() {
  static const std::map<std::string, std::vector<std::string>> instance = [] {
    std::map<std::string, std::vector<std::string>> all;
    for (const char* axis : {"attention_backend", "nsa_prefill_backend", "nsa_decode_backend", "kv_cache_dtype",
                             "rope_mode", "scale_format", "shared_experts_fusion", "slot_placement", "numerics"})
      all[axis] = find_axis(axis)->values;
    // Those that one version alone has are refused by all others, and would be most of the sample.
    std::erase_if(all["attention_backend"], [](const std::string& value) {
      for (const char* late : {"dsv4", "compressed", "cutedsl_mla", "tokenspeed_mla", "hpc_ops"})
        if (value == late) return true;
      return false;
    });
    std::erase(all["nsa_prefill_backend"], "flashmla_sparse_q8");
    std::erase(all["nsa_decode_backend"], "flashmla_sparse_q8");
    all["kernels"] = {"own", "own", "own", "reference"};
    all["fp4_gemm_backend"] = {"auto",  "flashinfer_cutlass", "flashinfer_cudnn", "flashinfer_trtllm", "cutlass",
                               "marlin"};
    all["moe_runner_backend"] = find_axis("moe_runner_backend")->values;
    // As above: runners of the last version alone.
    std::erase_if(all["moe_runner_backend"], [](const std::string& value) {
      for (const char* late :
           {"experimental_sgl_trtllm", "aiter", "humming", "experimental_sgl_marlin", "hpc_ops", "megamoe"})
        if (value == late) return true;
      return false;
    });
    all["max_total_tokens"] = {"auto", "auto", "auto", "4096"};
    all["mem_fraction_static"] = {"auto", "0.85"};
    all["tp"] = {"1", "1", "1", "8"};
    all["sampling_backend"] = {"auto", "flashinfer", "pytorch"};
    all["page_size"] = {"64", "16"};
    return all;
  }();
  return instance;
}

void sample(std::string_view profile, std::string_view target, int rows) {
  const CounterRng rng(7, fmt::format("{} {}", profile, target));
  uint64_t counter = 0;
  std::map<std::string, int> seen;
  ShapeInfo shape;
  shape.longest_context = 4096;
  for (int i = 0; i < rows; ++i) {
    AxisValues axes;
    for (const auto& [axis, list] : values())
      axes[axis] = list[rng.below(++counter, static_cast<uint32_t>(list.size()))];
    // A large part with neither of what refuses most.
    if (i % 2 == 0) axes["tp"] = "1", axes["max_total_tokens"] = "auto", axes["slot_placement"] = "shuffled";
    if (i % 4 == 0) axes["moe_runner_backend"] = axes["fp4_gemm_backend"] = axes["shared_experts_fusion"] = "auto";
    if (i % 8 == 0) axes["scale_format"] = "checkpoint";
    const AxisValues filled = with_defaults(axes).value();
    const Expectation& expected = expectation(profile, target, filled);
    const ResolvedConfiguration row = resolve(filled, *find_profile(profile), *find_target(target), shape);
    INFO(fmt::format("{} on {}: {}", profile, target, nlohmann::json(axes).dump()));
    INFO("expected by: " << expected.pattern << " [" << expected.source << "]; resolved because: " << row.reason);
    REQUIRE(std::string(target_status_name(row.status)) == status_of(expected));
    if (row.status == TargetStatus::kRuns) REQUIRE((expected.verdict == "setting") == !row.settings.empty());
    ++seen[std::string(expected.verdict)];
  }
  for (const char* verdict : {"pass", "guard", "unsupported", "setting"}) CHECK(seen[verdict] > 0);
}

}  // namespace

TEST_CASE("rows of sglang-0.5.9 come to what the table says, on any target and on sm_120") {
  sample("sglang-0.5.9", "any", 6000);
  sample("sglang-0.5.9", "sm_120", 3000);
}

TEST_CASE("rows of sglang-2026-04 come to what the table says, on any target and on sm_120") {
  sample("sglang-2026-04", "any", 3000);
  sample("sglang-2026-04", "sm_120", 3000);
}

TEST_CASE("rows of sglang-2026-08 come to what the table says, on any target and on sm_120") {
  sample("sglang-2026-08", "any", 3000);
  sample("sglang-2026-08", "sm_120", 3000);
}

}  // namespace faultline
