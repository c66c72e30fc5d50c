// The public alternatives of experiments/incident.yaml, planted one at a time: each is convicted under its own name,
// and the unplanted row beside it stays clean.
#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

using nlohmann::json;

struct Planted {
  const char* plant;
  const char* verdict;
  const char* culprit;
  const char* op;
};

// Culprits and verdicts: docs/planted-faults.md. Ops: those of synth:tiny, whose MLP is dense in layer 0 and MoE from
// layer 1.
constexpr Planted kPlanted[] = {
    {"late_tile", "nonfinite", "ordering", "layers.0.mlp.gate_up_proj"},
    {"pow2_scales", "nonfinite", "kernel", "layers.0.self_attn.attention"},
    {"zero_kv_block", "nonfinite", "kernel", "layers.0.self_attn.kv_write"},
    {"page_past_pool", "bounds", "metadata", "batch.prepare"},
    {"foreign_page", "bounds", "metadata", "batch.prepare"},
    {"topk_minus_one", "bounds", "kernel", "layers.0.self_attn.indexer.topk"},
    {"zero_input_scale", "nonfinite", "weights", "layers.0.mlp.gate_up_proj.quantize"},
    {"router_zero_over_zero", "nonfinite", "kernel", "layers.1.mlp.router"},
    {"crash", "crash", "kernel", "layers.0.self_attn.attention"},
    {"abort", "abort", "kernel", "layers.0.self_attn.attention"},
    {"hang", "hang", "kernel", "layers.0.self_attn.attention"},
};

// NSA on a packed FP8 cache runs everything that a fault of the list needs.
std::string grid() {
  return std::string(
             "name: planted\n"
             "model: synth:tiny\n"
             "axes:\n"
             "  attention_backend: [nsa]\n"
             "  nsa_decode_backend: [flashmla_kv]\n"
             "  kv_cache_dtype: [fp8_e4m3]\n"
             "  cuda_graph: [off]\n") +
         kQuickProbes;
}

}  // namespace

TEST_CASE("each planted fault is found, localized and named for what it is") {
  for (const Planted& planted : kPlanted) {
    DYNAMIC_SECTION(planted.plant) {
      const TempDir folder;
      const Bisection run = bisect(folder, grid(), {"--plant", planted.plant, "--timeout", "1"});
      INFO(run.findings.dump(1));
      CHECK(run.outcome.code == 1);
      CHECK(run.row({}).at("verdict") == "pass");
      CHECK(run.row({}, planted.plant).at("verdict") == planted.verdict);
      REQUIRE(run.findings.at("localized").size() == 1);
      const json& localized = run.findings.at("localized")[0];
      CHECK(localized.at("plant") == planted.plant);
      CHECK(localized.at("culprit") == planted.culprit);
      CHECK(localized.at("op") == planted.op);
      // Of an ordering, the kernel is the writer's: the op that is named.
      if (std::string(planted.culprit) == "ordering") CHECK(localized.at("kernel") == "flashinfer_cutlass");
      // A planted fault is never a factor: no axis explains it.
      for (const json& combination : run.findings.at("minimal_combinations")) CHECK(combination.at("axes").empty());
    }
  }
}

TEST_CASE("a fault that its configuration has no place for stays clean, and the row says that it never fired") {
  const TempDir folder;
  std::string bf16 = grid();
  bf16.replace(bf16.find("fp8_e4m3"), std::string("fp8_e4m3").size(), "bf16");
  const Bisection run = bisect(folder, bf16, {"--plant", "zero_kv_block"});
  CHECK(run.outcome.code == 0);
  const json& row = run.row({}, "zero_kv_block");
  INFO(row.dump());
  CHECK(row.at("verdict") == "pass");
  CHECK(row.at("notes").dump().find("never triggered") != std::string::npos);
}

}  // namespace faultline
