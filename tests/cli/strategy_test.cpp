// Strategies and what is assumed fixed, as a user meets them: on synth:tiny, with faults that hang on one setting, on
// two, and on three.
#include <set>

#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

// 24 rows: a cache that fails with one backend, and settings that do nothing by themselves.
std::string grid() {
  return std::string(
             "name: strategies\n"
             "model: synth:tiny\n"
             "axes:\n"
             "  attention_backend: [nsa, flashinfer, triton]\n"
             "  kv_cache_dtype: [bf16, fp8_e4m3]\n"
             "  cuda_graph: [off, on]\n"
             "  batch: [1, 2]\n") +
         kQuickProbes;
}

std::set<std::string> combinations(const json& findings) {
  std::set<std::string> result;
  for (const json& combination : findings.at("minimal_combinations"))
    result.insert(combination.at("plant").dump() + combination.at("signature").dump() + combination.at("axes").dump() +
                  combination.at("untested").dump());
  return result;
}

std::string front_page(const Bisection& run) {
  const std::string text = read_text(run.directory + "/FINDINGS.md");
  return text.substr(0, text.find("## "));
}

}  // namespace

TEST_CASE("adaptive finds what the full grid finds, in fewer runs, for a plant that needs three settings too") {
  // An op that only sparse attention has, in replays of a graph, over one request.
  const std::string plant = "nan_output@op=*.self_attn.indexer.*,graph=on,warmup=off,batch=1";
  const TempDir folder;
  const Bisection full = bisect(folder, grid(), {"--strategy", "full", "--plant", plant});
  const TempDir other;
  const Bisection adaptive = bisect(other, grid(), {"--strategy", "adaptive", "--plant", plant});
  INFO(adaptive.findings.dump(1));
  CHECK(adaptive.outcome.code == full.outcome.code);
  CHECK(combinations(adaptive.findings) == combinations(full.findings));
  CHECK(combinations(full.findings).size() == 2);
  CHECK(std::any_of(full.findings.at("minimal_combinations").begin(), full.findings.at("minimal_combinations").end(),
                    [&](const json& one) { return one.at("plant") == plant && one.at("axes").size() == 3; }));
  const json& search = adaptive.findings.at("search");
  CHECK(search.at("strategy") == "adaptive");
  CHECK(search.at("grid_rows") == 24);
  CHECK(search.at("rows_run").get<int>() < full.findings.at("search").at("rows_run").get<int>());
  CHECK(search.at("strength").get<int>() >= 2);
  CHECK(full.findings.at("search").at("rows_run") == full.findings.at("search").at("runnable_rows"));
  CHECK_THAT(front_page(adaptive), Contains("of the grid's 24 rows were run (strategy adaptive)"));
  CHECK(front_page(full).find("of the grid's") == std::string::npos);
}

TEST_CASE("pairs runs every pair of values that a row which can run holds, and no row that cannot") {
  const TempDir folder;
  const Bisection run = bisect(folder, grid(), {"--strategy", "pairs"});
  CHECK(run.findings.at("configurations").size() <= 12);
  for (const json& row : run.findings.at("configurations")) CHECK(row.at("verdict") != "guard");
  CHECK(run.findings.at("next_experiments").dump().find("strategy full runs the other") != std::string::npos);
}

TEST_CASE("two faults at once: the first is named, and the second once the first is assumed fixed") {
  const std::string one_row = std::string(
                                  "name: two\n"
                                  "model: synth:tiny\n"
                                  "axes:\n"
                                  "  attention_backend: [flashinfer]\n"
                                  "  kv_cache_dtype: [fp8_e4m3]\n") +
                              kQuickProbes;
  // The layout conflict is in layer 0 of the first decode step, the router in layer 1.
  const std::vector<std::string> plant = {"--plant", "router_zero_over_zero@phase=decode"};
  const TempDir folder;
  const Bisection first = bisect(folder, one_row, plant);
  INFO(first.findings.dump(1));
  REQUIRE(first.findings.at("localized").size() == 1);
  CHECK(first.findings.at("localized")[0].at("culprit") == "layout");
  const std::string next = first.findings.at("next_experiments").dump();
  CHECK_THAT(next, Contains("--assume-fixed self_attn.attention"));

  std::vector<std::string> arguments = plant;
  arguments.insert(arguments.end(), {"--assume-fixed", "self_attn.attention"});
  const TempDir other;
  const Bisection second = bisect(other, one_row, arguments);
  INFO(second.findings.dump(1));
  REQUIRE(second.findings.at("localized").size() == 1);
  CHECK(second.findings.at("localized")[0].at("plant") == "router_zero_over_zero@phase=decode");
  CHECK(second.findings.at("localized")[0].at("op") == "layers.1.mlp.router");
  CHECK(second.findings.at("localized")[0].at("culprit") == "kernel");
  CHECK(second.row({}).at("verdict") == "pass");
  CHECK(second.findings.at("assume_fixed") == json{"self_attn.attention"});
  CHECK_THAT(front_page(second), Contains("Assumed fixed") && Contains("self_attn.attention"));
  // What is assumed belongs to the run: its cases and its reports keep it.
  CHECK_THAT(read_text(second.directory + "/experiment.yaml"), Contains("assume_fixed: [\"self_attn.attention\"]"));
  CHECK(faultline({"replay", second.directory, "--id", "c001"}).code == 0);
  CHECK(faultline({"report", second.directory}).code == 0);
  CHECK_THAT(front_page(second), Contains("Assumed fixed"));
}

TEST_CASE("a kernel, a backend, one layer's ops or unusable weights may be assumed fixed") {
  const std::string one_row = std::string(
                                  "model: synth:tiny\n"
                                  "axes:\n"
                                  "  attention_backend: [flashinfer]\n"
                                  "  kv_cache_dtype: [fp8_e4m3]\n") +
                              kQuickProbes;
  for (const char* name : {"flashinfer", "layers.*.self_attn.attention"}) {
    const TempDir folder;
    CHECK(bisect(folder, one_row, {"--assume-fixed", name}).outcome.code == 0);
  }
  const TempDir one_layer;
  CHECK(bisect(one_layer, one_row, {"--assume-fixed", "layers.0.self_attn.attention"}).outcome.code == 1);
  const TempDir weights;
  const Bisection mended = bisect(
      weights, one_row, {"--assume-fixed", "flashinfer", "--assume-fixed", "weights", "--plant", "zero_input_scale"});
  CHECK(mended.row({}, "zero_input_scale").at("verdict") == "pass");
}

TEST_CASE("with checks off, comparing outputs finds the op whose finite results are wrong, and clean rows stay clean") {
  const std::string rows = std::string(
                               "model: synth:tiny\n"
                               "axes:\n"
                               "  attention_backend: [nsa, triton]\n"
                               "  kv_cache_dtype: [bf16]\n") +
                           kQuickProbes;
  const TempDir folder;
  const Bisection run =
      bisect(folder, rows, {"--checks", "off", "--compare-outputs", "--plant", "wrong_value@op=*.self_attn.o_proj"});
  INFO(run.findings.dump(1));
  CHECK(run.outcome.code == 1);
  for (const json& row : run.findings.at("configurations"))
    CHECK(row.at("verdict") == (row.at("plant").is_null() ? "pass" : "mismatch"));
  REQUIRE(run.findings.at("localized").size() == 1);
  const json& found = run.findings.at("localized")[0];
  CHECK(found.at("culprit") == "kernel");
  CHECK(found.at("op") == "layers.0.self_attn.o_proj");
  CHECK_THAT(found.at("evidence").dump(), Contains("Bisected by kernel limit"));
}

TEST_CASE("a name that means nothing is bad input with the nearest one, before anything runs") {
  const TempDir folder;
  const std::string experiment = folder.write(
      "case.yaml", std::string("model: synth:tiny\naxes: {attention_backend: [nsa, triton]}\n") + kQuickProbes);
  const auto refused = [&](const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"bisect", experiment, "--out", folder.file("reports")};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = faultline(arguments);
    INFO(outcome.err);
    CHECK(outcome.code == 2);
    CHECK_FALSE(exists(folder.file("reports")));
    return outcome.err;
  };
  CHECK_THAT(refused({"--assume-fixed", "mlp.experts.gate_up_prj"}),
             Contains("did you mean 'mlp.experts.gate_up_proj'"));
  CHECK_THAT(refused({"--assume-fixed", "triton", "--assume-fixed", "triton"}), Contains("twice"));
  CHECK_THAT(refused({"--assume-fixed", "setting:theta"}), Contains("setting:theta"));
  refused({"--assume-fixed", ""});
  refused({"--strategy", "some"});
}

}  // namespace faultline
