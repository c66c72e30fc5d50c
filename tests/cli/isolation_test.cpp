// Workers that die in every way that a CPU offers, weights that are bad by themselves, and grids that are not walked in
// full.
#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

using nlohmann::json;

std::string grid(const std::string& caches, const std::string& model, const std::string& tokens) {
  return "name: isolated\n"
         "model: " +
         model +
         "\n"
         "axes:\n"
         "  attention_backend: [nsa]\n"
         "  nsa_decode_backend: [flashmla_kv]\n"
         "  kv_cache_dtype: " +
         caches +
         "\n"
         "  cuda_graph: [off]\n"
         "probes:\n"
         "  tokens: " +
         tokens +
         "\n"
         "  prefill: {lengths: [17], chunk: 16}\n"
         "  decode: {contexts: [20], batch: [2], steps: 1}\n";
}

}  // namespace

TEST_CASE("a worker that throws, exits or asserts has a verdict, named at the op of a decode pass; the others run on") {
  const TempDir folder;
  const Bisection run = bisect(folder, grid("[bf16]", "synth:tiny", "random"),
                               {"--plant", "exception", "--plant", "exit", "--plant", "assert"});
  INFO(run.outcome.err);
  CHECK(run.outcome.code == 1);
  CHECK(run.row({}).at("verdict") == "pass");
  CHECK(run.row({}, "exception").at("verdict") == "crash");
  CHECK(run.row({}, "exit").at("verdict") == "crash");
  CHECK(run.row({}, "exit").at("reason").get<std::string>().find("code 7") != std::string::npos);
  CHECK(run.row({}, "assert").at("verdict") == "device-assert");
  for (const char* plant : {"exception", "exit", "assert"}) {
    INFO(plant);
    const json& first = run.row({}, plant).at("first_violation");
    REQUIRE(first.is_object());
    CHECK(first.at("phase") == "decode");
    CHECK(first.at("op") == "layers.0.self_attn.attention");
  }
  CHECK(Running::nothing_left());
}

#if !defined(__SANITIZE_ADDRESS__)  // its shadow memory does not fit under a limit
TEST_CASE("a worker that needs more memory than it may have is oom; one that stays within a tight limit passes") {
  const TempDir folder;
  const Bisection run =
      bisect(folder, grid("[bf16]", "synth:tiny", "random"), {"--memory-limit", "100", "--plant", "out_of_memory"});
  INFO(run.outcome.err);
  CHECK(run.outcome.code == 1);
  CHECK(run.row({}).at("verdict") == "pass");
  CHECK(run.row({}, "out_of_memory").at("verdict") == "oom");
  CHECK(run.row({}, "out_of_memory").at("first_violation").at("op") == "layers.0.self_attn.attention");
}
#endif

TEST_CASE(
    "a zero row of the embedding becomes NaN wherever the cache is packed without a floor, and its case replays from "
    "anywhere") {
  const TempDir folder;
  folder.write("ids.txt", "5 6 7 8 9\n");
  const Bisection run = bisect(folder, grid("[bf16, fp8_e4m3]", "synth:tiny?zero_row=5", "ids.txt"));
  INFO(run.outcome.err);
  CHECK(run.outcome.code == 1);
  // flashmla_kv packs a bf16 pool before each call.
  const json& packed_later = run.row({{"kv_cache_dtype", "bf16"}});
  CHECK(packed_later.at("verdict") == "nonfinite");
  CHECK(packed_later.at("first_violation").at("op") == "layers.0.self_attn.kv_requantize");
  for (const json& localized : run.findings.at("localized")) CHECK(localized.at("culprit") == "kernel");
  const json& row = run.row({{"kv_cache_dtype", "fp8_e4m3"}});
  CHECK(row.at("verdict") == "nonfinite");
  CHECK(row.at("first_violation").at("op") == "layers.0.self_attn.kv_write");
  const std::string path = run.directory + "/cases/" + row.at("id").get<std::string>() + ".yaml";
  CHECK(run_program("sh", {"-c", "cd / && exec " FAULTLINE_PROGRAM " replay " + path}).code == 1);
}

TEST_CASE("a part of the grid finds the same culprit: pairs and adaptive") {
  for (const char* strategy : {"pairs", "adaptive"}) {
    INFO(strategy);
    const TempDir folder;
    const Bisection run = bisect(folder,
                                 std::string("name: part\n"
                                             "model: synth:tiny\n"
                                             "axes:\n"
                                             "  attention_backend: [nsa, flashinfer, triton]\n"
                                             "  nsa_decode_backend: [flashmla_kv, flashmla_sparse]\n"
                                             "  kv_cache_dtype: [bf16, fp8_e4m3]\n"
                                             "  rope_mode: [checkpoint, theta_10000]\n"
                                             "  cuda_graph: [off]\n") +
                                     kQuickProbes,
                                 {"--strategy", strategy});
    CHECK(run.outcome.code == 1);
    CHECK(run.findings.at("configurations").size() < 24);
    REQUIRE(run.findings.at("localized").size() == 1);
    CHECK(run.findings.at("localized")[0].at("culprit") == "layout");
    // Pairs may leave factors untested, and then say so.
    if (std::string(strategy) == "pairs") continue;
    REQUIRE(run.findings.at("minimal_combinations").size() == 1);
    CHECK(run.findings.at("minimal_combinations")[0].at("axes") ==
          json{{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "fp8_e4m3"}});
  }
}

}  // namespace faultline
