#include "report/json.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "report/sample.h"
#include "testing.h"

using namespace faultline;

namespace {

nlohmann::json document() {
  return nlohmann::json::parse(findings_json(sample_planted()));
}

std::string error_of(const nlohmann::json& changed) {
  const Result<Findings> findings = parse_findings(changed.dump(), "findings.json");
  REQUIRE_FALSE(findings.has_value());
  CHECK(findings.error().kind == ErrorKind::kBadInput);
  CHECK(findings.error().message.find("findings.json") != std::string::npos);
  return findings.error().message;
}

bool has_keys(const nlohmann::json& object, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (!object.contains(key)) {
      UNSCOPED_INFO("missing: " << key);
      return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("findings.json holds every field of schema 1") {
  const nlohmann::json json = document();
  CHECK(json.at("schema") == 1);
  CHECK(has_keys(json, {"configurations", "localized", "minimal_combinations", "ruled_out", "inert", "workarounds",
                        "environment", "exit_code"}));
  const nlohmann::json& row = json.at("configurations").at(3);
  CHECK(has_keys(row, {"id", "axes", "resolved", "plant", "target_status", "verdict", "reason", "notes", "repeats",
                       "failures", "seconds", "first_violation"}));
  CHECK(has_keys(row.at("first_violation"), {"op", "kernel", "provenance", "build", "phase", "step", "layer", "rank",
                                             "tensor", "kind", "index", "value", "bits", "count", "inputs_clean"}));
  CHECK(has_keys(json.at("localized").at(0),
                 {"culprit", "op", "kernel", "provenance", "layer", "kind", "signature", "plant", "reproduces",
                  "necessary", "confidence", "configurations", "capsule", "explanation"}));
  CHECK(has_keys(json.at("minimal_combinations").at(0), {"axes", "untested", "signature", "plant"}));
  CHECK(has_keys(json.at("ruled_out").at(0), {"axis", "signature", "condition", "pairs"}));
  CHECK(has_keys(json.at("inert").at(0), {"axis", "condition", "because"}));
  CHECK(has_keys(json.at("workarounds").at(0), {"id", "changes"}));
  CHECK(row.at("plant").is_null());
  CHECK(json.at("configurations").at(0).at("first_violation").is_null());
  CHECK(json.at("configurations").at(6).at("plant") == "late_tile");
  CHECK(json.at("ruled_out").at(0).at("pairs") == nlohmann::json::parse(R"([["c004", "c007"]])"));
}

TEST_CASE("findings survive writing and reading") {
  const Findings findings = sample_planted();
  const std::string text = findings_json(findings);
  const Result<Findings> read = parse_findings(text, "findings.json");
  REQUIRE(read.has_value());
  CHECK(findings_json(*read) == text);
  CHECK(read->configurations.size() == findings.configurations.size());
  CHECK(read->configurations[3].first_violation->index == std::vector<int64_t>{12, 540});
  CHECK(read->configurations[3].first_violation->follows == "FlashInfer MLA");
  CHECK(read->localized[1].plant == "late_tile");
  CHECK(read->workarounds[0].launch_command == findings.workarounds[0].launch_command);
  CHECK(read->exit_code == 1);
  CHECK(findings_json(*parse_findings(findings_json({}), "empty")) == findings_json({}));
}

TEST_CASE("what JSON cannot hold is written as something it can") {
  Findings findings = sample_findings();
  findings.configurations[0].seconds = std::numeric_limits<double>::quiet_NaN();
  findings.configurations[0].reason = "cut \xC3 here";
  const Result<Findings> read = parse_findings(findings_json(findings), "findings.json");
  REQUIRE(read.has_value());
  CHECK(read->configurations[0].seconds == 0);
  CHECK(read->configurations[0].reason == "cut \xEF\xBF\xBD here");
}

TEST_CASE("fields that this program does not know are ignored, and those beyond the contract may be missing") {
  nlohmann::json json = document();
  json["later"] = {1, 2};
  json["configurations"][0]["later"] = true;
  json.erase("next_experiments");
  json["configurations"][3]["first_violation"].erase("detail");
  json["inert"][0].erase("pairs");
  json["ruled_out"][0].erase("plant");
  CHECK(parse_findings(json.dump(), "findings.json").has_value());
}

TEST_CASE("a missing field of the contract is named with its place") {
  nlohmann::json json = document();
  SECTION("at the top") {
    json.erase("environment");
    CHECK(error_of(json).find("environment is missing") != std::string::npos);
  }
  SECTION("in a configuration") {
    json["configurations"][2].erase("verdict");
    CHECK(error_of(json).find("configurations[2].verdict is missing") != std::string::npos);
  }
  SECTION("in a violation") {
    json["configurations"][3]["first_violation"].erase("inputs_clean");
    CHECK(error_of(json).find("configurations[3].first_violation.inputs_clean is missing") != std::string::npos);
  }
  SECTION("plant, which may be null and not absent") {
    json["localized"][0].erase("plant");
    CHECK(error_of(json).find("localized[0].plant is missing") != std::string::npos);
  }
}

TEST_CASE("a field of another type is refused with its place") {
  nlohmann::json json = document();
  SECTION("number for text") {
    json["configurations"][0]["id"] = 17;
    CHECK(error_of(json).find("configurations[0].id must be text") != std::string::npos);
  }
  SECTION("fraction for a whole number") {
    json["configurations"][0]["repeats"] = 1.5;
    CHECK(error_of(json).find("repeats must be a whole number") != std::string::npos);
  }
  SECTION("number past 64 bits") {
    json["configurations"][0]["repeats"] = std::numeric_limits<uint64_t>::max();
    CHECK(error_of(json).find("repeats must be a whole number") != std::string::npos);
  }
  SECTION("list for an object") {
    json["configurations"][0]["axes"] = nlohmann::json::array();
    CHECK(error_of(json).find("configurations[0].axes must be an object") != std::string::npos);
  }
  SECTION("axis value that is no text") {
    json["configurations"][0]["axes"]["tp"] = 8;
    CHECK(error_of(json).find("axes.tp must be text") != std::string::npos);
  }
  SECTION("object for a list") {
    json["localized"] = nlohmann::json::object();
    CHECK(error_of(json).find("localized must be a list") != std::string::npos);
  }
  SECTION("a pair of three") {
    json["ruled_out"][0]["pairs"][0] = {"a", "b", "c"};
    CHECK(error_of(json).find("pairs[0] must be a pair") != std::string::npos);
  }
  SECTION("text within a list of numbers") {
    json["configurations"][3]["first_violation"]["index"][1] = "540";
    CHECK(error_of(json).find("index[1] must be a whole number") != std::string::npos);
  }
  SECTION("a configuration that is no object") {
    json["configurations"][1] = nullptr;
    CHECK(error_of(json).find("configurations[1] must be an object") != std::string::npos);
  }
  SECTION("an exit code that is none") {
    json["exit_code"] = 4096;
    CHECK(error_of(json).find("exit_code") != std::string::npos);
  }
}

TEST_CASE("another schema, another document and cut text are refused") {
  nlohmann::json json = document();
  json["schema"] = 2;
  CHECK(error_of(json).find("schema is 2") != std::string::npos);
  CHECK_FALSE(parse_findings("[]", "f").has_value());
  CHECK_FALSE(parse_findings("", "f").has_value());
  const std::string text = findings_json(sample_findings());
  for (size_t length = 0; length + 2 < text.size(); length += 97) {
    CHECK_FALSE(parse_findings(std::string_view(text).substr(0, length), "f").has_value());
  }
}

TEST_CASE("the server's command line and each row's command are kept, and absent where there are none") {
  Findings findings = sample_findings();
  CHECK(findings_json(findings).find("server_args") == std::string::npos);
  findings.server_args = "--tp 8 \"x\"";
  findings.server_args_warnings = {"not covered: --dp 2"};
  findings.configurations.front().launch_command = "python3 -m sglang.launch_server --tp-size 8";
  const auto again = parse_findings(findings_json(findings), "f.json");
  REQUIRE(again);
  CHECK(again->server_args == findings.server_args);
  CHECK(again->server_args_warnings == findings.server_args_warnings);
  CHECK(again->configurations.front().launch_command == findings.configurations.front().launch_command);
}
