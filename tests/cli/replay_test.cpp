// One configuration again, alone: exit codes for `git bisect run`; and a run's reports again, from its journal.
#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

using nlohmann::json;

std::string grid() {
  return std::string(
             "name: pair\n"
             "model: synth:tiny\n"
             "axes:\n"
             "  attention_backend: [flashinfer, triton]\n"
             "  kv_cache_dtype: [bf16, fp8_e4m3]\n"
             "  cuda_graph: [off]\n") +
         kQuickProbes;
}

const Bisection& the_run() {
  static const TempDir folder;
  static const Bisection run = bisect(folder, grid());
  return run;
}

std::string id_of(const std::string& backend, const std::string& cache) {
  return the_run().row({{"attention_backend", backend}, {"kv_cache_dtype", cache}}).at("id");
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("a failing case file replays with exit code 1, and 0 once the axis at fault is flipped") {
  const std::string id = id_of("flashinfer", "fp8_e4m3");
  const std::vector<std::string> cases = files_in(the_run().directory + "/cases");
  CHECK(cases == std::vector<std::string>{id + ".yaml"});  // failing rows only
  const std::string path = the_run().directory + "/cases/" + id + ".yaml";
  const Outcome failing = faultline({"replay", path});
  INFO(failing.err);
  CHECK(failing.code == 1);
  CHECK(failing.out.find("layout") != std::string::npos);
  CHECK(failing.out.find("layers.0.self_attn.attention") != std::string::npos);

  const TempDir folder;
  const std::string text = read_text(path);
  CHECK(faultline({"replay", folder.write("mended.yaml", replaced(text, "fp8_e4m3", "bf16"))}).code == 0);
  const Outcome guard = faultline({"replay", folder.write("guard.yaml", replaced(text, "flashinfer", "triton"))});
  INFO(guard.out);
  CHECK(guard.code == 125);
  CHECK(guard.out.find("guard") != std::string::npos);
}

TEST_CASE("a row of a run replays by its id") {
  const std::string& run = the_run().directory;
  CHECK(faultline({"replay", run, "--id", id_of("flashinfer", "fp8_e4m3")}).code == 1);
  CHECK(faultline({"replay", run, "--id", id_of("flashinfer", "bf16")}).code == 0);
  CHECK(faultline({"replay", run, "--id", id_of("triton", "fp8_e4m3")}).code == 125);
  const Outcome unknown = faultline({"replay", run, "--id", "c999"});
  CHECK(unknown.code == 2);
  CHECK(unknown.err.find("c999") != std::string::npos);
  CHECK(faultline({"replay", run}).code == 2);
  CHECK(faultline({"replay", run + "/cases/none.yaml"}).code == 2);
}

TEST_CASE("a planted row replays with its plant") {
  const TempDir folder;
  const Bisection run = bisect(folder, grid(), {"--plant", "nan_output"});
  const std::string id =
      run.row({{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "bf16"}}, "nan_output").at("id");
  CHECK(id.find("+nan_output") != std::string::npos);
  CHECK(faultline({"replay", run.directory + "/cases/" + id + ".yaml"}).code == 1);
  CHECK(faultline({"replay", run.directory, "--id", id}).code == 1);
  CHECK(faultline({"replay", run.directory, "--id", id.substr(0, id.find('+'))}).code == 0);
}

TEST_CASE("report writes a run's reports again, the same byte for byte, without running anything") {
  const TempDir folder;
  const Bisection run = bisect(folder, grid());
  const std::string journal = read_text(run.directory + "/journal.jsonl");
  const std::vector<std::string> files = files_in(run.directory);
  const std::string findings = read_text(run.directory + "/FINDINGS.md");
  const std::string junit = read_text(run.directory + "/junit.xml");
  folder.write("reports/" + files_in(folder.file("reports")).front() + "/FINDINGS.md", "lost");
  const Outcome outcome = faultline({"report", run.directory});
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(read_text(run.directory + "/FINDINGS.md") == findings);
  CHECK(read_text(run.directory + "/junit.xml") == junit);
  CHECK(json::parse(read_text(run.directory + "/findings.json")).at("localized") == run.findings.at("localized"));
  CHECK(read_text(run.directory + "/journal.jsonl") == journal);
  CHECK(files_in(run.directory) == files);
  CHECK(faultline({"report", folder.path()}).code == 2);
}

}  // namespace faultline
