// Every planted fault of a GPU as a user meets it: the verdict, the op, and what the core dump says of the kernel.
#include "bisect/core_dump.h"
#include "bisect/cuda_plants.h"
#include "gpu_testing.h"
#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

using nlohmann::json;

std::string experiment(const std::string& plant, const std::string& graph) {
  return "name: fault\nmodel: synth:tiny\nplant: ['" + plant +
         "']\naxes:\n"
         "  attention_backend: [nsa]\n"
         "  nsa_decode_backend: [flashmla_kv]\n"
         "  kv_cache_dtype: [fp8_e4m3]\n"
         "  cuda_graph: [" +
         graph + "]\n" + kQuickProbes;
}

json replay(const std::string& plant, int& code, const std::string& graph = "off",
            std::vector<std::string> arguments = {}, const std::vector<std::string>& environment = {}) {
  const TempDir folder;
  const std::string path = folder.write("experiment.yaml", experiment(plant, graph));
  const std::string id = "c001+" + plant;
  if (arguments.empty()) arguments = {"--timeout", "3"};
  std::vector<std::string> all = {"replay", path, "--id", id, "--device", "cuda", "--quiet", "--json", "-"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const Outcome outcome = faultline(all, environment);
  INFO(outcome.err);
  INFO(outcome.out);
  code = outcome.code;
  const json result = json::parse(outcome.out, nullptr, false);
  REQUIRE_FALSE(result.is_discarded());
  CHECK(Running::nothing_left());
  return result;
}

struct Fault {
  const char* plant;
  const char* verdict;
  const char* op;
  const char* exception;  // in the dump; null: there is none, or the plant leaves no dump
};

constexpr const char* kAttention = "layers.0.self_attn.attention";
constexpr Fault kFaults[] = {
    {"assert", "device-assert", kAttention, "Warp Assert"},
    {"illegal_access", "illegal-access", kAttention, "Warp Illegal Address"},
    {"misaligned_access", "illegal-access", kAttention, "Warp Misaligned Address"},
    {"illegal_instruction", "launch-failure", kAttention, "Warp Illegal Instruction"},
    {"weight_overwrite", "illegal-access", "layers.0.self_attn.o_proj", "Warp Illegal Address"},
    {"hang", "hang", kAttention, nullptr},
};

}  // namespace

TEST_CASE("every hard fault of a GPU has its verdict, its op, its kernel, block and thread", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const bool debugger = !find_tool("cuda-gdb", "CUDA_GDB").empty();
  for (const Fault& fault : kFaults) {
    DYNAMIC_SECTION(fault.plant) {
      int code = 0;
      const json result = replay(fault.plant, code);
      INFO(result.dump(1));
      CHECK(code == 1);
      CHECK(result.at("verdict") == fault.verdict);
      const json& violation = result.at("first_violation");
      CHECK(violation.at("op") == fault.op);
      REQUIRE(violation.at("core").is_object());
      const json& core = violation.at("core");
      CHECK(core.at("exception") == (fault.exception != nullptr ? fault.exception : ""));
      const std::string kernel = core.at("kernel");
      if (debugger || fault.exception != nullptr)
        CHECK(kernel.find("planted_" + std::string(fault.plant)) != std::string::npos);
      if (!debugger) continue;
      // cuda-gdb 13.0 does not find the lines of every program; the disassembler does (docs/hard-faults.md).
      if (core.at("line") == 0) {
        CHECK((find_tool("nvdisasm", "NVDISASM").empty() || find_tool("cuobjdump", "CUOBJDUMP").empty()));
        CHECK(core.at("unread").get<std::string>().find("no source line") != std::string::npos);
      } else {
        CHECK(core.at("source").get<std::string>().ends_with("cuda_plants.cu"));
        CHECK(core.at("unread") == "");
      }
      if (fault.exception == nullptr) continue;
      CHECK(core.at("block") == "(" + std::to_string(plants::kPlantedBlock) + ",0,0)");
      CHECK(core.at("thread") == "(" + std::to_string(plants::kPlantedThread) + ",0,0)");
    }
  }
}

TEST_CASE("a fault inside a graph is found like one outside", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  int code = 0;
  const json result = replay("illegal_access", code, "on");
  INFO(result.dump(1));
  CHECK(code == 1);
  CHECK(result.at("verdict") == "illegal-access");
  CHECK(result.at("first_violation").at("op") == kAttention);
}

TEST_CASE("launches that CUDA refuses, code that is not there and memory that is out have their verdicts", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  int code = 0;
  for (const char* plant : {"shared_memory_limit", "grid_limit"}) {
    const json refused = replay(plant, code);
    CHECK(refused.at("verdict") == "launch-failure");
    CHECK(refused.at("first_violation").at("op") == kAttention);
    CHECK(code == 1);
  }
  const json no_code = replay("no_code", code);
  CHECK(no_code.at("verdict") == "unsupported");
  CHECK(no_code.at("reason").get<std::string>().find("no kernel image") != std::string::npos);
  CHECK(code == 125);
  const json memory = replay("out_of_memory", code);
  CHECK(memory.at("verdict") == "oom");
  CHECK(code == 1);
}

TEST_CASE("without cuda-gdb the verdict and the kernel are known, and what is not is said", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  int code = 0;
  const json result = replay("illegal_access", code, "off", {}, {"CUDA_GDB=/nonexistent/cuda-gdb"});
  INFO(result.dump(1));
  CHECK(result.at("verdict") == "illegal-access");
  const json& core = result.at("first_violation").at("core");
  CHECK(core.at("kernel").get<std::string>().find("planted_illegal_access") != std::string::npos);
  CHECK(core.at("unread").get<std::string>().find("cuda-gdb was not found") != std::string::npos);
}

TEST_CASE("memcheck's first error is part of what a replay finds", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  if (find_tool("compute-sanitizer", "COMPUTE_SANITIZER").empty()) {
    int code = 0;
    const TempDir folder;
    const std::string path = folder.write("experiment.yaml", experiment("illegal_access", "off"));
    code = faultline({"replay", path, "--id", "c001", "--device", "cuda", "--sanitize", "memcheck"}).code;
    CHECK(code == 125);
    return;
  }
  int code = 0;
  const json result = replay("illegal_access", code, "off", {"--sanitize", "memcheck", "--timeout", "60"});
  INFO(result.dump(1));
  CHECK(code == 1);
  CHECK(result.at("verdict") == "illegal-access");
  const json& first = result.at("sanitizer").at("first");
  CHECK(first.at("kernel").get<std::string>().find("planted_illegal_access") != std::string::npos);
  CHECK(first.at("line") > 0);
  CHECK(first.at("thread") == "(" + std::to_string(plants::kPlantedThread) + ",0,0)");
}

}  // namespace faultline
