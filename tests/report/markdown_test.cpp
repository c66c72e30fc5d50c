#include "report/markdown.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/sample.h"
#include "testing.h"

using namespace faultline;

namespace {

size_t position(const std::string& text, const std::string& part) {
  INFO(part);
  const size_t at = text.find(part);
  REQUIRE(at != std::string::npos);
  return at;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A line without its code spans, as CommonMark reads them: a run of backticks ends at the next run of the same length.
std::string without_code(const std::string& line) {
  std::string outside;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\') {
      ++i;
      continue;
    }
    if (line[i] != '`') {
      outside += line[i];
      continue;
    }
    const auto run_at = [&](size_t at) { return std::min(line.find_first_not_of('`', at), line.size()) - at; };
    const size_t length = run_at(i);
    size_t end = i + length;
    while (end < line.size() && (line[end] != '`' || run_at(end) != length)) end += line[end] == '`' ? run_at(end) : 1;
    REQUIRE(end < line.size());
    i = end + length - 1;
  }
  return outside;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

}  // namespace

TEST_CASE("FINDINGS.md answers in five lines first, then gives the rest in the order to read it") {
  const std::string text = findings_markdown(sample_findings());
  const auto lines = lines_of(text);
  CHECK(lines[0] == "# Faultline findings: incident");
  for (int i = 1; i <= 5; ++i) CHECK(lines[static_cast<size_t>(i) + 1].rfind(fmt::format("{}. **", i), 0) == 0);
  size_t last = 0;
  for (const char* heading : {"## What broke, and the proof", "## Ruled out, and without effect", "## What to do now",
                              "## How to reproduce", "## The grid", "## Environment", "## Limits of the evidence"}) {
    const size_t at = position(text, heading);
    CHECK(at > last);
    last = at;
  }
}

TEST_CASE("the conviction shows its evidence, its build, and how to replay it") {
  const std::string text = findings_markdown(sample_findings());
  CHECK(contains(text, "| Inputs clean | yes"));
  CHECK(contains(text, "| Reproduces alone | yes"));
  CHECK(contains(text, "| Necessary | yes"));
  CHECK(contains(text, "| Build | checked"));
  CHECK(contains(text, "1. The writer's format is kv_packed_656."));
  CHECK(contains(text, "`faultline replay reports/incident-1/capsules/c004.safetensors`"));
  CHECK(contains(text, "faultline replay reports/incident-1/cases/c004.yaml"));
  CHECK(contains(text, "python -m sglang.launch_server --kv-cache-dtype bf16"));
  CHECK(contains(text, "c004/c007"));
  CHECK(contains(text, "c003/c008"));
  CHECK(contains(text, "not that vendor's code"));
  CHECK(contains(text, "finite but wrong results were not looked for"));
  CHECK(contains(text, "- The model is synthetic."));
}

TEST_CASE("the limits follow from the run") {
  Findings findings = sample_findings();
  CHECK(contains(findings_markdown(findings), "Passing configurations ran once"));
  CHECK(contains(findings_markdown(findings), "1 configuration did not run"));
  findings.environment["checks"] = "reference";
  for (ConfigurationResult& row : findings.configurations)
    if (row.verdict == "pass") row.repeats = 29;
  findings.configurations[0].repeats = 28;
  findings.configurations[1].target_status = "unsupported";
  const std::string text = findings_markdown(findings);
  CHECK_FALSE(contains(text, "were not looked for"));
  CHECK(contains(text, "ran 28 times or more"));
  CHECK(contains(text, "its failure rate is below 10 %"));
  CHECK(contains(text, "ran here although the target"));
}

TEST_CASE("the grid's columns are the axes that vary, and the others are named once") {
  const std::string text = findings_markdown(sample_findings());
  CHECK(contains(text, "| id | `attention_backend` | `kv_cache_dtype` | verdict | reason |"));
  CHECK(contains(text, "The same in every row: `tp=1`."));
  CHECK(contains(text, "| c004 | `flashinfer` | `fp8_e4m3` | **layout** |"));
  CHECK(contains(text, "| c006 | `triton` | `fp8_e4m3` | guard | note 1 |"));
  CHECK(contains(text, "- note 1: assert not self.nsa_kv_cache_store_fp8"));
}

TEST_CASE("a long grid is grouped by outcome, failures first, with every row folded below") {
  Findings findings;
  for (int i = 0; i < 60; ++i) {
    const bool bad = i % 4 == 3;
    ConfigurationResult row = sample_row(fmt::format("c{:03}", i), i % 2 == 0 ? "nsa" : "flashinfer",
                                         i % 4 < 2 ? "bf16" : "fp8_e4m3", bad ? "layout" : "pass");
    row.axes["batch"] = fmt::format("{}", i / 4);
    findings.configurations.push_back(row);
  }
  const std::string text = findings_markdown(findings);
  const size_t failing = position(text, "| **layout** | 15 | `flashinfer` | any | `fp8_e4m3` |");
  CHECK(position(text, "| pass | 45 | any | any | any |") > failing);
  CHECK(contains(text, "<details><summary>All 60 rows, one a line</summary>"));
  CHECK(contains(text, "| c059 |"));
  findings.configurations.resize(8);
  CHECK_FALSE(contains(findings_markdown(findings), "<details>"));
}

TEST_CASE("planted runs have sections of their own that say so") {
  const std::string text = findings_markdown(sample_planted());
  const size_t section = position(text, "## Planted: `late_tile`");
  CHECK(contains(text, "**This fault was planted on purpose**"));
  CHECK(position(text, "planted-explanation") > section);
  // Only what the plant changed is listed.
  CHECK(contains(text, "| c001+late_tile | `nsa` | `bf16` | **mismatch** |"));
  CHECK_FALSE(contains(text, "| c004+late_tile |"));
  CHECK(contains(text, "The other 5 rows of this pass came out as they do without the plant."));
  CHECK_FALSE(contains(text, "belong to no signature"));
  const std::string grid = text.substr(0, position(text, "## What broke"));
  CHECK_FALSE(contains(grid, "c001+late_tile"));
  CHECK_FALSE(contains(findings_markdown(sample_findings()), "Planted"));
}

TEST_CASE("no value of the findings can become markup or leave its cell") {
  Findings findings = sample_findings();
  const std::string hostile = "x|y`z\n# head <script>alert(1)</script> [a](b) **bold**";
  findings.experiment = hostile;
  findings.configurations[5].reason = hostile;
  findings.configurations[5].notes = {hostile};
  findings.configurations[5].axes["kv_cache_dtype"] = hostile;
  findings.localized[0].explanation = "- " + hostile;
  findings.next_experiments = {"1. " + hostile, "# heading", "> quote", "```\nfence"};
  findings.environment["model"] = hostile;
  findings.workarounds[0].launch_command = "a\n```\nb <i>";
  const std::string text = findings_markdown(findings);
  CHECK_FALSE(contains(text, "\n# head"));
  size_t table_columns = 0;
  bool code = false;
  for (const std::string& line : lines_of(text)) {
    if (line.rfind("```", 0) == 0) {
      code = !code && line.size() >= 3;
      continue;
    }
    if (code) continue;
    CHECK(line.rfind("# heading", 0) != 0);
    CHECK(line.rfind("> quote", 0) != 0);
    // HTML only inside code spans.
    const std::string outside = without_code(line);
    CHECK_FALSE(contains(outside, "<script"));
    // Every row of a table has as many cells as its header.
    size_t bars = 0;
    for (size_t i = 0; i < line.size(); ++i) bars += line[i] == '|' && (i == 0 || line[i - 1] != '\\');
    if (line.empty() || line[0] != '|') {
      table_columns = 0;
    } else if (table_columns == 0) {
      table_columns = bars;
    } else {
      CHECK(bars == table_columns);
    }
  }
  CHECK(contains(text, "````"));  // a fence longer than the one inside
}

TEST_CASE("failures that belong to no signature are listed all the same") {
  Findings findings = sample_findings();
  findings.localized[0].configurations.clear();
  CHECK(contains(findings_markdown(findings), "Failures that belong to no signature above:"));
  CHECK_FALSE(contains(findings_markdown(sample_findings()), "belong to no signature"));
}

TEST_CASE("empty findings still make a readable report") {
  const std::string text = findings_markdown({});
  CHECK(contains(text, "There are no configurations."));
  CHECK(contains(text, "none, since nothing fails"));
  CHECK(text.back() == '\n');
}

TEST_CASE("the report says of each row what it asked for, what that resolves to, and the command") {
  Findings findings = sample_findings();
  ConfigurationResult& row = findings.configurations.front();
  row.axes["cuda_graph"] = "on";
  row.axes["nsa_decode_backend"] = "trtllm";
  row.axes["attention_backend"] = "auto";
  row.resolved = {{"cuda_graph", "on"}, {"nsa_decode_backend", "-"}, {"attention_backend", "flashinfer"}};
  row.launch_command = "python3 -m sglang.launch_server --nsa-decode-backend trtllm";
  const std::string text = findings_markdown(findings);
  CHECK(text.find("Requested → resolved") != std::string::npos);
  CHECK(text.find("`attention_backend` `auto` → `flashinfer`") != std::string::npos);
  CHECK(text.find("`nsa_decode_backend` `trtllm` has no effect") != std::string::npos);
  CHECK(text.find("```\n" + row.launch_command + "\n```") != std::string::npos);
  row.launch_command.clear();
  CHECK(findings_markdown(findings).find("Requested → resolved") == std::string::npos);
}

TEST_CASE("notes are said once, below the table, and rows refer to theirs by number") {
  Findings findings = sample_findings();
  for (ConfigurationResult& row : findings.configurations) row.notes.push_back("common to all");
  findings.configurations.front().notes.push_back("of this one alone");
  const std::string text = findings_markdown(findings);
  const auto count = [&](const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  CHECK(count("common to all") == 1);
  CHECK(count("Of every row: common to all") == 1);
  CHECK(count("of this one alone") == 1);
  CHECK(count("- note 1: of this one alone") == 1);
  CHECK(count("note 1 |") == 1);
}

TEST_CASE("a flaky row tells in how many runs it failed, and its conviction what that rests on") {
  Findings findings = sample_findings();
  findings.configurations[3].verdict = "flaky";
  findings.configurations[3].repeats = 9;
  findings.configurations[3].failures = 4;
  Localized& localized = findings.localized.front();
  localized.unchanged = {21, 7};
  localized.changed = {16, 0};
  localized.level = kConfidenceLevel;
  const std::string text = findings_markdown(findings);
  CHECK(contains(text, "flaky (4 of 9 fail)"));
  CHECK(contains(text, "7 of 21 runs fail, a rate between 17 % and 54 %"));
  CHECK(contains(text, "with what is convicted taken out of it, 0 of 16"));
  CHECK(contains(text, "in at most 5.0 % of cases"));
  CHECK_FALSE(contains(findings_markdown(sample_findings()), "runs fail"));
  CHECK(contains(findings_markdown(sample_findings()), "taking it to fail each time"));
}

TEST_CASE("where only planted faults fail, their proof comes first") {
  Findings findings = sample_planted();
  for (ConfigurationResult& row : findings.configurations)
    if (row.plant.empty() && row.verdict == "layout") row.verdict = "pass";
  std::erase_if(findings.localized, [](const Localized& one) { return one.plant.empty(); });
  const std::string text = findings_markdown(findings);
  CHECK(position(text, "## Planted: `late_tile`") < position(text, "## What to do now"));
  CHECK_FALSE(contains(text, "## What broke, and the proof"));
}
