// The program on a GPU: the same conclusions as on the CPU, and weights that outlive whatever a run does.
#include <csignal>
#include <set>
#include <thread>

#include "bisect/journal.h"
#include "gpu_testing.h"
#include "program.h"

namespace faultline {
namespace {

using nlohmann::json;

std::string incident() {
  return std::string(
             "name: incident\n"
             "model: synth:tiny\n"
             "profile: sglang-0.5.9\n"
             "axes:\n"
             "  attention_backend: [nsa, flashinfer, triton]\n"
             "  nsa_decode_backend: [flashmla_kv, flashmla_sparse]\n"
             "  kv_cache_dtype: [bf16, fp8_e4m3]\n"
             "  rope_mode: [checkpoint, theta_10000]\n"
             "  cuda_graph: [on]\n") +
         kQuickProbes;
}

// Four rows that pass.
std::string sound_rows(const std::string& model) {
  return "name: sound\nmodel: " + model +
         "\naxes:\n"
         "  attention_backend: [nsa]\n"
         "  nsa_decode_backend: [flashmla_kv]\n"
         "  kv_cache_dtype: [fp8_e4m3]\n"
         "  cuda_graph: [on, off]\n"
         "  sampling_backend: [flashinfer, pytorch]\n" +
         kQuickProbes;
}

// Without what differs from device to device: times, folders, values of floats.
json conclusions(const json& findings) {
  json result;
  for (const json& row : findings.at("configurations")) {
    json one = {{"id", row.at("id")}, {"verdict", row.at("verdict")}, {"status", row.at("target_status")}};
    if (const json& v = row.at("first_violation"); !v.is_null())
      for (const char* key : {"op", "kernel", "provenance", "phase", "step", "layer", "tensor", "kind", "inputs_clean"})
        one[key] = v.at(key);
    result["rows"].push_back(std::move(one));
  }
  for (const json& found : findings.at("localized")) {
    json one;
    for (const char* key : {"culprit", "op", "kernel", "provenance", "layer", "kind", "signature", "reproduces",
                            "necessary", "configurations"})
      one[key] = found.at(key);
    result["localized"].push_back(std::move(one));
  }
  for (const char* key : {"minimal_combinations", "ruled_out", "inert", "exit_code"}) result[key] = findings.at(key);
  return result;
}

uint64_t free_memory() {
  const auto device = make_cuda_device(0);
  REQUIRE(device);
  return (*device)->memory().free;
}

class RuntimeFolder {
 public:
  RuntimeFolder() { ::setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1); }
  ~RuntimeFolder() { faultline({"hold", "--release", "all"}); }
  RuntimeFolder(const RuntimeFolder&) = delete;
  RuntimeFolder& operator=(const RuntimeFolder&) = delete;

 private:
  TempDir folder_;
};

std::vector<json> journal_events(const std::string& run, const std::string& name) {
  std::vector<json> events;
  const auto contents = load_journal(run + "/journal.jsonl");
  REQUIRE(contents);
  for (const json& entry : contents->entries)
    if (entry.value("event", "") == name) events.push_back(entry);
  return events;
}

}  // namespace

TEST_CASE("the incident on a GPU comes to the CPU's conclusions", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const TempDir on_cpu;
  const TempDir on_gpu;
  const Bisection cpu = bisect(on_cpu, incident(), {"--device", "cpu"});
  const Bisection gpu = bisect(on_gpu, incident(), {"--device", "cuda", "--jobs", "4"});
  INFO(gpu.outcome.err);
  REQUIRE(gpu.outcome.code == 1);
  CHECK(gpu.findings.at("environment").at("device").get<std::string>().starts_with("cuda:0 "));
  const json expected = conclusions(cpu.findings);
  const json found = conclusions(gpu.findings);
  for (const auto& [key, value] : expected.items()) {
    INFO(key);
    CHECK(found.at(key) == value);
  }
  CHECK(Running::nothing_left());
}

TEST_CASE("fifty crashing configurations leave held weights as they were, no process and no memory in use", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const RuntimeFolder runtime;
  const uint64_t before = free_memory();
  REQUIRE(faultline({"hold", "synth:slim"}).code == 0);
  const TempDir folder;
  const Bisection run = bisect(folder, sound_rows("synth:slim"),
                               {"--device", "cuda", "--jobs", "4", "--repeats", "13", "--plant", "illegal_access"});
  INFO(run.outcome.err);
  REQUIRE(run.outcome.code == 1);
  int64_t crashes = 0;
  for (const json& row : run.findings.at("configurations")) {
    CHECK(row.at("verdict") == (row.at("plant").is_null() ? "pass" : "illegal-access"));
    if (!row.at("plant").is_null()) crashes += row.at("failures").get<int64_t>();
  }
  CHECK(crashes == 52);
  // Every worker that came after a death has proven the weights.
  const std::vector<json> weights = journal_events(run.directory, "weights");
  const std::vector<json> intact = journal_events(run.directory, "weights_intact");
  REQUIRE(weights.size() == 1);
  CHECK(weights.front().at("held") == true);
  CHECK(intact.size() > 40);
  for (const json& event : intact) CHECK(event.at("checksum") == weights.front().at("checksum"));
  REQUIRE(faultline({"hold", "--release", "all"}).code == 0);
  CHECK(Running::nothing_left());
  const uint64_t after = free_memory();
  CHECK(after >= before);
}

TEST_CASE("a run killed by SIGKILL resumes against held weights without loading, and finds the same", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const RuntimeFolder runtime;
  REQUIRE(faultline({"hold", "synth:tiny"}).code == 0);
  const TempDir whole_folder;
  const Bisection whole = bisect(whole_folder, incident(), {"--device", "cuda", "--jobs", "2"});
  const TempDir folder;
  const std::string parent = folder.file("reports");
  Running driver(FAULTLINE_PROGRAM,
                 {"bisect", folder.write("case.yaml", incident()), "--out", parent, "--device", "cuda", "--jobs", "2"});
  constexpr int kTries = 3000;
  constexpr size_t kEnough = 4;
  for (int i = 0; i < kTries; ++i) {
    const std::string run = run_directory_in(parent);
    const auto contents =
        run.empty() ? Result<JournalContents>(internal_error("none")) : load_journal(run + "/journal.jsonl");
    if (contents && contents->entries.size() > kEnough) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  driver.kill(SIGKILL);
  CHECK(driver.wait().signal == SIGKILL);
  const std::string run = run_directory_in(parent);
  REQUIRE_FALSE(run.empty());
  REQUIRE_FALSE(exists(run + "/findings.json"));
  const Outcome resumed = faultline({"bisect", "--resume", run, "--device", "cuda", "--jobs", "2"});
  INFO(resumed.err);
  CHECK(resumed.code == whole.outcome.code);
  for (const json& event : journal_events(run, "weights")) CHECK(event.at("held") == true);
  CHECK(conclusions(json::parse(read_text(run + "/findings.json"))) == conclusions(whole.findings));
}

TEST_CASE("a capsule written on a GPU replays on the GPU and on the CPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const TempDir folder;
  const Bisection run = bisect(folder, sound_rows("synth:tiny"), {"--device", "cuda", "--plant", "nan_output"});
  INFO(run.outcome.err);
  REQUIRE(run.outcome.code == 1);
  const std::string capsules = run.directory + "/capsules";
  const std::vector<std::string> files = files_in(capsules);
  REQUIRE_FALSE(files.empty());
  for (const std::string device : {"cuda", "cpu"}) {
    INFO(device);
    const Outcome again = faultline({"replay", capsules + "/" + files.front(), "--device", device});
    INFO(again.out << again.err);
    CHECK(again.code == 1);
    CHECK(again.out.find("nonfinite") != std::string::npos);
    CHECK(faultline({"replay", capsules + "/" + files.front(), "--device", device, "--no-plant"}).code == 0);
  }
}

TEST_CASE("a device that cannot be used is refused before anything is made, with what is missing") {
  const TempDir folder;
  const std::string file = folder.write("case.yaml", sound_rows("synth:tiny"));
  for (const std::string device : {"cuda:99", "gpu", "cuda:x", "cuda:"}) {
    INFO(device);
    const Outcome outcome = faultline({"bisect", file, "--out", folder.file("reports"), "--device", device});
    const bool known = device == "cuda:99";
    CHECK(outcome.code == (known ? 5 : 2));
    CHECK_FALSE(outcome.err.empty());
    CHECK_FALSE(exists(folder.file("reports")));
  }
}

}  // namespace faultline
