// What a run leaves behind, as another program and as a reader meet it.
#include <algorithm>

#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

using nlohmann::json;

// Every list of findings.json has something in it: a layout conflict, a setting, inert and ruled-out axes, a guard.
std::string grid() {
  return std::string(
             "name: shown\n"
             "model: synth:tiny\n"
             "axes:\n"
             "  attention_backend: [nsa, flashinfer]\n"
             "  nsa_decode_backend: [flashmla_kv, flashmla_sparse]\n"
             "  kv_cache_dtype: [bf16, fp8_e4m3]\n"
             "  cuda_graph: [off]\n") +
         kQuickProbes;
}

const Bisection& the_run() {
  static const TempDir folder;
  static const Bisection run = bisect(folder, grid(), {"--json", folder.file("copy.json"), "--plant", "nan_output"});
  static const std::string copy = read_text(folder.file("copy.json"));
  CHECK(copy == read_text(run.directory + "/findings.json"));
  return run;
}

enum class Type { kText, kInteger, kNumber, kMap, kTexts, kIntegers, kNullOrText, kNullOrObject, kPairs };

bool has_type(const json& value, Type type) {
  const auto all = [&](bool (*test)(const json&)) { return std::all_of(value.begin(), value.end(), test); };
  const auto text = [](const json& item) { return item.is_string(); };
  switch (type) {
    case Type::kText:
      return value.is_string();
    case Type::kInteger:
      return value.is_number_integer();
    case Type::kNumber:
      return value.is_number();
    case Type::kMap:
      return value.is_object() && all(text);
    case Type::kTexts:
      return value.is_array() && all(text);
    case Type::kIntegers:
      return value.is_array() && all([](const json& item) { return item.is_number_integer(); });
    case Type::kNullOrText:
      return value.is_null() || value.is_string();
    case Type::kNullOrObject:
      return value.is_null() || value.is_object();
    case Type::kPairs:
      return value.is_array() && all([](const json& pair) {
               return pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string();
             });
  }
  return false;
}

using Schema = std::vector<std::pair<const char*, Type>>;

// The contract of findings.json, schema 1.
const Schema kConfiguration = {
    {"id", Type::kText},          {"axes", Type::kMap},           {"resolved", Type::kMap},
    {"plant", Type::kNullOrText}, {"target_status", Type::kText}, {"verdict", Type::kText},
    {"reason", Type::kText},      {"notes", Type::kTexts},        {"repeats", Type::kInteger},
    {"failures", Type::kInteger}, {"seconds", Type::kNumber},     {"first_violation", Type::kNullOrObject}};
const Schema kViolation = {{"op", Type::kText},       {"kernel", Type::kText},    {"provenance", Type::kText},
                           {"build", Type::kText},    {"phase", Type::kText},     {"step", Type::kInteger},
                           {"layer", Type::kInteger}, {"rank", Type::kInteger},   {"tensor", Type::kText},
                           {"kind", Type::kText},     {"index", Type::kIntegers}, {"value", Type::kText},
                           {"bits", Type::kText},     {"count", Type::kInteger},  {"inputs_clean", Type::kText}};
const Schema kLocalized = {{"culprit", Type::kText},    {"op", Type::kText},          {"kernel", Type::kText},
                           {"provenance", Type::kText}, {"layer", Type::kInteger},    {"kind", Type::kText},
                           {"signature", Type::kText},  {"plant", Type::kNullOrText}, {"reproduces", Type::kText},
                           {"necessary", Type::kText},  {"confidence", Type::kText},  {"configurations", Type::kTexts},
                           {"capsule", Type::kText},    {"explanation", Type::kText}};
const Schema kCombination = {
    {"axes", Type::kMap}, {"untested", Type::kTexts}, {"signature", Type::kText}, {"plant", Type::kNullOrText}};
const Schema kRuledOut = {
    {"axis", Type::kText}, {"signature", Type::kText}, {"condition", Type::kMap}, {"pairs", Type::kPairs}};
const Schema kInert = {{"axis", Type::kText}, {"condition", Type::kMap}, {"because", Type::kText}};
const Schema kWorkaround = {{"id", Type::kText}, {"changes", Type::kMap}};

void check_schema(const json& object, const Schema& schema) {
  INFO(object.dump(1));
  REQUIRE(object.is_object());
  for (const auto& [field, type] : schema) {
    INFO(field);
    REQUIRE(object.contains(field));
    CHECK(has_type(object.at(field), type));
  }
}

void check_list(const json& findings, const char* list, const Schema& schema) {
  INFO(list);
  REQUIRE(findings.at(list).is_array());
  CHECK_FALSE(findings.at(list).empty());
  for (const json& item : findings.at(list)) check_schema(item, schema);
}

// Tags are closed in the order in which they were opened, and attributes are quoted. Not a parser: a shape.
bool well_formed(const std::string& xml) {
  std::vector<std::string> open;
  size_t at = 0;
  while ((at = xml.find('<', at)) != std::string::npos) {
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    at = end + 1;
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0 || tag.find('<') != std::string::npos) return false;
    if (tag[0] == '?') continue;
    const std::string name = tag.substr(tag[0] == '/', tag.find_first_of(" /", 1) - (tag[0] == '/'));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  return open.empty();
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("findings.json has every field of schema 1, and --json writes the same file") {
  const json& findings = the_run().findings;
  CHECK(findings.at("schema") == 1);
  CHECK(findings.at("exit_code") == the_run().outcome.code);
  check_list(findings, "configurations", kConfiguration);
  check_list(findings, "localized", kLocalized);
  check_list(findings, "minimal_combinations", kCombination);
  check_list(findings, "ruled_out", kRuledOut);
  check_list(findings, "inert", kInert);
  check_list(findings, "workarounds", kWorkaround);
  int violations = 0;
  for (const json& row : findings.at("configurations")) {
    if (row.at("first_violation").is_null()) continue;
    ++violations;
    check_schema(row.at("first_violation"), kViolation);
    CHECK((row.at("first_violation").at("phase") == "prefill" || row.at("first_violation").at("phase") == "decode"));
  }
  CHECK(violations > 0);
  const json& environment = findings.at("environment");
  for (const char* field :
       {"faultline", "device", "model", "profile", "arch", "checks", "seed", "system", "arguments"}) {
    INFO(field);
    REQUIRE(environment.contains(field));
    CHECK_FALSE(environment.at(field).get<std::string>().empty());
  }
  CHECK(environment.at("arguments").get<std::string>().find(" bisect ") != std::string::npos);
}

TEST_CASE("a run's folder holds what it is said to hold") {
  const std::string& run = the_run().directory;
  for (const char* name :
       {"run.json", "journal.jsonl", "FINDINGS.md", "findings.json", "junit.xml", "cases", "experiment.yaml"}) {
    INFO(name);
    CHECK(exists(run + "/" + name));
  }
  CHECK(run.substr(run.rfind('/') + 1).rfind("shown-", 0) == 0);
  CHECK(json::parse(read_text(run + "/run.json")).at("seed") == "7");
}

TEST_CASE("junit.xml is well-formed and counts what the findings hold") {
  const std::string xml = read_text(the_run().directory + "/junit.xml");
  INFO(xml);
  REQUIRE(xml.rfind("<?xml", 0) == 0);
  CHECK(well_formed(xml));
  const json& rows = the_run().findings.at("configurations");
  CHECK(count_of(xml, "<testcase ") == rows.size());
  size_t failing = 0;
  for (const json& row : rows) failing += row.at("failures") > 0 ? 1 : 0;
  CHECK(count_of(xml, "<failure ") + count_of(xml, "<error ") == failing);
}

TEST_CASE(
    "FINDINGS.md starts with the answer, which the program prints too, and ends with the limits of the evidence") {
  const std::string report = read_text(the_run().directory + "/FINDINGS.md");
  INFO(report.substr(0, 2000));
  const size_t grid_at = report.find("c001");
  size_t last = 0;
  for (const char* label :
       {"Fails", "Smallest combination", "First broken contract", "Does not matter", "Work-around"}) {
    INFO(label);
    const size_t at = report.find(label);
    REQUIRE(at != std::string::npos);
    CHECK(at >= last);
    last = at;
    CHECK(the_run().outcome.out.find(std::string(label) + ": ") != std::string::npos);
  }
  CHECK(report.find("Fails") < 400);
  CHECK(grid_at != std::string::npos);
  CHECK(report.find("faultline replay") != std::string::npos);
  CHECK(the_run().outcome.out.find("FINDINGS.md") != std::string::npos);
}

TEST_CASE("--json - prints JSON and nothing else on stdout; progress goes to stderr in plain lines") {
  const TempDir folder;
  const std::string path = folder.write("case.yaml", grid());
  const Outcome outcome = faultline({"bisect", path, "--out", folder.file("reports"), "--json", "-"});
  const json findings = json::parse(outcome.out, nullptr, false);
  REQUIRE(findings.is_object());
  CHECK(findings.at("configurations").size() == 8);
  // Neither stream is a terminal here: no colours, no rewritten line.
  for (const std::string* text : {&outcome.out, &outcome.err}) {
    CHECK(text->find('\x1b') == std::string::npos);
    CHECK(text->find('\r') == std::string::npos);
  }
  CHECK_FALSE(outcome.err.empty());
  const Outcome quiet = faultline({"bisect", path, "--out", folder.file("reports"), "--json", "-", "--quiet"});
  CHECK(json::parse(quiet.out, nullptr, false).is_object());
}

TEST_CASE("on a terminal the status line rewrites itself; NO_COLOR keeps colours out of it") {
  const TempDir folder;
  const std::string path = folder.write("case.yaml", grid());
  const std::string command = std::string(FAULTLINE_PROGRAM) + " bisect " + path + " --out " + folder.file("reports");
  // script(1) gives a terminal.
  const auto on_terminal = [&](const std::vector<std::string>& environment) {
    return run_program("script", {"-qec", command, "/dev/null"}, environment);
  };
  const Outcome outcome = on_terminal({"TERM=xterm"});
  if (outcome.code == 127) {
    WARN("skipped: there is no script(1) to make a terminal");
    return;
  }
  INFO(outcome.out);
  CHECK(outcome.code == 1);
  CHECK(outcome.out.find("\r") != std::string::npos);
  const Outcome plain = on_terminal({"TERM=xterm", "NO_COLOR=1"});
  CHECK(plain.out.find("\x1b[3") == std::string::npos);
}

TEST_CASE("preflight: 0 when every row can run, 1 when some cannot or conflict, 2 for bad input; it runs nothing") {
  const TempDir folder;
  const std::string clean = folder.write("clean.yaml", "model: synth:tiny\naxes:\n  kv_cache_dtype: [bf16]\n");
  const std::string mixed = folder.write("mixed.yaml", grid());
  CHECK(faultline({"preflight", clean}).code == 0);
  const Outcome outcome = faultline({"preflight", mixed, "--json", "-"});
  CHECK(outcome.code == 1);
  const json preflight = json::parse(outcome.out, nullptr, false);
  REQUIRE(preflight.is_object());
  REQUIRE(preflight.at("rows").size() == 8);
  for (const json& row : preflight.at("rows"))
    check_schema(row, {{"axes", Type::kMap},
                       {"resolved", Type::kMap},
                       {"status", Type::kText},
                       {"reason", Type::kText},
                       {"source", Type::kText}});
  CHECK(faultline({"preflight", folder.file("none.yaml")}).code == 2);
  CHECK(files_in(folder.path()) == std::vector<std::string>{"clean.yaml", "mixed.yaml"});
  // Without a model it speaks of the full GLM-5.
  const Outcome full =
      faultline({"preflight", folder.write("full.yaml", "axes:\n  kv_cache_dtype: [bf16]\n"), "--arch", "sm_120"});
  CHECK(full.code == 1);
  CHECK(full.out.find("unsupported") != std::string::npos);
}

TEST_CASE("the experiments that come with the program are valid and have the rows that their comments promise") {
  for (const auto& [name, rows] : {std::pair{"quickstart", 72}, std::pair{"incident", 24}}) {
    INFO(name);
    const std::string path = std::string(FAULTLINE_SOURCE_DIR) + "/experiments/" + name + ".yaml";
    const Outcome outcome = faultline({"preflight", path, "--json", "-"});
    CHECK(outcome.code == 1);  // guards and a layout conflict are what they show
    const json preflight = json::parse(outcome.out, nullptr, false);
    REQUIRE(preflight.is_object());
    CHECK(preflight.at("rows").size() == static_cast<size_t>(rows));
    CHECK(preflight.dump().find("\"layout\"") != std::string::npos);
    CHECK(preflight.dump().find("\"guard\"") != std::string::npos);
  }
}

TEST_CASE("nothing that could be run: exit code 5") {
  const TempDir folder;
  const Bisection run = bisect(folder, std::string("model: synth:tiny\naxes:\n  attention_backend: [triton]\n"
                                                   "  kv_cache_dtype: [fp8_e4m3]\n") +
                                           kQuickProbes);
  CHECK(run.outcome.code == 5);
  CHECK(run.verdicts() == std::vector<std::string>{"guard"});
}

}  // namespace faultline
