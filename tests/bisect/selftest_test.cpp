// What a self-test makes of findings, and what it says. That it runs is tested by tests/cli/selftest_test.cpp.
#include "bisect/selftest.h"

#include "base/json.h"
#include "report/findings.h"
#include "testing.h"

using namespace faultline;

namespace {

SelftestEntry entry(const std::string& name = "late_tile") {
  SelftestEntry e;
  e.name = name;
  e.fault_class = "RACE";
  e.expected = "ordering layers.*.gate_up_proj";
  e.verdicts = {"nonfinite", "mismatch"};
  e.checks = "full";
  e.triggered = e.found = true;
  e.verdict = "nonfinite";
  return e;
}

Localized convicted(const std::string& culprit, const std::string& op, const std::string& plant = "late_tile") {
  Localized one;
  one.culprit = culprit;
  one.op = op;
  one.plant = plant;
  if (culprit.empty()) one.explanation = "Not localized: it could not be proven.";
  return one;
}

SelftestEntry judged(std::vector<Localized> localized) {
  Findings findings;
  findings.localized = std::move(localized);
  SelftestEntry e = entry();
  judge_naming(findings, "ordering", "layers.*.gate_up_proj", e);
  return e;
}

SelftestReport report_of(std::vector<SelftestEntry> entries) {
  SelftestReport report;
  report.model = "synth:tiny";
  report.device = "cpu";
  report.entries = std::move(entries);
  report.clean.rows = 3;
  return report;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a fault is named right by the kind of its culprit and by its op", "[selftest]") {
  CHECK(judged({convicted("ordering", "layers.0.gate_up_proj")}).localized == Naming::kRight);
  CHECK(judged({convicted("kernel", "layers.0.gate_up_proj")}).localized == Naming::kWrong);
  CHECK(judged({convicted("ordering", "layers.0.act_fn")}).localized == Naming::kWrong);
  CHECK(judged({convicted("ordering", "layers.0.gate_up_proj")}).named == "ordering layers.0.gate_up_proj");
}

TEST_CASE("what could not be proven is no name, and its reason is kept", "[selftest]") {
  const SelftestEntry none = judged({convicted("", "layers.0.act_fn")});
  CHECK(none.localized == Naming::kNone);
  CHECK(none.named.empty());
  CHECK(contains(none.explanation, "could not be proven"));
  CHECK(judged({}).localized == Naming::kNone);
}

TEST_CASE("one wrong name among several makes the entry wrong", "[selftest]") {
  const SelftestEntry e =
      judged({convicted("ordering", "layers.0.gate_up_proj"), convicted("kernel", "layers.1.mlp.router")});
  CHECK(e.localized == Naming::kWrong);
  CHECK(e.named == "kernel layers.1.mlp.router");
  CHECK(judged({convicted("ordering", "layers.0.gate_up_proj"), convicted("", "x")}).localized == Naming::kRight);
}

TEST_CASE("convictions of other plants are not held against an entry", "[selftest]") {
  CHECK(judged({convicted("kernel", "layers.0.act_fn", "other")}).localized == Naming::kNone);
}

TEST_CASE("where no failure is expected, nobody may be named", "[selftest]") {
  Findings findings;
  SelftestEntry e = entry();
  e.expected.clear();
  judge_naming(findings, "kernel", "*", e);
  CHECK(e.localized == Naming::kRight);
  findings.localized = {convicted("kernel", "layers.0.act_fn")};
  judge_naming(findings, "kernel", "*", e);
  CHECK(e.localized == Naming::kWrong);
}

TEST_CASE("a self-test passes when all is found, nothing named wrong and nothing alarmed", "[selftest]") {
  SelftestEntry right = entry();
  right.localized = Naming::kRight;
  CHECK(report_of({right}).passed());

  SelftestEntry unnamed = entry();
  CHECK(report_of({right, unnamed}).passed());  // not localized: honest, and no failure

  SelftestEntry wrong = entry();
  wrong.localized = Naming::kWrong;
  CHECK_FALSE(report_of({right, wrong}).passed());

  SelftestEntry missed = entry();
  missed.found = false;
  CHECK_FALSE(report_of({missed}).passed());

  SelftestReport alarmed = report_of({right});
  alarmed.clean.alarms = {"checks full, c001: nonfinite"};
  CHECK_FALSE(alarmed.passed());

  SelftestReport cut = report_of({right});
  cut.interrupted = true;
  CHECK_FALSE(cut.passed());
}

TEST_CASE("the table says what is wrong with an entry", "[selftest]") {
  SelftestEntry right = entry("a");
  right.localized = Naming::kRight;
  SelftestEntry silent = entry("b");
  silent.triggered = silent.found = false;
  SelftestEntry missed = entry("c");
  missed.found = false;
  missed.verdict = "pass";
  SelftestEntry wrong = entry("d");
  wrong.localized = Naming::kWrong;
  wrong.named = "kernel x";
  for (const std::string& text : {selftest_table(report_of({right, silent, missed, wrong})),
                                  selftest_markdown(report_of({right, silent, missed, wrong}))}) {
    CHECK(contains(text, "never triggered"));
    CHECK(contains(text, "expected nonfinite or mismatch"));
    CHECK(contains(text, "WRONG"));
    CHECK(contains(text, "2 of 4 faults found; 1 named right (25.0 %), 2 not localized, 1 named wrong."));
    CHECK(contains(text, "3 rows without a fault: no false alarm."));
  }
}

TEST_CASE("the JSON has an entry a fault and a summary", "[selftest]") {
  SelftestEntry right = entry();
  right.localized = Naming::kRight;
  right.named = "ordering layers.0.gate_up_proj";
  right.runs = 7;
  const auto json = parse_json(selftest_json(report_of({right})), "selftest");
  REQUIRE(json.has_value());
  const auto& first = json->at("entries")[0];
  CHECK(first.at("name") == "late_tile");
  CHECK(first.at("class") == "RACE");
  CHECK(first.at("found") == true);
  CHECK(first.at("localized") == "right");
  CHECK(first.at("runs") == 7);
  CHECK(json->at("summary").at("found") == 1);
  CHECK(json->at("summary").at("passed") == true);
}
