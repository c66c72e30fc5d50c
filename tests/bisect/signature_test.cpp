#include "bisect/signature.h"

#include "testing.h"

using namespace faultline;

namespace {

ConfigurationResult failing(const std::string& id, const std::string& op, const std::string& plant = "") {
  ConfigurationResult configuration;
  configuration.id = id;
  configuration.plant = plant;
  configuration.verdict = "layout";
  Violation violation;
  violation.kind = "layout";
  violation.op = op;
  violation.kernel = "flashinfer";
  violation.phase = "decode";
  configuration.first_violation = violation;
  return configuration;
}

}  // namespace

TEST_CASE("an op pattern drops the layer number and keeps what the op is") {
  CHECK(op_pattern("layers.3.self_attn.attention") == "self_attn.attention");
  CHECK(op_pattern("model.layers.12.mlp.experts.gate_up") == "model.mlp.experts.gate_up");
  CHECK(op_pattern("layers.0.mlp.experts.7.gate_up") == "mlp.experts.*.gate_up");
  CHECK(op_pattern("lm_head") == "lm_head");
  CHECK(op_pattern("layers.3") == "layers.*");
  CHECK(op_pattern("layers.norm") == "layers.norm");
  CHECK(op_pattern("").empty());
}

TEST_CASE("a signature reads as kind at op by kernel and phase") {
  CHECK(signature_text({"layout", "layers.0.self_attn.attention", "flashinfer", "decode", false}) ==
        "layout at self_attn.attention (flashinfer, decode)");
  CHECK(signature_text({"mismatch", "layers.1.self_attn.rope", "own", "", true}) ==
        "setting mismatch at self_attn.rope (own)");
  CHECK(signature_text({"hang", "layers.1.mlp.router", "", "prefill", false}) == "hang at mlp.router (prefill)");
  CHECK(signature_text({"crash", "", "", "", false}) == "crash outside of any op");
}

TEST_CASE("the same fault in another layer and step has the same signature, another kernel or phase has not") {
  const ConfigurationResult first = failing("c001", "layers.0.self_attn.attention");
  ConfigurationResult second = failing("c002", "layers.3.self_attn.attention");
  second.first_violation->step = 4;
  second.first_violation->index = {7, 9};
  CHECK(signature_of(first) == signature_of(second));
  second.first_violation->kernel = "triton";
  CHECK(signature_of(first) != signature_of(second));
  second = first;
  second.first_violation->phase = "prefill";
  CHECK(signature_of(first) != signature_of(second));
  second = first;
  second.first_violation->setting = true;
  CHECK(signature_of(first) != signature_of(second));
}

TEST_CASE("only failures have a signature, and a death without a mark still has one") {
  ConfigurationResult configuration;
  for (const char* verdict : {"pass", "guard", "unsupported", "skipped"}) {
    configuration.verdict = verdict;
    CHECK(signature_of(configuration).empty());
  }
  configuration.verdict = "abort";
  CHECK(signature_of(configuration) == "abort outside of any op");
  configuration.verdict = "never-heard-of";
  CHECK(signature_of(configuration) == "never-heard-of outside of any op");
}

TEST_CASE("failures group by plant and signature in grid order") {
  ConfigurationResult passing;
  passing.id = "c000";
  passing.verdict = "pass";
  const auto groups = group_failures({passing, failing("c001", "layers.0.a"), failing("c002", "layers.0.b"),
                                      failing("c003", "layers.2.a"), failing("c001+p", "layers.0.a", "p")});
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].signature == "layout at a (flashinfer, decode)");
  CHECK(groups[0].configurations == std::vector<std::string>{"c001", "c003"});
  CHECK(groups[1].configurations == std::vector<std::string>{"c002"});
  CHECK(groups[2].plant == "p");
  CHECK(groups[2].configurations == std::vector<std::string>{"c001+p"});
}
