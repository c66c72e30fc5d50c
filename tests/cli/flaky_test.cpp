// Faults that come and go, or that a closer look makes vanish: planted, and convicted by repeated runs.
#include "program.h"
#include "testing.h"

using namespace faultline;

namespace {

std::string row(const std::string& graph, const std::string& model = "synth:tiny") {
  return "name: flaky\nmodel: " + model +
         "\naxes:\n"
         "  attention_backend: [nsa]\n"
         "  nsa_decode_backend: [flashmla_kv]\n"
         "  kv_cache_dtype: [fp8_e4m3]\n"
         "  cuda_graph: [" +
         graph +
         "]\n"
         "probes:\n"
         "  prefill: {lengths: [5]}\n"
         "  decode: {contexts: [4], batch: [3], steps: 2}\n";
}

const nlohmann::json& only_localized(const Bisection& run) {
  REQUIRE(run.findings.at("localized").size() == 1);
  return run.findings.at("localized").at(0);
}

}  // namespace

TEST_CASE("kernels that break half of the time are convicted, and how often they do is told") {
  for (const char* seed : {"7", "8"}) {
    const TempDir folder;
    const Bisection run = bisect(folder, row("off"), {"--plant", "nan_output@p=0.5", "--repeats", "9", "--seed", seed});
    CHECK(run.outcome.code == 1);
    const nlohmann::json& planted = run.findings.at("configurations").at(1);
    CHECK(planted.at("verdict") == "flaky");
    CHECK(planted.at("repeats") == 9);
    CHECK(planted.at("failures") < 9);
    CHECK(planted.at("failures") > 0);
    CHECK(planted.at("failure_rate_at_least") > 0);
    CHECK(planted.at("failure_rate_at_most") < 1);
    const nlohmann::json& found = only_localized(run);
    CHECK(found.at("culprit") == "kernel");
    CHECK(found.at("op") == "layers.0.self_attn.o_proj");
    CHECK(found.at("level") == 0.95);
    CHECK(found.at("changed_failures") == 0);
    CHECK(found.at("changed_runs") > 4);
  }
}

TEST_CASE("a race that is lost one time in ten is convicted, and the row without it is called good") {
  const TempDir folder;
  const Bisection run = bisect(folder, row("on"), {"--plant", "late_tile@p=0.1", "--repeats", "auto"});
  CHECK(run.outcome.code == 1);
  const nlohmann::json& clean = run.findings.at("configurations").at(0);
  CHECK(clean.at("verdict") == "pass");
  CHECK(clean.at("repeats") == 29);
  CHECK(clean.at("failure_rate_at_most") < 0.1);
  const nlohmann::json& found = only_localized(run);
  CHECK(found.at("culprit") == "ordering");
  CHECK(found.at("op") == "layers.0.mlp.gate_up_proj");
}

TEST_CASE("a graph's buffer with another step's values is convicted by writing one buffer anew at a time") {
  const TempDir folder;
  const Bisection run = bisect(folder, row("on"), {"--plant", "stale_graph_slots"});
  CHECK(run.outcome.code == 1);
  const nlohmann::json& found = only_localized(run);
  CHECK(found.at("culprit") == "metadata");
  CHECK(found.at("op") == "batch.out_cache_loc");
  CHECK(found.at("necessary") == "yes");
  CHECK(found.at("worker_runs") <= 15);
}

TEST_CASE("the stale buffer does not show where no graph is replayed") {
  const TempDir folder;
  const Bisection run = bisect(folder, row("off"), {"--plant", "stale_graph_slots"});
  CHECK(run.outcome.code == 0);
  CHECK(run.findings.at("localized").empty());
}

TEST_CASE("one failing configuration of slim is convicted in at most 15 worker runs") {
  for (const char* plant : {"late_tile", "nan_output", "crash", "zero_input_scale", "page_past_pool"}) {
    INFO(plant);
    const TempDir folder;
    const Bisection run = bisect(folder, row("on", "synth:slim"), {"--plant", plant});
    CHECK(run.outcome.code == 1);
    const nlohmann::json& found = only_localized(run);
    CHECK(found.at("culprit") != "");
    CHECK(found.at("worker_runs") > 0);
    CHECK(found.at("worker_runs") <= 15);
  }
}

TEST_CASE("where a failure is seen to come and go, rows that passed once prove nothing") {
  const std::string two_rows = row("off, on");
  int seen = 0;
  for (const char* seed : {"7", "8", "9", "10", "11", "12"}) {
    const TempDir folder;
    const Bisection run = bisect(folder, two_rows, {"--plant", "nan_output@p=0.4", "--repeats", "2", "--seed", seed});
    for (const nlohmann::json& found : run.findings.at("localized")) {
      if (found.at("unchanged_failures") == found.at("unchanged_runs")) continue;  // it was there in every run
      for (const nlohmann::json& combination : run.findings.at("minimal_combinations")) {
        if (combination.at("signature") != found.at("signature") || combination.at("axes").empty()) continue;
        CHECK(combination.at("untested").size() == combination.at("axes").size());
        ++seen;
      }
    }
  }
  CHECK(seen > 0);
}

TEST_CASE("repeats that contradict themselves are bad input") {
  const TempDir folder;
  const std::string file = folder.write("one.yaml", row("off"));
  for (const char* repeats : {"0", "-3", "two", "1.5", "auto3", ""}) {
    INFO(repeats);
    const Outcome outcome = faultline::faultline({"bisect", file, "--out", folder.file("out"), "--repeats", repeats});
    CHECK(outcome.code == 2);
    CHECK(outcome.err.find("--repeats") != std::string::npos);
    CHECK_FALSE(exists(folder.file("out")));
  }
  CHECK(faultline::faultline({"bisect", file, "--repeats", "auto", "--repeats", "3"}).code == 2);
  for (const char* repeats : {"0", "-1", "often"}) {
    const std::string bad = folder.write("bad.yaml", row("off") + "repeats: " + repeats + "\n");
    const Outcome outcome = faultline::faultline({"bisect", bad, "--out", folder.file("out")});
    CHECK(outcome.code == 2);
    CHECK(outcome.err.find("repeats") != std::string::npos);
  }
}
