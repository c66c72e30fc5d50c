#include "grid/neighbourhood.h"

#include <set>

#include "grid/axes.h"
#include "testing.h"

namespace faultline {
namespace {

ShapeInfo server() {
  ShapeInfo shape;
  shape.any_build = true;
  shape.target_only = true;
  return shape;
}

const AxisValues kIncident = {{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "fp8_e4m3"}};

std::vector<Neighbour> around(const AxisValues& line, size_t rows, std::string_view arch = "any",
                              std::string_view profile = "sglang-0.5.9") {
  return neighbourhood(line, *find_profile(profile), *find_target(arch), server(), rows);
}

}  // namespace

TEST_CASE("a neighbourhood begins with the line, then one change, then two, each row once") {
  const std::vector<Neighbour> rows = around(kIncident, 500);
  REQUIRE(rows.size() > 50);
  CHECK(rows[0].changes.empty());
  CHECK(rows[0].axes.at("attention_backend") == "flashinfer");
  std::set<AxisValues> seen;
  for (size_t i = 0; i < rows.size(); ++i) {
    INFO(i << " " << changes_text(rows[i].changes));
    CHECK(seen.insert(rows[i].axes).second);
    CHECK(rows[i].axes.size() == rows[0].axes.size());
    CHECK(rows[i].changes.size() <= 2);
    if (i > 0) CHECK(rows[i].changes.size() >= rows[i - 1].changes.size());
    if (i > 0) CHECK_FALSE(rows[i].changes.empty());
    for (const auto& [axis, value] : rows[i].changes) {
      CHECK(rows[i].axes.at(axis) == value);
      CHECK(rows[0].axes.at(axis) != value);
    }
  }
}

TEST_CASE("changes that have an effect come before inert ones, rows that run before conflicts and refusals") {
  const std::vector<Neighbour> rows = around(kIncident, 500);
  bool inert_seen = false;
  bool refused_seen = false;
  for (const Neighbour& row : rows) {
    if (row.changes.size() != 1) continue;
    INFO(changes_text(row.changes));
    CHECK((row.inert || !inert_seen));
    inert_seen = inert_seen || row.inert;
    if (row.inert) continue;
    const bool runs = row.configuration.status == TargetStatus::kRuns && row.configuration.has_kernels;
    CHECK((!runs || !refused_seen));
    refused_seen = refused_seen || row.configuration.status == TargetStatus::kGuard;
  }
  CHECK(inert_seen);
  CHECK(refused_seen);
}

TEST_CASE("the first changes are of the settings that separate the suspects") {
  const std::vector<Neighbour> rows = around(kIncident, 6);
  std::set<std::string> axes;
  for (const Neighbour& row : rows)
    for (const auto& [axis, value] : row.changes) axes.insert(axis);
  CHECK(axes.count("kv_cache_dtype") == 1);
  CHECK(axes.size() >= 3);
}

TEST_CASE("values are those of the profile's version, and the bound holds") {
  CHECK(around(kIncident, 1).size() == 1);
  CHECK(around(kIncident, 0).size() == 1);
  CHECK(around(kIncident, 7).size() == 7);
  const auto has = [](const std::vector<Neighbour>& rows, const std::string& value) {
    for (const Neighbour& row : rows)
      for (const auto& [axis, changed] : row.changes)
        if (changed == value) return true;
    return false;
  };
  CHECK_FALSE(has(around(kIncident, 500), "flashinfer_sparse_mla"));
  CHECK(has(around({}, 500, "sm_120", "sglang-2026-08"), "flashmla_sparse_q8"));
}

TEST_CASE("an inert setting of the line is not varied for its own sake until all else was") {
  const std::vector<Neighbour> rows = around(kIncident, 500);
  size_t decode = rows.size();
  size_t cache = rows.size();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].changes == AxisValues{{"nsa_decode_backend", "flashmla_sparse"}}) decode = i;
    if (rows[i].changes == AxisValues{{"kv_cache_dtype", "bf16"}}) cache = i;
  }
  REQUIRE(decode < rows.size());
  REQUIRE(cache < rows.size());
  CHECK(rows[decode].inert);
  CHECK(cache < decode);
}

}  // namespace faultline
