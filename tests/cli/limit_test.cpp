// A fault that no check sees op by op: bisected by how many launches run on their kernels.
#include "program.h"
#include "testing.h"

using namespace faultline;

namespace {

constexpr const char* kRow =
    "name: limit\n"
    "model: synth:tiny\n"
    "axes:\n"
    "  attention_backend: [nsa]\n"
    "  nsa_decode_backend: [flashmla_kv]\n"
    "  kv_cache_dtype: [fp8_e4m3]\n";

}  // namespace

TEST_CASE("a fault of the unchecked build alone is found by kernel limit, at the op that has it") {
  const TempDir folder;
  const Bisection run = bisect(folder, std::string(kRow) + "  cuda_graph: [off]\n" + kQuickProbes,
                               {"--plant", "nan_output@checked=off,op=layers.1.self_attn.o_proj"});
  CHECK(run.outcome.code == 1);
  REQUIRE(run.findings.at("localized").size() == 1);
  const nlohmann::json& found = run.findings.at("localized").at(0);
  CHECK(found.at("culprit") == "kernel");
  CHECK(found.at("op") == "layers.1.self_attn.o_proj");
  CHECK(found.at("necessary") == "yes");
  CHECK(found.at("confidence") == "medium");
}

TEST_CASE("a fault of graph replay that vanishes in the checked build is not pinned on a kernel") {
  const TempDir folder;
  const Bisection run = bisect(folder, std::string(kRow) + "  cuda_graph: [on]\n" + kQuickProbes,
                               {"--plant", "nan_output@checked=off,graph,op=layers.1.self_attn.o_proj"});
  CHECK(run.outcome.code == 4);
  REQUIRE(run.findings.at("localized").size() == 1);
  CHECK(run.findings.at("localized").at(0).at("culprit") == "");
}

TEST_CASE("one plant with two selectors makes rows of two names, and the same plant twice is refused") {
  const TempDir folder;
  const std::string experiment = std::string(kRow) + kQuickProbes;
  const Bisection run = bisect(folder, experiment, {"--plant", "nan_output@layer=0", "--plant", "nan_output@layer=1"});
  const nlohmann::json& rows = run.findings.at("configurations");
  REQUIRE(rows.size() == 3);
  CHECK(rows.at(1).at("id") == "c001+nan_output");
  CHECK(rows.at(2).at("id") == "c001+nan_output.2");
  const TempDir folder_of_both;
  const Bisection both = bisect(folder_of_both, experiment,
                                {"--plant", "nan_output@layer=0+wrong_value", "--plant", "nan_output@layer=0"});
  const nlohmann::json& rows_of_both = both.findings.at("configurations");
  REQUIRE(rows_of_both.size() == 3);
  CHECK(rows_of_both.at(1).at("id") == "c001+nan_output+wrong_value");
  CHECK(rows_of_both.at(2).at("id") == "c001+nan_output");
  std::string many = "nan_output";
  for (int i = 0; i < 30; ++i) many += "+wrong_value";
  const TempDir folder_of_all;
  const Bisection all = bisect(folder_of_all, experiment, {"--plant", many});
  CHECK(all.findings.at("configurations").at(1).at("id") == "c001+nan_output+30");
  const std::string file = folder.write("twice.yaml", experiment);
  const Outcome twice =
      faultline::faultline({"bisect", file, "--out", folder.file("twice"), "--plant", "crash", "--plant", "crash"});
  CHECK(twice.code == 2);
  CHECK(twice.err.find("twice") != std::string::npos);
}
