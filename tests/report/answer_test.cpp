#include "report/answer.h"

#include <algorithm>

#include "report/phrases.h"
#include "report/sample.h"
#include "testing.h"

using namespace faultline;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<std::string> five(const Findings& findings) {
  std::vector<std::string> lines = five_line_answer(findings);
  REQUIRE(lines.size() == 5);
  for (const std::string& line : lines) {
    CHECK(line.find('\n') == std::string::npos);
    CHECK(line.size() > line.find(':') + 2);
  }
  return lines;
}

}  // namespace

TEST_CASE("the answer names the failure, the combination, the place, what is irrelevant and the way out") {
  const auto lines = five(sample_findings());
  CHECK(contains(lines[0], "1 of 6 configurations"));
  CHECK(contains(lines[0], "layout at self_attn.attention (flashinfer, decode) in c004"));
  CHECK(contains(lines[0], "1 guard, 4 pass"));
  CHECK(contains(lines[1], "attention_backend=flashinfer with kv_cache_dtype=fp8_e4m3"));
  CHECK(contains(lines[1], "untested: attention_backend"));
  CHECK(contains(lines[2], "layers.0.self_attn.attention, layer 0, decode step 0, rank 0"));
  CHECK(contains(lines[2], "layers.0.self_attn.kv_cache[12, 540] is nan (bits 0x7f)"));
  CHECK(contains(lines[2], "our own kernel that follows FlashInfer MLA"));
  CHECK(contains(lines[2], "culprit: layout"));
  CHECK(contains(lines[3], "rope_mode"));
  CHECK(contains(lines[3], "nsa_decode_backend under attention_backend=flashinfer"));
  CHECK(contains(lines[4], "kv_cache_dtype=bf16 (c003 passes)"));
  CHECK(contains(lines[4], "faultline replay reports/incident-1/cases/c004.yaml"));
}

TEST_CASE("a clean run, an empty one and one that could not run still answer in five lines") {
  Findings clean;
  clean.configurations = {sample_row("c001", "nsa", "bf16", "pass")};
  clean.environment["checks"] = "full";
  CHECK(contains(five(clean)[0], "none of 1 configuration (1 pass)"));
  CHECK(contains(five(clean)[2], "none, under checks: full"));
  CHECK(contains(five({})[0], "nothing was run"));
  Findings guarded;
  guarded.configurations = {sample_row("c001", "triton", "fp8_e4m3", "guard")};
  CHECK(contains(five(guarded)[0], "nothing could be run: 1 guard"));
}

TEST_CASE("failures without a signature are not called localized") {
  Findings findings = sample_findings();
  findings.localized.clear();
  findings.minimal_combinations.clear();
  const auto lines = five(findings);
  CHECK(contains(lines[0], "1 of 6"));
  CHECK(contains(lines[1], "not searched"));
  CHECK(contains(lines[2], "not localized"));
  findings = sample_findings();
  findings.localized[0].culprit.clear();
  CHECK(contains(five(findings)[2], "not localized"));
}

TEST_CASE("planted faults speak in the answer only where nothing else fails, and are called planted") {
  auto lines = five(sample_planted());
  CHECK(contains(lines[0], "planted on purpose"));
  CHECK(contains(lines[0], "1 of 6 configurations"));
  CHECK_FALSE(contains(lines[2], "late_tile"));

  Findings only = sample_planted();
  only.configurations[3].verdict = "pass";
  only.configurations[3].first_violation.reset();
  only.localized.erase(only.localized.begin());
  lines = five(only);
  CHECK(contains(lines[0], "none of 6 configurations"));
  CHECK(contains(lines[2], "with late_tile planted"));
  CHECK_FALSE(contains(lines[4], "passes)"));
}

TEST_CASE("an own kernel is never called by a vendor's name alone, a third party's is") {
  Localized localized = sample_findings().localized[0];
  localized.culprit = "kernel";
  CHECK(contains(plain(culprit_text(localized)), "our own kernel flashinfer that follows FlashInfer MLA"));
  CHECK(contains(plain(culprit_text(localized)), "no vendor's code is convicted"));
  CHECK(contains(plain(kernel_text("flashinfer", "own", "")), "our own kernel"));
  localized.provenance = "third-party";
  CHECK(contains(plain(culprit_text(localized)), "third-party kernel flashinfer"));
  CHECK_FALSE(contains(plain(culprit_text(localized)), "own kernel"));
  CHECK_FALSE(contains(plain(kernel_text("flashinfer", "third-party", "")), "own kernel"));
}

TEST_CASE("ids that count on are written as a range") {
  CHECK(ids_text({"c001", "c002"}) == "c001, c002");
  CHECK(ids_text({"c001", "c002", "c003", "c007"}) == "c001–c003, c007");
  CHECK(ids_text({"c001+p", "c002+p", "c003+p"}) == "c001+p–c003+p");
  CHECK(ids_text({"c001", "c002+p", "c003"}) == "c001, c002+p, c003");
  CHECK(ids_text({"a", "b", "c"}, 2) == "a, b and 1 more");
  CHECK(ids_text({"c001", "c002", "c003", "x", "y"}, 1) == "c001–c003 and 2 more");
  CHECK(ids_text({"c99999999999999999999999", "c1"}) == "c99999999999999999999999, c1");
  CHECK(ids_text({}).empty());
}

TEST_CASE("a replay command without a run directory says RUN, and odd directories are quoted") {
  Findings findings;
  CHECK(replay_command(findings, "c001") == "faultline replay RUN/cases/c001.yaml");
  findings.run_directory = "my runs";
  CHECK(replay_command(findings, "c001") == "faultline replay 'my runs/cases/c001.yaml'");
  // Rows that did not fail have no case file.
  ConfigurationResult row;
  row.id = "c001";
  findings.configurations.push_back(row);
  CHECK(replay_command(findings, "c001") == "faultline replay 'my runs' --id c001");
}

TEST_CASE("a run made from a command line is answered for that line first, in one line of text") {
  Findings findings = sample_findings();
  CHECK(five_line_answer(findings).size() == 5);
  findings.server_args = "--attention-backend flashinfer \\\n --tp `8`";
  findings.server_args_warnings = {"tp=8 is left out"};
  const size_t first_pass = static_cast<size_t>(
      std::find_if(findings.configurations.begin(), findings.configurations.end(),
                   [](const ConfigurationResult& row) { return row.verdict == "pass" && row.plant.empty(); }) -
      findings.configurations.begin());
  REQUIRE(first_pass < findings.configurations.size());
  // The line's row is the first.
  const auto failing = std::find_if(findings.configurations.begin(), findings.configurations.end(),
                                    [](const ConfigurationResult& row) { return row.verdict == "layout"; });
  REQUIRE(failing != findings.configurations.end());
  std::iter_swap(findings.configurations.begin(), failing);
  for (ConfigurationResult& row : findings.configurations) row.launch_command = "start " + row.id;
  const std::vector<std::string> lines = five_line_answer(findings);
  REQUIRE(lines.size() == 6);
  CHECK(contains(lines[0], "The line: --attention-backend flashinfer"));
  CHECK(lines[0].find('\n') == std::string::npos);
  CHECK(contains(lines[0], "(" + findings.configurations.front().id + "): layout at "));
  CHECK(contains(lines[0], "nearest that passes"));
  CHECK(contains(lines[0], "start c00"));
  CHECK(contains(lines[0], "tp=8 is left out"));
  findings.configurations.front().verdict = "pass";
  findings.configurations.front().first_violation.reset();
  CHECK(contains(five_line_answer(findings)[0], "pass here, with this program's own kernels"));
  findings.configurations.clear();
  CHECK(contains(five_line_answer(findings)[0], "was not run"));
}
