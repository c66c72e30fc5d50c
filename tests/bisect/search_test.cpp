#include "bisect/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>

#include "testing.h"

using namespace faultline;

namespace {

const std::string kLayout = "layout at self_attn.attention (flashinfer, decode)";
const std::string kCrash = "crash at mlp.router (own, decode)";

struct Axis {
  std::string name;
  std::vector<std::string> values;
};

// The full grid, ids c001…, with what `fill` says of each row.
std::vector<SearchRow> grid(const std::vector<Axis>& axes, const std::function<void(SearchRow&)>& fill,
                            const std::string& plant = "") {
  std::vector<SearchRow> rows;
  size_t total = 1;
  for (const Axis& axis : axes) total *= axis.values.size();
  for (size_t i = 0; i < total; ++i) {
    SearchRow row;
    row.id = fmt::format("c{:03}{}", i + 1, plant.empty() ? "" : "+" + plant);
    row.plant = plant;
    size_t rest = i;
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      row.axes[axis->name] = axis->values[rest % axis->values.size()];
      rest /= axis->values.size();
    }
    row.verdict = "pass";
    fill(row);
    rows.push_back(row);
  }
  return rows;
}

void fail(SearchRow& row, const std::string& signature) {
  row.status = RowStatus::kFails;
  row.signature = signature;
  row.verdict = signature.substr(0, signature.find(' '));
}

void untestable(SearchRow& row, const std::string& verdict, const std::string& reason = "because") {
  row.status = RowStatus::kUntestable;
  row.verdict = verdict;
  row.reason = reason;
}

const std::vector<Axis> kIncidentAxes = {{"attention_backend", {"nsa", "flashinfer", "triton"}},
                                         {"nsa_decode_backend", {"flashmla_kv", "flashmla_sparse"}},
                                         {"kv_cache_dtype", {"bf16", "fp8_e4m3"}},
                                         {"rope_mode", {"checkpoint", "theta_10000"}}};

// The incident's grid; `nsa_runs` is false for a target without the NSA kernels.
std::vector<SearchRow> incident(bool nsa_runs, const std::string& plant = "") {
  return grid(
      kIncidentAxes,
      [&](SearchRow& row) {
        const std::string& backend = row.axes["attention_backend"];
        const bool nsa = backend == "nsa";
        const bool fp8 = row.axes["kv_cache_dtype"] == "fp8_e4m3";
        row.resolved = {{"attention_backend", backend},
                        {"kv_cache_dtype", row.axes["kv_cache_dtype"]},
                        {"rope_mode", row.axes["rope_mode"]},
                        {"nsa_decode_backend", nsa ? row.axes["nsa_decode_backend"] : "-"}};
        if (nsa && !nsa_runs) {
          untestable(row, "unsupported", "no NSA kernel for sm_120");
        } else if (nsa && fp8 && row.axes["nsa_decode_backend"] == "flashmla_sparse") {
          untestable(row, "guard", "its kernel takes BF16 only");
        } else if (backend == "triton" && fp8) {
          untestable(row, "guard", "assert not self.nsa_kv_cache_store_fp8");
        } else if (backend == "flashinfer" && fp8) {
          fail(row, kLayout);
        }
      },
      plant);
}

const AxisValues& axes_of(const std::vector<SearchRow>& rows, const std::string& id) {
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const SearchRow& candidate) { return candidate.id == id; });
  REQUIRE(row != rows.end());
  return row->axes;
}

std::vector<std::string> differing(const AxisValues& left, const AxisValues& right) {
  std::vector<std::string> axes;
  for (const auto& [axis, value] : left) {
    if (right.at(axis) != value) axes.push_back(axis);
  }
  return axes;
}

// Every combination found, as a set of axis values.
std::set<AxisValues> combinations(const SearchResult& result) {
  std::set<AxisValues> set;
  for (const auto& combination : result.minimal_combinations) set.insert(combination.axes);
  return set;
}

bool mentions(const std::vector<std::string>& sentences, const std::string& text) {
  return std::any_of(sentences.begin(), sentences.end(),
                     [&](const std::string& sentence) { return sentence.find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("the incident's combination is the backend and the cache format, exactly") {
  const auto rows = incident(true);
  const SearchResult result = search(rows);
  REQUIRE(result.minimal_combinations.size() == 1);
  const MinimalCombination& minimal = result.minimal_combinations[0];
  CHECK(minimal.axes == AxisValues{{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "fp8_e4m3"}});
  CHECK(minimal.untested.empty());
  CHECK(minimal.signature == kLayout);
  CHECK(minimal.plant.empty());
}

TEST_CASE("where no NSA kernel exists the backend stays in the combination, untested") {
  const SearchResult result = search(incident(false));
  REQUIRE(result.minimal_combinations.size() == 1);
  CHECK(result.minimal_combinations[0].axes ==
        AxisValues{{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "fp8_e4m3"}});
  CHECK(result.minimal_combinations[0].untested == std::vector<std::string>{"attention_backend"});
  CHECK(mentions(result.next_experiments, "Whether attention_backend matters"));
  CHECK_FALSE(mentions(search(incident(true)).next_experiments, "Whether attention_backend matters"));
}

TEST_CASE("RoPE is ruled out by named pairs that differ in it alone and both fail") {
  const auto rows = incident(true);
  const SearchResult result = search(rows);
  std::set<std::string> axes;
  for (const RuledOut& ruled_out : result.ruled_out) {
    axes.insert(ruled_out.axis);
    CHECK(ruled_out.condition == AxisValues{{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "fp8_e4m3"}});
    CHECK(ruled_out.signature == kLayout);
    REQUIRE_FALSE(ruled_out.pairs.empty());
    for (const auto& [left, right] : ruled_out.pairs) {
      CHECK(differing(axes_of(rows, left), axes_of(rows, right)) == std::vector<std::string>{ruled_out.axis});
    }
  }
  CHECK(axes == std::set<std::string>{"rope_mode", "nsa_decode_backend"});
}

TEST_CASE("the NSA decode backend is inert under the backends that run no NSA kernel, and only there") {
  const auto rows = incident(true);
  const SearchResult result = search(rows);
  std::set<AxisValues> conditions;
  for (const Inert& inert : result.inert) {
    CHECK(inert.axis == "nsa_decode_backend");
    conditions.insert(inert.condition);
    REQUIRE_FALSE(inert.pairs.empty());
    for (const auto& [left, right] : inert.pairs) {
      CHECK(differing(axes_of(rows, left), axes_of(rows, right)) == std::vector<std::string>{"nsa_decode_backend"});
    }
    CHECK(inert.because.find("no effect") != std::string::npos);
    CHECK(inert.because.find(inert.pairs[0].first) != std::string::npos);
  }
  CHECK(conditions == std::set<AxisValues>{{{"attention_backend", "flashinfer"}}, {{"attention_backend", "triton"}}});
}

TEST_CASE("an axis without a resolved value is never called inert") {
  auto rows = incident(true);
  for (SearchRow& row : rows) row.resolved.erase("nsa_decode_backend");
  CHECK(search(rows).inert.empty());
}

TEST_CASE("rows that resolve alike and behave differently are not inert") {
  auto rows = incident(true);
  for (SearchRow& row : rows) {
    if (row.axes["attention_backend"] == "triton" && row.axes["kv_cache_dtype"] == "bf16" &&
        row.axes["nsa_decode_backend"] == "flashmla_kv") {
      fail(row, kCrash);
    }
  }
  for (const Inert& inert : search(rows).inert) {
    CHECK(inert.condition != AxisValues{{"attention_backend", "triton"}});
  }
}

TEST_CASE("an axis that never has an effect is inert without a condition") {
  const auto rows = grid({{"a", {"0", "1"}}, {"b", {"0", "1"}}}, [](SearchRow& row) {
    row.resolved = {{"a", row.axes["a"]}, {"b", "-"}};
  });
  const SearchResult result = search(rows);
  REQUIRE(result.inert.size() == 1);
  CHECK(result.inert[0].axis == "b");
  CHECK(result.inert[0].condition.empty());
}

TEST_CASE("inertness may need two settings") {
  const auto rows = grid({{"a", {"0", "1"}}, {"b", {"0", "1"}}, {"c", {"0", "1"}}}, [](SearchRow& row) {
    const bool effect = !(row.axes["a"] == "1" && row.axes["b"] == "1");
    row.resolved = {{"a", row.axes["a"]}, {"b", row.axes["b"]}, {"c", effect ? row.axes["c"] : "-"}};
  });
  const SearchResult result = search(rows);
  REQUIRE(result.inert.size() == 1);
  CHECK(result.inert[0].axis == "c");
  CHECK(result.inert[0].condition == AxisValues{{"a", "1"}, {"b", "1"}});
}

TEST_CASE("an axis whose other values were skipped leaves the combination where it has no effect") {
  auto rows = incident(true);
  for (SearchRow& row : rows) {
    if (row.axes["nsa_decode_backend"] == "flashmla_sparse" && row.axes["attention_backend"] == "flashinfer") {
      untestable(row, "skipped");
    }
  }
  const SearchResult result = search(rows);
  REQUIRE(result.minimal_combinations.size() == 1);
  CHECK(result.minimal_combinations[0].axes ==
        AxisValues{{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "fp8_e4m3"}});
  CHECK(result.minimal_combinations[0].untested.empty());
}

TEST_CASE("the work-around is the nearest passing row") {
  const auto rows = incident(true);
  const SearchResult result = search(rows);
  REQUIRE_FALSE(result.workarounds.empty());
  std::set<AxisValues> changes;
  for (const Workaround& workaround : result.workarounds) {
    CHECK(workaround.changes.size() == 1);
    changes.insert(workaround.changes);
    for (const auto& [axis, value] : workaround.changes) CHECK(axes_of(rows, workaround.id).at(axis) == value);
    CHECK(differing(axes_of(rows, workaround.id), axes_of(rows, workaround.from)).size() == 1);
  }
  CHECK(changes == std::set<AxisValues>{{{"attention_backend", "nsa"}}, {{"kv_cache_dtype", "bf16"}}});
}

TEST_CASE("a row that cannot run on the target is no work-around") {
  auto rows = incident(true);
  for (SearchRow& row : rows) row.runs_on_target = row.axes["attention_backend"] != "nsa";
  const SearchResult result = search(rows);
  REQUIRE(result.workarounds.size() == 1);
  CHECK(result.workarounds[0].changes == AxisValues{{"kv_cache_dtype", "bf16"}});
  for (SearchRow& row : rows) row.runs_on_target = false;
  CHECK(search(rows).workarounds.empty());
}

TEST_CASE("two values that fail alike give one combination each") {
  const auto rows =
      grid({{"rope_mode", {"checkpoint", "theta_10000", "half_split"}}, {"tp", {"1", "2"}}}, [](SearchRow& row) {
        if (row.axes["rope_mode"] != "checkpoint") fail(row, kLayout);
      });
  const SearchResult result = search(rows);
  CHECK(combinations(result) == std::set<AxisValues>{{{"rope_mode", "half_split"}}, {{"rope_mode", "theta_10000"}}});
  for (const RuledOut& ruled_out : result.ruled_out) CHECK(ruled_out.axis == "tp");
  CHECK(result.ruled_out.size() == 2);
}

TEST_CASE("two causes of one signature come out as two combinations") {
  const std::vector<Axis> axes = {{"a", {"0", "1"}}, {"b", {"0", "1"}}, {"c", {"0", "1"}}, {"d", {"0", "1"}}};
  SECTION("single settings") {
    const auto rows = grid(axes, [](SearchRow& row) {
      if (row.axes["a"] == "1" || row.axes["b"] == "1") fail(row, kLayout);
    });
    CHECK(combinations(search(rows)) == std::set<AxisValues>{{{"a", "1"}}, {{"b", "1"}}});
  }
  SECTION("a pair and a single setting") {
    const auto rows = grid(axes, [](SearchRow& row) {
      if ((row.axes["a"] == "1" && row.axes["b"] == "1") || row.axes["c"] == "1") fail(row, kLayout);
    });
    CHECK(combinations(search(rows)) == std::set<AxisValues>{{{"a", "1"}, {"b", "1"}}, {{"c", "1"}}});
  }
  SECTION("two settings that must differ") {
    const auto rows = grid(axes, [](SearchRow& row) {
      if (row.axes["a"] != row.axes["b"]) fail(row, kLayout);
    });
    CHECK(combinations(search(rows)) == std::set<AxisValues>{{{"a", "0"}, {"b", "1"}}, {{"a", "1"}, {"b", "0"}}});
  }
  SECTION("overlapping causes of which only the overlap and its complement were run") {
    auto rows = grid(axes, [](SearchRow& row) {
      if (row.axes["a"] == "1" || row.axes["b"] == "1") fail(row, kLayout);
    });
    rows.erase(std::remove_if(rows.begin(), rows.end(), [](SearchRow& row) { return row.axes["a"] != row.axes["b"]; }),
               rows.end());
    const SearchResult result = search(rows);
    REQUIRE(result.minimal_combinations.size() == 1);
    CHECK(result.minimal_combinations[0].axes == AxisValues{{"a", "1"}, {"b", "1"}});
    CHECK(result.minimal_combinations[0].untested == std::vector<std::string>{"a", "b"});
  }
}

TEST_CASE("a row that fails earlier with another signature is no evidence of absence") {
  const std::vector<Axis> axes = {{"a", {"0", "1"}}, {"b", {"0", "1"}}};
  // b=1 dies before a=1 could show.
  const auto fill = [](SearchRow& row) {
    if (row.axes["b"] == "1") {
      fail(row, kCrash);
      row.order = 1;
    } else if (row.axes["a"] == "1") {
      fail(row, kLayout);
      row.order = 5;
    }
  };
  auto rows = grid(axes, fill);
  SECTION("masked") {
    const SearchResult result = search(rows);
    REQUIRE(result.minimal_combinations.size() == 2);
    for (const auto& combination : result.minimal_combinations) {
      if (combination.signature == kCrash) {
        CHECK(combination.axes == AxisValues{{"b", "1"}});
        CHECK(combination.untested.empty());
      } else {
        CHECK(combination.axes == AxisValues{{"a", "1"}, {"b", "0"}});
        CHECK(combination.untested == std::vector<std::string>{"b"});
      }
    }
    CHECK(mentions(result.next_experiments, "fail first with another signature"));
  }
  SECTION("seen later in the same run") {
    for (SearchRow& row : rows) {
      if (row.signature == kCrash && row.axes["a"] == "1") row.also = {kLayout};
    }
    const SearchResult result = search(rows);
    CHECK(combinations(result) == std::set<AxisValues>{{{"a", "1"}}, {{"b", "1"}}});
  }
  SECTION("a later failure is evidence that the earlier one is absent") {
    for (SearchRow& row : rows) {
      if (row.signature == kCrash) row.order = 9;
    }
    const SearchResult result = search(rows);
    for (const auto& combination : result.minimal_combinations) {
      if (combination.signature != kLayout) continue;
      CHECK(combination.axes == AxisValues{{"a", "1"}, {"b", "0"}});
      CHECK(combination.untested.empty());
    }
  }
}

TEST_CASE("guards, unsupported and skipped rows rule nothing out and convict nothing") {
  for (const char* verdict : {"guard", "unsupported", "skipped"}) {
    const auto rows = grid({{"a", {"0", "1"}}, {"b", {"0", "1"}}}, [&](SearchRow& row) {
      if (row.axes["a"] == "0") untestable(row, verdict);
      if (row.axes["a"] == "1" && row.axes["b"] == "1") fail(row, kLayout);
    });
    const SearchResult result = search(rows);
    REQUIRE(result.minimal_combinations.size() == 1);
    CHECK(result.minimal_combinations[0].axes == AxisValues{{"a", "1"}, {"b", "1"}});
    CHECK(result.minimal_combinations[0].untested == std::vector<std::string>{"a"});
    CHECK(result.ruled_out.empty());
    CHECK(mentions(result.next_experiments, std::string(verdict) + ": because"));
  }
}

TEST_CASE("a grid in which everything fails has the empty combination, one in which nothing fails has none") {
  const std::vector<Axis> axes = {{"a", {"0", "1"}}, {"b", {"0", "1", "2"}}};
  const SearchResult all = search(grid(axes, [](SearchRow& row) { fail(row, kLayout); }));
  REQUIRE(all.minimal_combinations.size() == 1);
  CHECK(all.minimal_combinations[0].axes.empty());
  CHECK(all.ruled_out.size() == 2);
  CHECK(all.workarounds.empty());
  const SearchResult none = search(grid(axes, [](SearchRow&) {}));
  CHECK(none.minimal_combinations.empty());
  CHECK(none.ruled_out.empty());
  CHECK(none.workarounds.empty());
  CHECK(search({}).minimal_combinations.empty());
}

TEST_CASE("passes below the reference level and single values are named as next experiments") {
  const auto rows = grid({{"a", {"0", "1"}}, {"tp", {"1"}}}, [](SearchRow&) {});
  SearchOptions options;
  options.checks = "full";
  CHECK(mentions(search(rows, options).next_experiments, "finite but wrong"));
  CHECK(mentions(search(rows, options).next_experiments, "tp=1"));
  options.checks = "reference";
  CHECK_FALSE(mentions(search(rows, options).next_experiments, "finite but wrong"));
}

TEST_CASE("a planted failure is searched within its own pass and is never a factor") {
  auto rows = incident(true);
  const auto planted = grid(
      kIncidentAxes,
      [](SearchRow& row) {
        if (row.axes["attention_backend"] == "flashinfer" && row.axes["kv_cache_dtype"] == "fp8_e4m3") {
          fail(row, kLayout);
        } else if (row.axes["attention_backend"] == "nsa") {
          fail(row, kCrash);
        }
      },
      "late_tile");
  rows.insert(rows.end(), planted.begin(), planted.end());
  const SearchResult result = search(rows);
  REQUIRE(result.minimal_combinations.size() == 2);
  CHECK(result.minimal_combinations[0].plant.empty());
  CHECK(result.minimal_combinations[0].signature == kLayout);
  CHECK(result.minimal_combinations[1].plant == "late_tile");
  CHECK(result.minimal_combinations[1].signature == kCrash);
  CHECK(result.minimal_combinations[1].axes.at("attention_backend") == "nsa");
  for (const auto& combination : result.minimal_combinations) CHECK(combination.axes.count("plant") == 0);
  REQUIRE(result.known_under_plant.size() == 1);
  CHECK(result.known_under_plant[0].signature == kLayout);
  CHECK(result.known_under_plant[0].rows.size() == 4);
  for (const Workaround& workaround : result.workarounds) CHECK(workaround.from.find('+') == std::string::npos);
}

TEST_CASE("a known signature at a row that passes unplanted is the plant's") {
  auto rows = incident(true);
  const auto planted = grid(
      kIncidentAxes,
      [](SearchRow& row) {
        if (row.axes["kv_cache_dtype"] == "bf16") fail(row, kLayout);
      },
      "p");
  rows.insert(rows.end(), planted.begin(), planted.end());
  const SearchResult result = search(rows);
  REQUIRE(result.minimal_combinations.size() == 2);
  CHECK(result.minimal_combinations[1].plant == "p");
  CHECK(result.minimal_combinations[1].axes == AxisValues{{"kv_cache_dtype", "bf16"}});
  CHECK(result.known_under_plant.empty());
}

// Property: whatever conjunction is planted in whatever grid, it is recovered.
namespace {

struct Trial {
  std::vector<Axis> axes;
  AxisValues cause;
};

Trial random_trial(std::mt19937& random) {
  Trial trial;
  const size_t count = 3 + random() % 3;
  for (size_t a = 0; a < count; ++a) {
    Axis axis{std::string(1, static_cast<char>('a' + a)), {}};
    const size_t values = 2 + random() % 2;
    for (size_t v = 0; v < values; ++v) axis.values.push_back(fmt::format("{}", v));
    trial.axes.push_back(axis);
  }
  std::vector<size_t> order(count);
  for (size_t a = 0; a < count; ++a) order[a] = a;
  std::shuffle(order.begin(), order.end(), random);
  const size_t factors = 1 + random() % 3;
  for (size_t f = 0; f < factors; ++f) {
    const Axis& axis = trial.axes[order[f]];
    trial.cause[axis.name] = axis.values[random() % axis.values.size()];
  }
  return trial;
}

bool within(const AxisValues& cause, const AxisValues& row) {
  return std::all_of(cause.begin(), cause.end(), [&](const auto& entry) {
    return row.count(entry.first) != 0 && row.at(entry.first) == entry.second;
  });
}

}  // namespace

TEST_CASE("any conjunction of up to three settings is recovered exactly from a full grid") {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const Trial trial = random_trial(random);
    const auto rows = grid(trial.axes, [&](SearchRow& row) {
      if (within(trial.cause, row.axes)) fail(row, kLayout);
    });
    const SearchResult result = search(rows);
    REQUIRE(result.minimal_combinations.size() == 1);
    CHECK(result.minimal_combinations[0].axes == trial.cause);
    CHECK(result.minimal_combinations[0].untested.empty());
    CHECK(result.ruled_out.size() == trial.axes.size() - trial.cause.size());
  }
}

TEST_CASE("untestable rows never make a combination smaller than its cause, and what they add is marked untested") {
  std::mt19937 random(12);
  int settled = 0;
  for (int round = 0; round < 300; ++round) {
    const Trial trial = random_trial(random);
    const size_t holes = 10 + random() % 60;
    std::vector<SearchRow> rows = grid(trial.axes, [&](SearchRow& row) {
      if (random() % 100 < holes) {
        untestable(row, "guard");
      } else if (within(trial.cause, row.axes)) {
        fail(row, kLayout);
      }
    });
    const SearchResult result = search(rows);
    for (const MinimalCombination& minimal : result.minimal_combinations) {
      // A setting that never varies among the rows cannot be part of a combination.
      AxisValues visible;
      for (const auto& setting : trial.cause) {
        if (std::any_of(rows.begin(), rows.end(),
                        [&](const SearchRow& row) { return row.axes.at(setting.first) != setting.second; })) {
          visible.insert(setting);
        }
      }
      CHECK(within(visible, minimal.axes));
      for (const auto& [axis, value] : minimal.axes) {
        if (trial.cause.count(axis) != 0) continue;
        CHECK(std::count(minimal.untested.begin(), minimal.untested.end(), axis) == 1);
      }
      for (const SearchRow& row : rows) {
        if (within(minimal.axes, row.axes)) CHECK(row.status != RowStatus::kPasses);
      }
      settled += minimal.axes == trial.cause && minimal.untested.empty();
    }
    for (const RuledOut& ruled_out : result.ruled_out) CHECK(trial.cause.count(ruled_out.axis) == 0);
  }
  CHECK(settled > 50);
}

TEST_CASE("a second, unrelated signature does not disturb the first") {
  std::mt19937 random(13);
  for (int round = 0; round < 100; ++round) {
    const Trial trial = random_trial(random);
    const auto rows = grid(trial.axes, [&](SearchRow& row) {
      if (row.axes["a"] == "0" && row.axes["b"] == "0") {
        fail(row, kCrash);
      } else if (within(trial.cause, row.axes)) {
        fail(row, kLayout);
      }
    });
    for (const MinimalCombination& minimal : search(rows).minimal_combinations) {
      const AxisValues crash{{"a", "0"}, {"b", "0"}};
      if (minimal.signature == kCrash) {
        // Rows of the other signature are masked, so an axis may stay untested, but none of the cause is lost.
        CHECK(within(crash, minimal.axes));
      } else {
        CHECK(within(trial.cause, minimal.axes));
      }
      for (const auto& [axis, value] : minimal.axes) {
        const AxisValues& cause = minimal.signature == kCrash ? crash : trial.cause;
        if (cause.count(axis) == 0) CHECK(std::count(minimal.untested.begin(), minimal.untested.end(), axis) == 1);
      }
    }
  }
}
