// A kernel added by one file and one registration (tests/toys/): a value of its axis, run, checked and convicted like
// any other, with no other file touched.
#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

std::string toy_grid(const std::string& value) {
  return "name: toy\n"
         "model: synth:tiny\n"
         "axes:\n"
         "  attention_backend: [nsa]\n"
         "  nsa_decode_backend: [flashmla_sparse, " +
         value +
         "]\n"
         "  kv_cache_dtype: [bf16]\n"
         "  cuda_graph: [off]\n"
         "checks: reference\n" +
         kQuickProbes;
}

}  // namespace

TEST_CASE("a wrong toy kernel is a value of its axis and is convicted") {
  const TempDir folder;
  const Bisection run = bisect(folder, toy_grid("toy"), {}, FAULTLINE_TOYS "/faultline_toy_attention");
  INFO(run.outcome.err);
  CHECK(run.outcome.code == 1);
  CHECK(run.row({{"nsa_decode_backend", "flashmla_sparse"}}).at("verdict") == "pass");
  const nlohmann::json& wrong = run.row({{"nsa_decode_backend", "toy"}});
  CHECK(wrong.at("verdict") == "mismatch");
  const nlohmann::json& first = wrong.at("first_violation");
  CHECK(first.at("op") == "layers.0.self_attn.attention");
  CHECK(first.at("kernel") == "toy");
  CHECK(first.at("provenance") == "own");
  CHECK(first.at("phase") == "decode");
  CHECK(first.at("inputs_clean") == "yes");
  REQUIRE(first.at("index").size() == 3);
  CHECK(first.at("index")[1] == 0);  // head 0 is the wrong one

  REQUIRE(run.findings.at("localized").size() == 1);
  const nlohmann::json& localized = run.findings.at("localized")[0];
  CHECK(localized.at("culprit") == "kernel");
  CHECK(localized.at("op") == "layers.0.self_attn.attention");
  CHECK(localized.at("kernel") == "toy");
  CHECK(localized.at("reproduces") == "yes");
  CHECK(localized.at("necessary") == "yes");
  REQUIRE(run.findings.at("minimal_combinations").size() == 1);
  CHECK(run.findings.at("minimal_combinations")[0].at("axes") == nlohmann::json{{"nsa_decode_backend", "toy"}});
}

TEST_CASE("a toy kernel that does its job raises no alarm") {
  const TempDir folder;
  const Bisection run = bisect(folder, toy_grid("right"), {}, FAULTLINE_TOYS "/faultline_right_attention");
  INFO(run.outcome.err);
  CHECK(run.outcome.code == 0);
  CHECK(run.verdicts() == std::vector<std::string>{"pass", "pass"});
  CHECK(run.row({{"nsa_decode_backend", "right"}}).at("resolved").dump().find("\"right\"") != std::string::npos);
  CHECK(run.findings.at("localized").empty());
}

TEST_CASE("a value that no kernel of this build serves is refused, and the nearest ones are named") {
  const TempDir folder;
  const Outcome outcome =
      faultline({"bisect", folder.write("toy.yaml", toy_grid("toy")), "--out", folder.file("reports")});
  CHECK(outcome.code == 2);
  INFO(outcome.err);
  CHECK(outcome.err.find("toy.yaml:5") != std::string::npos);
  CHECK(outcome.err.find("nsa_decode_backend has no value 'toy'") != std::string::npos);
  CHECK(outcome.err.find("flashmla_kv") != std::string::npos);
  CHECK_FALSE(exists(folder.file("reports")));
}

}  // namespace faultline
