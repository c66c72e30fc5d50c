// --residency, --host-memory, --gpu-memory and `inspect --plan`: weights made on use change what a run costs, and
// nothing that it finds.
#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

using nlohmann::json;

// Experts and projections larger than what is always in memory.
constexpr const char* kModel =
    "synth:tiny?hidden_size=512&moe_intermediate_size=512&intermediate_size=512&vocab_size=2000&num_hidden_layers=3";

std::string grid() {
  return std::string("name: on-use\nmodel: ") + kModel +
         "\naxes:\n"
         "  attention_backend: [nsa]\n"
         "  nsa_decode_backend: [flashmla_kv]\n"
         "  kv_cache_dtype: [fp8_e4m3]\n"
         "  cuda_graph: [off]\n" +
         kQuickProbes;
}

}  // namespace

TEST_CASE("a plan is told before anything is loaded, in words and as JSON") {
  const Outcome plan = faultline({"inspect", "synth:glm-5", "--plan", "--gpu-memory", "139GiB"});
  CHECK(plan.code == 0);
  CHECK(plan.out.find("routed experts, layers 3 to 20") != std::string::npos);
  CHECK(plan.out.find("made on the GPU after routing") != std::string::npos);
  const Outcome numbers =
      faultline({"inspect", "synth:glm-5", "--plan", "--gpu-memory", "93GiB", "--tp", "8", "--json", "-"});
  REQUIRE(numbers.code == 0);
  const json root = json::parse(numbers.out);
  CHECK(root["ranks"] == 8);
  CHECK(root["per_use_bytes"] == 0);
  CHECK(root["gpu_bytes"].get<double>() > 50e9);
}

TEST_CASE("a plan that nothing can hold says what is missing; a mistyped option is no plan") {
  const Outcome small = faultline({"inspect", "synth:glm-5", "--plan", "--gpu-memory", "20GiB"});
  CHECK(small.code == 5);
  CHECK(small.err.find("a GPU would need") != std::string::npos);
  CHECK(faultline({"inspect", "synth:tiny", "--plan", "--residency", "strem"}).code == 2);
  const Outcome gpu = faultline({"bisect", "none.yaml", "--residency", "gpu"});
  CHECK(gpu.code == 2);
  CHECK(gpu.err.find("auto, host, stream") != std::string::npos);
  const std::string out = TempDir().file("out.safetensors");
  for (const char* option : {"--gpu-memory", "--host-memory"})
    CHECK(faultline({"forward", "synth:tiny", "--device", "cpu", "--tokens", "1", option, "0", "--out", out}).code ==
          2);
  CHECK(faultline({"forward", "synth:tiny", "--device", "cpu", "--tokens", "1", "--residency", "gpu", "--out", out})
            .code == 5);
  CHECK(faultline({"inspect", "synth:tiny", "--plan", "--gpu-memory", "many"}).code == 2);
  CHECK(faultline({"inspect", "synth:tiny", "--plan", "--gpu-memory", "139GiB", "--tp", "3"}).code == 2);
}

TEST_CASE("forward gives the same file whether weights are there or made on use") {
  const TempDir folder;
  const auto forward = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"forward", kModel,  "--tokens",        "5,900,17,3", "--decode",
                                          "2",       "--out", folder.file(name), "--device",   "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = faultline(arguments);
    REQUIRE(outcome.code == 0);
    return read_text(folder.file(name));
  };
  const std::string whole = forward("whole", {"--residency", "host"});
  CHECK_FALSE(whole.empty());
  CHECK((forward("stream", {"--residency", "stream", "--host-memory", "48MiB"}) == whole));
}

TEST_CASE("a fault in the experts is convicted over weights made on use, and its capsule replays") {
  const TempDir folder;
  const Bisection run = bisect(
      folder, grid(),
      {"--device", "cpu", "--residency", "stream", "--host-memory", "96MiB", "--plant", "fp4_zero_block@layer=1"});
  REQUIRE(run.findings["localized"].size() == 1);
  const json& found = run.findings["localized"][0];
  CHECK(found["culprit"] == "kernel");
  CHECK(found["op"].get<std::string>().find("mlp.experts") != std::string::npos);
  CHECK(found["reproduces"] == "yes");
  CHECK(found["necessary"] == "yes");
  CHECK(run.verdicts().front() == "pass");
}

}  // namespace faultline
