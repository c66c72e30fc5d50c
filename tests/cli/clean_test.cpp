// A grid in which nothing is wrong: no check level raises an alarm.
#include "program.h"
#include "testing.h"

namespace faultline {

namespace {

// The two decode backends, each on the caches that it takes; graph off and on.
std::string attention_grid() {
  return std::string(
             "name: clean\n"
             "model: synth:tiny\n"
             "axes:\n"
             "  attention_backend: [nsa]\n"
             "  nsa_decode_backend: [flashmla_kv, flashmla_sparse]\n"
             "  kv_cache_dtype: [bf16, fp8_e4m3]\n"
             "  rope_mode: [checkpoint]\n"
             "  cuda_graph: [off, on]\n"
             "exclude:\n"
             "  - {nsa_decode_backend: flashmla_sparse, kv_cache_dtype: fp8_e4m3}\n") +
         kQuickProbes;
}

// Both kinds of FP4 product in the MLP; the runner is the one that computes the experts as the model does. Only the
// later versions of the server offer them all.
std::string product_grid(const std::string& runner) {
  return std::string(
             "name: clean\n"
             "model: synth:tiny\n"
             "profile: sglang-2026-08\n"
             "axes:\n"
             "  attention_backend: [nsa]\n"
             "  nsa_decode_backend: [flashmla_sparse]\n"
             "  kv_cache_dtype: [bf16]\n"
             "  cuda_graph: [off]\n"
             "  fp4_gemm_backend: [flashinfer_cutlass, marlin]\n"
             "  moe_runner_backend: [") +
         runner + "]\n" + kQuickProbes;
}

}  // namespace

TEST_CASE("a clean grid has no false alarm under any check level") {
  for (const char* level : {"off", "finite", "full", "reference"}) {
    for (const auto& [grid, rows] : {std::pair{attention_grid(), 6}, std::pair{product_grid("flashinfer_trtllm"), 2}}) {
      const TempDir folder;
      const Bisection run = bisect(folder, grid, {"--checks", level});
      INFO(level);
      INFO(run.findings.at("localized").dump(1));
      CHECK(run.outcome.code == 0);
      int passed = 0;
      for (const nlohmann::json& row : run.findings.at("configurations")) {
        INFO(row.dump());
        CHECK((row.at("verdict") == "pass" || row.at("verdict") == "skipped"));
        if (row.at("verdict") == "pass") ++passed;
        CHECK(row.at("first_violation").is_null());
      }
      CHECK(passed == rows);
      CHECK(run.findings.at("localized").empty());
    }
  }
}

TEST_CASE("experts with gate's scale for up: no alarm under `full`, and under `reference` a setting and no kernel") {
  for (const char* runner : {"marlin", "flashinfer_cutlass"}) {
    INFO(runner);
    const TempDir cheap;
    CHECK(bisect(cheap, product_grid(runner), {"--checks", "full"}).outcome.code == 0);
    const TempDir folder;
    const Bisection run = bisect(folder, product_grid(runner), {"--checks", "reference"});
    for (const nlohmann::json& row : run.findings.at("configurations")) CHECK(row.at("verdict") == "mismatch");
    REQUIRE_FALSE(run.findings.at("localized").empty());
    for (const nlohmann::json& finding : run.findings.at("localized")) {
      INFO(finding.dump());
      CHECK(finding.at("culprit") == "setting");
      CHECK(finding.at("op").get<std::string>().ends_with("experts.gate_up_proj"));
    }
  }
}

TEST_CASE("a clean run under `full` says that finite but wrong values were not looked for; `reference` does not") {
  const std::string grid = std::string(
                               "name: clean\n"
                               "model: synth:tiny\n"
                               "axes:\n"
                               "  attention_backend: [nsa]\n"
                               "  kv_cache_dtype: [bf16]\n"
                               "  cuda_graph: [off]\n") +
                           kQuickProbes;
  for (const char* level : {"full", "reference"}) {
    const TempDir folder;
    const Bisection run = bisect(folder, grid, {"--checks", level});
    const std::string report = read_text(run.directory + "/FINDINGS.md");
    INFO(report);
    const bool said = report.find("finite but wrong results were not looked for") != std::string::npos;
    CHECK(said == (std::string(level) == "full"));
  }
}

}  // namespace faultline
