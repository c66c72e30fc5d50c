// `faultline selftest` as a user meets it, on a few of its faults. All of them take minutes: scripts that release run
// it.
#include <algorithm>

#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

using nlohmann::json;

Outcome selftest(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"selftest", "--device", "cpu", "--quiet"});
  return faultline(arguments);
}

json results_of(const TempDir& folder, const std::vector<std::string>& arguments, int code) {
  std::vector<std::string> all = arguments;
  all.insert(all.end(), {"--json", folder.file("results.json")});
  const Outcome outcome = selftest(all);
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == code);
  return json::parse(read_text(folder.file("results.json")));
}

}  // namespace

TEST_CASE("faults are planted, found and named, and the table says so") {
  const TempDir folder;
  const json results = results_of(folder, {"--only", "topk_*"}, 0);
  REQUIRE(results.at("entries").size() >= 8);
  for (const json& entry : results.at("entries")) {
    INFO(entry.dump());
    CHECK(entry.at("found") == true);
    CHECK(entry.at("localized") == "right");
    CHECK(entry.at("runs").get<int>() >= 3);
  }
  CHECK(results.at("summary").at("wrong") == 0);
  CHECK(results.at("summary").at("false_alarms").empty());
}

TEST_CASE("a fault that this model has no place for never triggers, which is an error") {
  const TempDir folder;
  const json results =
      results_of(folder, {"--only", "double_routing_scale", "--model", "synth:tiny?routed_scaling_factor=1"}, 1);
  REQUIRE(results.at("entries").size() == 1);
  CHECK(results.at("entries")[0].at("triggered") == false);
  CHECK(results.at("entries")[0].at("found") == false);
  CHECK(results.at("summary").at("passed") == false);
}

TEST_CASE("what a model or device cannot have is left out, and said so") {
  const TempDir folder;
  const json results = results_of(folder, {"--only", "*_access"}, 0);
  CHECK(results.at("entries").empty());
  CHECK(results.at("summary").at("left_out").size() == 2);
}

TEST_CASE("without a folder for temporary files it says so") {
  const TempDir folder;
  const Outcome outcome = run_program("env", {"TMPDIR=" + folder.file("none"), FAULTLINE_PROGRAM, "selftest",
                                              "--device", "cpu", "--only", "nan_output"});
  CHECK(outcome.code == 2);
  CHECK(outcome.err.find("TMPDIR") != std::string::npos);
}

TEST_CASE("a pattern that names no fault is bad input") {
  const Outcome outcome = selftest({"--only", "topk_nothing"});
  CHECK(outcome.code == 2);
  CHECK(outcome.err.find("topk_nothing") != std::string::npos);
}

TEST_CASE("the catalogue is listed without running anything") {
  const Outcome outcome = selftest({"--list"});
  CHECK(outcome.code == 0);
  CHECK(outcome.out.find("| `late_tile` | RACE |") != std::string::npos);
}

TEST_CASE("the runs of a self-test can be kept") {
  const TempDir folder;
  const json results = results_of(folder, {"--only", "nan_output", "--out", folder.file("runs")}, 0);
  CHECK(results.at("entries").size() == 1);
  const std::vector<std::string> kept = files_in(folder.file("runs"));  // the experiment and its run
  REQUIRE(kept.size() == 2);
  CHECK(std::any_of(kept.begin(), kept.end(),
                    [&](const std::string& name) { return exists(folder.file("runs/" + name + "/findings.json")); }));
}

}  // namespace faultline
