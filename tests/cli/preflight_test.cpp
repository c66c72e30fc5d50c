#include "cli/preflight.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "grid/shape.h"
#include "testing.h"

namespace faultline {
namespace {

using Catch::Matchers::Contains;

// A folder of its own, gone with the test.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / fmt::format("faultline-preflight-{}", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string at(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

int run(const std::vector<std::string>& arguments) {
  CLI::App app;
  int exit_code = -1;
  add_preflight_command(app, exit_code);
  std::string line = "preflight";
  for (const std::string& argument : arguments) line += " " + argument;
  app.parse(line);
  return exit_code;
}

std::vector<PreflightRow> resolved_rows(const Experiment& experiment) {
  std::vector<PreflightRow> rows;
  const auto grid = expand_grid(experiment);
  REQUIRE(grid);
  for (const GridRow& row : grid->rows)
    rows.push_back({row, resolve(row.axes, *find_profile(experiment.profile), find_target(experiment.arch).value(),
                                 shape_info(nullptr, experiment))});
  return rows;
}

constexpr std::string_view kConflict =
    "axes:\n  attention_backend: [nsa, flashinfer, triton]\n  kv_cache_dtype: [fp8_e4m3]\n  cuda_graph: [off, on]\n";

}  // namespace

TEST_CASE("preflight exits 0 when all can run, 1 when some cannot or conflict, 2 on bad input") {
  const Folder folder;
  const std::string json = folder.at("rows.json");
  REQUIRE(write_file(folder.at("good.yaml"), "model: synth:tiny\naxes: {cuda_graph: [off, on]}\n"));
  REQUIRE(write_file(folder.at("conflict.yaml"), kConflict));
  REQUIRE(write_file(folder.at("bad.yaml"), "axes: {cuda_grap: [off]}\n"));
  REQUIRE(write_file(folder.at("plant.yaml"), "axes: {cuda_graph: [off]}\nplant: [no_such_plant]\n"));
  CHECK(run({folder.at("good.yaml"), "--json", json}) == 0);
  CHECK(run({folder.at("good.yaml"), "--arch", "sm_120", "--json", json}) == 1);
  CHECK(run({folder.at("conflict.yaml"), "--json", json}) == 1);
  CHECK(run({folder.at("bad.yaml"), "--json", json}) == 2);
  CHECK(run({folder.at("plant.yaml")}) == 2);
  CHECK(run({folder.at("missing.yaml")}) == 2);
  CHECK(run({folder.at("good.yaml"), "--model", "synth:no_such_shape"}) == 2);
  CHECK(run({folder.at("good.yaml"), "--model", folder.at("no_model")}) == 2);
  CHECK(run({folder.at("good.yaml"), "--json", folder.at("no/such/folder.json")}) == 2);
  CHECK_THROWS_AS(run({folder.at("good.yaml"), "--arch", "sm_121"}), CLI::ValidationError);
}

TEST_CASE("preflight's JSON has one entry a row with its axes, effects, status and source") {
  const Folder folder;
  const std::string path = folder.at("rows.json");
  REQUIRE(write_file(folder.at("conflict.yaml"), kConflict));
  REQUIRE(run({folder.at("conflict.yaml"), "--profile", "sglang-0.5.9", "--json", path}) == 1);
  const auto root = parse_json(read_file(path).value(), path);
  REQUIRE(root);
  CHECK((*root)["schema"] == 1);
  const auto& rows = (*root)["rows"];
  REQUIRE(rows.size() == 6);
  CHECK(rows[0]["status"] == "runs");
  CHECK(rows[2]["status"] == "layout");
  CHECK(rows[4]["status"] == "guard");
  for (const auto& row : rows) {
    CHECK(row["axes"].size() == 3);
    CHECK(row["resolved"]["kv_format"] == "kv_packed");
    CHECK((row["status"] == "runs") == row["source"].get<std::string>().empty());
    CHECK_THAT(row["command"].get<std::string>(), Contains("--kv-cache-dtype fp8_e4m3"));
  }
}

TEST_CASE("preflight's table shows the axes that vary, each reason once, and the notes") {
  const auto experiment = parse_experiment(kConflict, "f.yaml");
  REQUIRE(experiment);
  const std::string table = preflight_table(*experiment, resolved_rows(*experiment));
  CHECK_THAT(table, Contains("sglang-0.5.9 on any: 6 configurations, 2 runs, 2 layout, 2 guard"));
  CHECK_THAT(table, Contains("attention_backend  cuda_graph"));
  CHECK_THAT(table, !Contains("kv_cache_dtype  "));
  CHECK_THAT(table, Contains("layout [1]") && Contains("guard [2]") && !Contains("[3]"));
  CHECK(table.find("nsa_kv_cache_store_fp8") == table.rfind("nsa_kv_cache_store_fp8"));
  CHECK_THAT(table, Contains("note: attention_backend=flashinfer: dense attention"));
}

TEST_CASE("a named model decides whether dense attention is another model") {
  const auto within = parse_experiment(
      "axes: {attention_backend: flashinfer}\nprobes:\n  prefill: {lengths: [10]}\n"
      "  decode: {contexts: [8], steps: 2}\n",
      "f.yaml");
  REQUIRE(within);
  ModelConfig model;
  model.index_topk = 16;
  CHECK(shape_info(&model, *within).longest_context == 10);
  CHECK(shape_info(&model, *within).model_index_topk == 16);
  CHECK(shape_info(&model, *within).index_topk == 2048);
  CHECK(shape_info(nullptr, *within).model_index_topk == 2048);
  Experiment actual = *within;
  actual.shape_rules = "actual";
  CHECK(shape_info(&model, actual).index_topk == 16);
}

}  // namespace faultline
