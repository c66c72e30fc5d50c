// The incident's grid without plants, on short probes: what the report must say about it (issue 2, "Done when").
#include <set>

#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

using nlohmann::json;

std::string incident() {
  return std::string(
             "name: incident\n"
             "model: synth:tiny\n"
             "profile: sglang-0.5.9\n"
             "axes:\n"
             "  attention_backend: [nsa, flashinfer, triton]\n"
             "  nsa_decode_backend: [flashmla_kv, flashmla_sparse]\n"
             "  kv_cache_dtype: [bf16, fp8_e4m3]\n"
             "  rope_mode: [checkpoint, theta_10000]\n"
             "  cuda_graph: [off]\n") +
         kQuickProbes;
}

// Run once: the cases look at different parts of it.
const Bisection& incident_run() {
  static const TempDir folder;
  static const Bisection run = bisect(folder, incident());
  return run;
}

const char* expected_verdict(const json& axes) {
  const bool fp8 = axes.at("kv_cache_dtype") == "fp8_e4m3";
  const std::string backend = axes.at("attention_backend");
  if (!fp8) return "pass";
  if (backend == "flashinfer") return "layout";
  if (backend == "triton") return "guard";
  return axes.at("nsa_decode_backend") == "flashmla_sparse" ? "guard" : "pass";
}

}  // namespace

TEST_CASE("the incident: each row has the verdict that the server's source predicts") {
  const Bisection& run = incident_run();
  CHECK(run.outcome.code == 1);
  REQUIRE(run.findings.at("configurations").size() == 24);
  for (const json& row : run.findings.at("configurations")) {
    INFO(row.dump());
    CHECK(row.at("verdict") == expected_verdict(row.at("axes")));
    if (row.at("verdict") == "guard") {
      CHECK(row.at("target_status") == "guard");
      CHECK_FALSE(row.at("reason").get<std::string>().empty());
      CHECK(row.at("repeats") == 0);
    }
  }
}

TEST_CASE("the incident: the layout violation has the phase, coordinates, value and bits of what decodes differently") {
  const json& row = incident_run().row({{"attention_backend", "flashinfer"},
                                        {"nsa_decode_backend", "flashmla_kv"},
                                        {"kv_cache_dtype", "fp8_e4m3"},
                                        {"rope_mode", "checkpoint"}});
  const json& first = row.at("first_violation");
  INFO(first.dump());
  CHECK(first.at("op") == "layers.0.self_attn.attention");
  CHECK(first.at("kernel") == "flashinfer");
  CHECK(first.at("kind") == "layout");
  CHECK(first.at("phase") == "decode");
  CHECK(first.at("tensor") == "layers.0.self_attn.kv_cache");
  CHECK(first.at("index").size() == 2);
  CHECK_FALSE(first.at("value").get<std::string>().empty());
  CHECK(first.at("bits").get<std::string>().rfind("0x", 0) == 0);
  CHECK(first.at("count") > 0);
  CHECK(first.at("inputs_clean") == "yes");
}

TEST_CASE("the incident: one culprit, a layout, with the minimal combination of exactly two axes") {
  const json& findings = incident_run().findings;
  REQUIRE(findings.at("localized").size() == 1);
  const json& localized = findings.at("localized")[0];
  INFO(localized.dump());
  CHECK(localized.at("culprit") == "layout");
  CHECK(localized.at("op") == "layers.0.self_attn.attention");
  CHECK(localized.at("kernel") == "flashinfer");
  CHECK(localized.at("reproduces") == "yes");
  CHECK(localized.at("necessary") == "yes");
  CHECK(localized.at("configurations").size() == 4);
  REQUIRE(findings.at("minimal_combinations").size() == 1);
  const json& combination = findings.at("minimal_combinations")[0];
  CHECK(combination.at("axes") == json{{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "fp8_e4m3"}});
  CHECK(combination.at("untested").empty());
}

TEST_CASE("the incident: RoPE is ruled out by pairs of rows, nsa_decode_backend is inert under flashinfer") {
  const Bisection& run = incident_run();
  bool rope = false;
  for (const json& ruled_out : run.findings.at("ruled_out")) {
    if (ruled_out.at("axis") != "rope_mode") continue;
    rope = true;
    REQUIRE_FALSE(ruled_out.at("pairs").empty());
    std::set<std::string> known;
    for (const json& row : run.findings.at("configurations")) known.insert(row.at("id").get<std::string>());
    for (const json& pair : ruled_out.at("pairs")) {
      REQUIRE(pair.size() == 2);
      CHECK(known.count(pair[0].get<std::string>()) == 1);
      CHECK(known.count(pair[1].get<std::string>()) == 1);
    }
  }
  CHECK(rope);
  bool inert_under_flashinfer = false;
  for (const json& inert : run.findings.at("inert")) {
    CHECK(inert.at("axis") == "nsa_decode_backend");  // nothing else is
    if (inert.at("condition") != json{{"attention_backend", "flashinfer"}}) continue;
    inert_under_flashinfer = true;
    CHECK_FALSE(inert.at("because").get<std::string>().empty());
  }
  CHECK(inert_under_flashinfer);
}

TEST_CASE("the incident: a configuration that passes is near, and rows of another model carry a note") {
  const Bisection& run = incident_run();
  REQUIRE_FALSE(run.findings.at("workarounds").empty());
  std::set<std::string> passing;
  for (const json& row : run.findings.at("configurations"))
    if (row.at("verdict") == "pass") passing.insert(row.at("id").get<std::string>());
  for (const json& workaround : run.findings.at("workarounds")) {
    CHECK(passing.count(workaround.at("id").get<std::string>()) == 1);
    CHECK(workaround.at("changes").size() == 1);
  }
  const json& other_model = run.row({{"attention_backend", "nsa"},
                                     {"nsa_decode_backend", "flashmla_kv"},
                                     {"kv_cache_dtype", "bf16"},
                                     {"rope_mode", "theta_10000"}});
  CHECK(other_model.at("notes").dump().find("theta_10000") != std::string::npos);
}

TEST_CASE("the incident on sm_120: the NSA rows are unsupported, and the attention backend stays untested") {
  const TempDir folder;
  const Bisection run = bisect(folder, incident(), {"--arch", "sm_120"});
  CHECK(run.outcome.code == 1);
  for (const json& row : run.findings.at("configurations")) {
    INFO(row.dump());
    const json& axes = row.at("axes");
    const bool fp8 = axes.at("kv_cache_dtype") == "fp8_e4m3";
    if (axes.at("attention_backend") == "nsa") {
      // Where a guard and the architecture both refuse, either is told.
      CHECK((row.at("verdict") == "unsupported" || (fp8 && row.at("verdict") == "guard")));
      CHECK_FALSE(row.at("reason").get<std::string>().empty());
    } else {
      CHECK(row.at("verdict") == expected_verdict(axes));
    }
  }
  REQUIRE(run.findings.at("minimal_combinations").size() == 1);
  const json& combination = run.findings.at("minimal_combinations")[0];
  INFO(combination.dump());
  CHECK(combination.at("axes") == json{{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "fp8_e4m3"}});
  CHECK(combination.at("untested") == json{"attention_backend"});
}

}  // namespace faultline
