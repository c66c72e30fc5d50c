// `replay --sanitize` and the faults of a GPU on a machine without one: what is missing is said, with the right exit
// code.
#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

using nlohmann::json;

std::string experiment() {
  return std::string(
             "name: one\nmodel: synth:tiny\naxes:\n"
             "  attention_backend: [nsa]\n"
             "  nsa_decode_backend: [flashmla_kv]\n"
             "  kv_cache_dtype: [fp8_e4m3]\n"
             "  cuda_graph: [off]\n") +
         kQuickProbes;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("replay --sanitize says what it lacks") {
  const TempDir folder;
  const std::string path = folder.write("one.yaml", experiment());
  const auto run = [&](const std::string& tool, const std::string& program) {
    return faultline({"replay", path, "--device", "cpu", "--sanitize", tool}, {"COMPUTE_SANITIZER=" + program});
  };
  const Outcome unknown = run("memchek", "/bin/true");
  CHECK(unknown.code == 2);
  CHECK(contains(unknown.err, "did you mean 'memcheck'"));
  const Outcome absent = run("memcheck", "/nonexistent/compute-sanitizer");
  CHECK(absent.code == 125);
  CHECK(contains(absent.err, "compute-sanitizer was not found"));
  const Outcome on_cpu = run("memcheck", "/bin/true");
  CHECK(on_cpu.code == 125);
  CHECK(contains(on_cpu.err, "--device cuda"));
  const Outcome capsule = faultline({"replay", folder.file("x.safetensors"), "--sanitize", "memcheck"});
  CHECK(capsule.code == 2);
  CHECK(contains(capsule.err, "not for capsules"));
}

TEST_CASE("replay --json gives the verdict as data") {
  const TempDir folder;
  const std::string path = folder.write("one.yaml", experiment());
  const Outcome to_stdout = faultline({"replay", path, "--device", "cpu", "--quiet", "--json", "-"});
  CHECK(to_stdout.code == 0);
  const json result = json::parse(to_stdout.out, nullptr, false);
  REQUIRE(result.is_object());
  CHECK(result.at("verdict") == "pass");
  CHECK(result.at("first_violation").is_null());
  const Outcome to_file = faultline({"replay", path, "--device", "cpu", "--quiet", "--json", folder.file("out.json")});
  CHECK(to_file.code == 0);
  CHECK(contains(to_file.out, "pass"));
  CHECK(json::parse(read_text(folder.file("out.json")), nullptr, false) == result);
}

TEST_CASE("a fault of a GPU is refused on the CPU before anything runs") {
  const TempDir folder;
  const std::string path = folder.write("one.yaml", experiment());
  for (const char* plant : {"illegal_access", "weight_overwrite@layer=1"}) {
    const Outcome run =
        faultline({"bisect", path, "--device", "cpu", "--plant", plant, "--out", folder.file("runs"), "--quiet"});
    CHECK(run.code == 2);
    CHECK(contains(run.err, "it needs --device cuda"));
    CHECK_FALSE(exists(folder.file("runs")));
  }
}

TEST_CASE("a case with a fault of a GPU cannot be replayed on the CPU") {
  const TempDir folder;
  const std::string path = folder.write("one.yaml", experiment() + "plant: [illegal_access]\n");
  const Outcome run = faultline({"replay", path, "--id", "c001+illegal_access", "--device", "cpu", "--quiet"});
  CHECK(run.code == 125);
  CHECK(contains(run.err, "it needs --device cuda"));
}

TEST_CASE("a kernel without code for the device is unsupported, and no failure") {
  const TempDir folder;
  const Bisection run = bisect(folder, experiment(), {"--device", "cpu", "--plant", "no_code"});
  INFO(run.findings.dump(1));
  CHECK(run.outcome.code == 0);
  CHECK(run.row({}, "no_code").at("verdict") == "unsupported");
  CHECK(run.row({}, "no_code").at("failures") == 0);
  CHECK(run.findings.at("localized").empty());
}

TEST_CASE("a launch that is refused is the kernel's failure") {
  const TempDir folder;
  const Bisection run = bisect(folder, experiment(), {"--device", "cpu", "--plant", "grid_limit"});
  INFO(run.findings.dump(1));
  CHECK(run.outcome.code == 1);
  CHECK(run.row({}, "grid_limit").at("verdict") == "launch-failure");
  REQUIRE(run.findings.at("localized").size() == 1);
  CHECK(run.findings.at("localized")[0].at("culprit") == "kernel");
  CHECK(run.findings.at("localized")[0].at("op") == "layers.0.self_attn.attention");
}

}  // namespace faultline
