#include "bisect/search_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>

#include "testing.h"

namespace faultline {
namespace {

const std::string kFirst = "layout at self_attn.attention (flashinfer, decode)";
const std::string kSecond = "crash at mlp.router (own, decode)";

struct Axis {
  std::string name;
  std::vector<std::string> values;
};

// What one configuration does; a row of a signature fails with it, "" passes, "guard" cannot run.
using Oracle = std::function<std::string(const AxisValues&)>;

std::vector<SearchRow> grid_of(const std::vector<Axis>& axes) {
  std::vector<SearchRow> rows;
  size_t total = 1;
  for (const Axis& axis : axes) total *= axis.values.size();
  for (size_t i = 0; i < total; ++i) {
    SearchRow row;
    row.id = fmt::format("c{:03}", i + 1);
    row.status = RowStatus::kNotRun;
    row.verdict = "not run";
    size_t rest = i;
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      row.axes[axis->name] = axis->values[rest % axis->values.size()];
      rest /= axis->values.size();
    }
    rows.push_back(row);
  }
  return rows;
}

void run(SearchRow& row, const Oracle& oracle) {
  const std::string signature = oracle(row.axes);
  row.status = signature.empty()      ? RowStatus::kPasses
               : signature == "guard" ? RowStatus::kUntestable
                                      : RowStatus::kFails;
  row.verdict = signature.empty() ? "pass" : signature.substr(0, signature.find(' '));
  if (row.status == RowStatus::kFails) row.signature = signature;
}

bool within(const AxisValues& cause, const AxisValues& row) {
  return std::all_of(cause.begin(), cause.end(), [&](const auto& entry) {
    return row.count(entry.first) != 0 && row.at(entry.first) == entry.second;
  });
}

struct Searched {
  std::vector<SearchRow> rows;
  size_t runs = 0;
  size_t runnable = 0;
  std::set<std::string> phases;
};

Searched adaptive(const std::vector<Axis>& axes, const Oracle& oracle) {
  Searched result;
  result.rows = grid_of(axes);
  for (SearchRow& row : result.rows) {
    if (oracle(row.axes) == "guard")
      run(row, oracle);  // preflight knows
    else
      ++result.runnable;
  }
  while (true) {
    const SearchStep step = rows_to_run_next(result.rows);
    if (step.rows.empty()) return result;
    result.phases.insert(step.phase);
    for (const size_t i : step.rows) {
      REQUIRE(result.rows[i].status == RowStatus::kNotRun);
      run(result.rows[i], oracle);
      ++result.runs;
    }
  }
}

std::vector<SearchRow> full(const std::vector<Axis>& axes, const Oracle& oracle) {
  std::vector<SearchRow> rows = grid_of(axes);
  for (SearchRow& row : rows) run(row, oracle);
  return rows;
}

// Combinations with what is untested in them, by signature.
using Combinations = std::set<std::tuple<std::string, AxisValues, std::vector<std::string>>>;
Combinations combinations(const std::vector<SearchRow>& rows) {
  Combinations result;
  for (const MinimalCombination& minimal : search(rows).minimal_combinations)
    result.emplace(minimal.signature, minimal.axes, minimal.untested);
  return result;
}

std::string text(const Combinations& set) {
  std::string result;
  for (const auto& [signature, axes, untested] : set) {
    result += signature.substr(0, signature.find(' ')) + ":";
    for (const auto& [axis, value] : axes) result += fmt::format(" {}={}", axis, value);
    for (const std::string& axis : untested) result += " ?" + axis;
    result += "; ";
  }
  return result;
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  size_t below(size_t bound) { return engine_() % bound; }
  std::vector<Axis> axes(size_t least, size_t most) {
    std::vector<Axis> result;
    const size_t count = least + below(most - least + 1);
    for (size_t a = 0; a < count; ++a) {
      Axis axis{std::string(1, static_cast<char>('a' + a)), {}};
      const size_t values = 2 + below(3);
      for (size_t v = 0; v < values; ++v) axis.values.push_back(fmt::format("{}", v));
      result.push_back(axis);
    }
    return result;
  }
  AxisValues settings(const std::vector<Axis>& axes, size_t count) {
    AxisValues result;
    while (result.size() < count) {
      const Axis& axis = axes[below(axes.size())];
      result.emplace(axis.name, axis.values[below(axis.values.size())]);
    }
    return result;
  }

 private:
  std::mt19937 engine_;
};

Oracle any_of(const std::vector<AxisValues>& causes, const std::vector<AxisValues>& guards) {
  return [causes, guards](const AxisValues& axes) -> std::string {
    for (const AxisValues& guard : guards)
      if (within(guard, axes)) return "guard";
    for (const AxisValues& cause : causes)
      if (within(cause, axes)) return kFirst;
    return "";
  };
}

}  // namespace

TEST_CASE("any failing combination of one, two or three settings is found as in the full grid, guards or not") {
  size_t runs = 0;
  size_t runnable = 0;
  for (const size_t settings : {1, 2, 3}) {
    for (const size_t guards : {0, 1, 3}) {
      Random random(static_cast<uint32_t>(10 * settings + guards));
      for (int round = 0; round < 40; ++round) {
        const auto axes = random.axes(3, 5);
        std::vector<AxisValues> forbidden;
        const std::vector<AxisValues> causes{random.settings(axes, settings)};
        for (size_t g = 0; g < guards; ++g) forbidden.push_back(random.settings(axes, 1 + random.below(2)));
        const Oracle oracle = any_of(causes, forbidden);
        const Searched found = adaptive(axes, oracle);
        const Combinations expected = combinations(full(axes, oracle));
        INFO("cause " << text({{kFirst, causes[0], {}}}) << " full: " << text(expected));
        CHECK(text(combinations(found.rows)) == text(expected));
        runs += found.runs;
        runnable += found.runnable;
      }
    }
  }
  CHECK(runs < runnable / 2);
}

TEST_CASE("two causes of one signature are both found, each of up to two settings") {
  Random random(21);
  for (int round = 0; round < 60; ++round) {
    const auto axes = random.axes(3, 5);
    const size_t settings = 1 + random.below(2);
    const std::vector<AxisValues> causes{random.settings(axes, settings), random.settings(axes, settings)};
    const Oracle oracle = any_of(causes, {});
    const Combinations expected = combinations(full(axes, oracle));
    CHECK(text(combinations(adaptive(axes, oracle).rows)) == text(expected));
  }
}

TEST_CASE("two signatures, of which one hides the other, leave nothing of either cause out") {
  Random random(22);
  for (int round = 0; round < 60; ++round) {
    const auto axes = random.axes(3, 5);
    const AxisValues first = random.settings(axes, 1 + random.below(2));
    const AxisValues second = random.settings(axes, 1 + random.below(2));
    const Oracle oracle = [&](const AxisValues& row) {
      return within(first, row) ? kFirst : within(second, row) ? kSecond : std::string();
    };
    const std::vector<SearchRow> rows = adaptive(axes, oracle).rows;
    std::set<std::string> seen;
    for (const MinimalCombination& minimal : search(rows).minimal_combinations) {
      seen.insert(minimal.signature);
      const AxisValues& cause = minimal.signature == kFirst ? first : second;
      CHECK(within(cause, minimal.axes));
      for (const auto& [axis, value] : minimal.axes)
        if (cause.count(axis) == 0) CHECK(std::count(minimal.untested.begin(), minimal.untested.end(), axis) == 1);
    }
    // Where a cause lies within the other's, it cannot show.
    std::set<std::string> visible;
    for (const SearchRow& row : full(axes, oracle))
      if (row.status == RowStatus::kFails) visible.insert(row.signature);
    CHECK(seen == visible);
  }
}

TEST_CASE("a grid of 120 rows is searched in about fifteen runs and a few more, and says how far it was covered") {
  const std::vector<Axis> axes = {{"a", {"0", "1", "2", "3", "4"}},
                                  {"b", {"0", "1", "2"}},
                                  {"c", {"0", "1"}},
                                  {"d", {"0", "1"}},
                                  {"e", {"0", "1"}}};
  const std::vector<SearchRow> fresh = grid_of(axes);
  CHECK(covered_strength(fresh) == 0);
  const SearchStep first = rows_to_run_next(fresh);
  CHECK(first.phase == "screening pairs");
  CHECK(first.rows.size() <= 16);

  const Searched two = adaptive(axes, any_of({{{"b", "1"}, {"d", "0"}}}, {}));
  CHECK(two.runs <= 60);
  CHECK(covered_strength(two.rows) >= 2);
  // Nothing fails: triples are screened, and a fourth setting was not looked at.
  const Searched clean = adaptive(axes, any_of({}, {}));
  CHECK(clean.phases == std::set<std::string>{"screening pairs", "screening triples"});
  CHECK(clean.runs <= 48);
  CHECK(covered_strength(clean.rows) == 3);
  CHECK(covered_strength(full(axes, any_of({}, {}))) == axes.size());
}

TEST_CASE("rows that cannot run are never asked for, and leave their axis untested") {
  const std::vector<Axis> axes = {{"a", {"0", "1"}}, {"b", {"0", "1"}}, {"c", {"0", "1", "2"}}};
  const Oracle oracle = any_of({{{"a", "1"}, {"b", "1"}}}, {{{"a", "0"}}});
  const Searched found = adaptive(axes, oracle);  // asking for a row that cannot run fails in there
  CHECK(text(combinations(found.rows)) == text({{kFirst, {{"a", "1"}, {"b", "1"}}, {"a"}}}));
  CHECK(combinations(found.rows) == combinations(full(axes, oracle)));
}

TEST_CASE("values that resolve alike are not tried one by one") {
  const std::vector<Axis> axes = {{"backend", {"x", "y"}}, {"inert", {"0", "1", "2", "3"}}, {"dtype", {"p", "q"}}};
  std::vector<SearchRow> rows = grid_of(axes);
  for (SearchRow& row : rows)
    row.resolved = {{"backend", row.axes["backend"]},
                    {"dtype", row.axes["dtype"]},
                    {"inert", row.axes["backend"] == "y" ? "-" : row.axes["inert"]}};
  const Oracle oracle = any_of({{{"backend", "y"}, {"dtype", "q"}}}, {});
  // One failing row and its neighbours: the inert axis needs no run of its own.
  for (SearchRow& row : rows)
    if (row.axes["backend"] != row.axes["dtype"]) run(row, oracle);
  while (true) {
    const SearchStep step = rows_to_run_next(rows);
    if (step.rows.empty()) break;
    for (const size_t i : step.rows) run(rows[i], oracle);
  }
  REQUIRE(search(rows).minimal_combinations.size() == 1);
  CHECK(search(rows).minimal_combinations[0].axes == AxisValues{{"backend", "y"}, {"dtype", "q"}});
}

TEST_CASE("of a plant's pass, what fails without it too explains itself, and what the plant does is searched") {
  const std::vector<Axis> axes = {{"a", {"0", "1", "2"}}, {"b", {"0", "1"}}, {"c", {"0", "1"}}, {"d", {"0", "1"}}};
  const Oracle bare = any_of({{{"a", "0"}}}, {});
  const Oracle planted = [&](const AxisValues& row) {
    const std::string before = bare(row);
    return !before.empty() ? before : within({{"a", "1"}, {"b", "1"}, {"c", "0"}}, row) ? kSecond : std::string();
  };
  const std::vector<SearchRow> unplanted = full(axes, bare);
  std::vector<SearchRow> rows = grid_of(axes);
  for (SearchRow& row : rows) {
    row.id += "+p";
    row.plant = "p";
  }
  size_t runs = 0;
  while (true) {
    const SearchStep step = rows_to_run_next(rows, unplanted);
    if (step.rows.empty()) break;
    for (const size_t i : step.rows) run(rows[i], planted);
    runs += step.rows.size();
  }
  CHECK(runs < rows.size());
  std::vector<SearchRow> both = unplanted;
  both.insert(both.end(), rows.begin(), rows.end());
  const SearchResult result = search(both);
  REQUIRE(result.minimal_combinations.size() == 2);
  CHECK(result.minimal_combinations[1].plant == "p");
  CHECK(result.minimal_combinations[1].signature == kSecond);
  CHECK(result.minimal_combinations[1].axes == AxisValues{{"a", "1"}, {"b", "1"}, {"c", "0"}});
}

TEST_CASE("nothing to run: no rows, one row, a run that is cut short") {
  CHECK(rows_to_run_next({}).rows.empty());
  std::vector<SearchRow> one = grid_of({{"a", {"0"}}});
  CHECK(covered_strength({}) == 0);
  // No axis varies, so that there is nothing to cover: the row is run all the same.
  CHECK(rows_to_run_next(one).rows == std::vector<size_t>{0});
  one[0].status = RowStatus::kPasses;
  CHECK(rows_to_run_next(one).rows.empty());
  // Skipped rows are not asked for again.
  std::vector<SearchRow> skipped = grid_of({{"a", {"0", "1"}}, {"b", {"0", "1"}}});
  for (SearchRow& row : skipped) row.status = RowStatus::kUntestable;
  CHECK(rows_to_run_next(skipped).rows.empty());
}

TEST_CASE("ten thousand rows are planned at once") {
  const std::vector<Axis> axes = {{"a", {"0", "1", "2", "3", "4"}},
                                  {"b", {"0", "1", "2", "3"}},
                                  {"c", {"0", "1", "2", "3", "4"}},
                                  {"d", {"0", "1", "2", "3", "4"}},
                                  {"e", {"0", "1", "2", "3", "4"}},
                                  {"f", {"0", "1"}},
                                  {"g", {"0", "1"}}};
  const Oracle oracle = any_of({{{"a", "1"}, {"d", "2"}, {"f", "1"}}}, {{{"b", "3"}, {"c", "0"}}});
  const Searched found = adaptive(axes, oracle);
  CHECK(found.rows.size() == 10000);
  CHECK(found.runs < 300);
  REQUIRE(search(found.rows).minimal_combinations.size() == 1);
  CHECK(search(found.rows).minimal_combinations[0].axes == AxisValues{{"a", "1"}, {"d", "2"}, {"f", "1"}});
}

}  // namespace faultline
