#include "grid/expand.h"

#include <set>
#include <tuple>

#include "grid/resolve.h"
#include "testing.h"

namespace faultline {
namespace {

using Catch::Matchers::Contains;

Experiment experiment_of(std::string_view text) {
  auto e = parse_experiment(text, "f.yaml");
  REQUIRE(e);
  return *std::move(e);
}

using Pair = std::tuple<std::string, std::string, std::string, std::string>;

std::set<Pair> pairs_of(const std::vector<GridRow>& rows, const std::vector<size_t>& which) {
  std::set<Pair> pairs;
  for (const size_t i : which)
    for (const auto& [a, va] : rows[i].axes)
      for (const auto& [b, vb] : rows[i].axes)
        if (a < b) pairs.emplace(a, va, b, vb);
  return pairs;
}

std::vector<size_t> indices_of(const std::vector<bool>& allowed) {
  std::vector<size_t> result;
  for (size_t i = 0; i < allowed.size(); ++i)
    if (allowed[i]) result.push_back(i);
  return result;
}

constexpr std::string_view kBig = R"(axes:
  attention_backend: [nsa, flashinfer, triton, fa3, trtllm_mla]
  nsa_prefill_backend: [flashmla_sparse, flashmla_kv, flashmla_auto, trtllm]
  nsa_decode_backend: [flashmla_sparse, flashmla_kv, trtllm, fa3, tilelang]
  kv_cache_dtype: [auto, f32, bf16, fp8_e4m3, fp8_e5m2]
  rope_mode: [checkpoint, theta_10000, half_split, indexer_half_split, none]
  cuda_graph: [off, on]
  batch: [1, 3]
)";

}  // namespace

TEST_CASE("listed rows come in their order, and exclusions hold for them too") {
  const auto grid = expand_grid(
      experiment_of("rows:\n  - {tp: 8}\n  - {tp: 4, cuda_graph: off}\n  - {tp: 2}\nexclude:\n  - {tp: 4}\n"));
  REQUIRE(grid);
  REQUIRE(grid->rows.size() == 2);
  REQUIRE(grid->excluded.size() == 1);
  CHECK(grid->rows[0].axes == AxisValues{{"tp", "8"}, {"cuda_graph", "on"}});
  CHECK(grid->rows[1].id == "c003");
}

TEST_CASE("rows are the product in file order, with stable ids") {
  const auto grid = expand_grid(experiment_of("axes:\n  kv_cache_dtype: [bf16, fp8_e4m3]\n  cuda_graph: [off, on]\n"));
  REQUIRE(grid);
  REQUIRE(grid->rows.size() == 4);
  CHECK(grid->excluded.empty());
  CHECK(grid->rows[0].id == "c001");
  CHECK(grid->rows[0].axes == AxisValues{{"kv_cache_dtype", "bf16"}, {"cuda_graph", "off"}});
  CHECK(grid->rows[1].axes.at("cuda_graph") == "on");
  CHECK(grid->rows[2].axes.at("kv_cache_dtype") == "fp8_e4m3");
  CHECK(grid->rows[3].id == "c004");
}

TEST_CASE("exclusions take rows out and renumber nothing") {
  const auto grid = expand_grid(experiment_of(
      "axes:\n  attention_backend: [nsa, triton]\n  cuda_graph: [off, on]\n  batch: [1, 2, 3]\n"
      "exclude:\n  - {attention_backend: triton, cuda_graph: on}\n  - {batch: [2, 3], cuda_graph: off}\n"));
  REQUIRE(grid);
  CHECK(grid->rows.size() == 5);
  CHECK(grid->excluded.size() == 7);
  for (const GridRow& row : grid->rows) {
    CHECK_FALSE((row.axes.at("attention_backend") == "triton" && row.axes.at("cuda_graph") == "on"));
    CHECK_FALSE((row.axes.at("batch") != "1" && row.axes.at("cuda_graph") == "off"));
  }
  CHECK(grid->rows[0].id == "c001");
  CHECK(grid->rows[1].id == "c004");
  const auto none = expand_grid(experiment_of("axes: {cuda_graph: [off, on]}\nexclude: [{cuda_graph: [off, on]}]\n"));
  CHECK_THAT(none.error().message, Contains("excludes all of its 2 configurations"));
}

TEST_CASE("too large a grid is refused before it is built") {
  std::string text = "axes:\n";
  for (const char* axis : {"batch", "chunked_prefill_size", "page_size", "tp"}) {
    text += fmt::format("  {}: [", axis);
    for (int i = 1; i <= 60; ++i) text += fmt::format("{}{}", i > 1 ? ", " : "", i);
    text += "]\n";
  }
  const auto grid = expand_grid(experiment_of(text));
  REQUIRE_FALSE(grid);
  CHECK(grid.error().kind == ErrorKind::kBadInput);
  CHECK_THAT(grid.error().message, Contains("more than 100000 configurations"));
}

TEST_CASE("pairs: the selection meets every allowed pair, with few rows, and never a row that is not allowed") {
  const auto grid = expand_grid(experiment_of(kBig));
  REQUIRE(grid);
  std::vector<bool> allowed;
  for (const GridRow& row : grid->rows)
    allowed.push_back(can_run(resolve(row.axes, *find_profile("sglang-0.5.9"), *find_target("any"), {}), false));
  const std::vector<size_t> all = indices_of(allowed);
  REQUIRE(all.size() > 100);
  REQUIRE(all.size() < grid->rows.size());
  const std::vector<size_t> chosen = covering_rows(grid->rows, allowed);
  for (const size_t i : chosen) CHECK(allowed[i]);
  CHECK(pairs_of(grid->rows, chosen) == pairs_of(grid->rows, all));
  CHECK(chosen.size() < 60);
  CHECK(chosen == covering_rows(grid->rows, allowed));
  // Every row is needed: without any one of them some pair is missing, or it was chosen for nothing.
  const auto without_last = std::vector<size_t>(chosen.begin(), chosen.end() - 1);
  CHECK(pairs_of(grid->rows, without_last).size() < pairs_of(grid->rows, chosen).size());
}

TEST_CASE("pairs of small grids: one axis, one row, nothing allowed") {
  const auto one = expand_grid(experiment_of("axes: {batch: [1, 2, 3]}\n"));
  CHECK(covering_rows(one->rows, {true, true, true}) == std::vector<size_t>{0, 1, 2});
  CHECK(covering_rows(one->rows, {false, true, false}) == std::vector<size_t>{1});
  CHECK(covering_rows(one->rows, {false, false, false}).empty());
  CHECK(covering_rows({}, {}).empty());
  const auto two = expand_grid(experiment_of("axes: {batch: [1, 2], cuda_graph: [off, on]}\n"));
  CHECK(covering_rows(two->rows, {true, true, true, true}).size() == 4);
}

TEST_CASE("ten thousand rows resolve, each with an answer") {
  const auto grid = expand_grid(experiment_of(kBig));
  REQUIRE(grid);
  CHECK(grid->rows.size() == 10000);
  size_t counts[4] = {};
  for (const GridRow& row : grid->rows)
    ++counts[static_cast<size_t>(resolve(row.axes, *find_profile("sglang-0.5.9"), *find_target("any"), {}).status)];
  for (const TargetStatus status : {TargetStatus::kRuns, TargetStatus::kLayout, TargetStatus::kGuard})
    CHECK(counts[static_cast<size_t>(status)] > 0);
  CHECK(counts[0] + counts[1] + counts[2] + counts[3] == grid->rows.size());
}

TEST_CASE("the experiments in this repository are valid and show what they say") {
  const std::string folder = std::string(FAULTLINE_SOURCE_DIR) + "/experiments/";
  const auto quickstart = load_experiment(folder + "quickstart.yaml");
  INFO((quickstart ? "" : quickstart.error().message));
  REQUIRE(quickstart);
  CHECK(quickstart->plant.empty());
  CHECK(quickstart->checks == "reference");
  const std::vector<GridRow> rows = expand_grid(*quickstart).value().rows;
  CHECK(rows.size() >= 48);
  size_t counts[4] = {};
  for (const GridRow& row : rows)
    ++counts[static_cast<size_t>(
        resolve(row.axes, *find_profile(quickstart->profile), *find_target(quickstart->arch), {}).status)];
  CHECK(counts[static_cast<size_t>(TargetStatus::kRuns)] > 0);
  CHECK(counts[static_cast<size_t>(TargetStatus::kLayout)] > 0);
  CHECK(counts[static_cast<size_t>(TargetStatus::kGuard)] > 0);
  CHECK(counts[static_cast<size_t>(TargetStatus::kUnsupported)] == 0);

  const auto incident = load_experiment(folder + "incident.yaml");
  INFO((incident ? "" : incident.error().message));
  REQUIRE(incident);
  CHECK(incident->plant.size() == 11);
  const auto incident_grid = expand_grid(*incident);
  REQUIRE(incident_grid);
  for (const GridRow& row : incident_grid->rows) {
    const auto c = resolve(row.axes, *find_profile(incident->profile), *find_target(incident->arch), {});
    const bool fp8 = row.axes.at("kv_cache_dtype") == "fp8_e4m3";
    const std::string& backend = row.axes.at("attention_backend");
    const bool sparse_decode = row.axes.at("nsa_decode_backend") == "flashmla_sparse";
    TargetStatus expected = TargetStatus::kRuns;
    if (fp8 && backend == "flashinfer") expected = TargetStatus::kLayout;
    if (fp8 && (backend == "triton" || (backend == "nsa" && sparse_decode))) expected = TargetStatus::kGuard;
    INFO(row.id << " " << c.reason);
    CHECK(c.status == expected);
  }
}

}  // namespace faultline
