// What follows from a searched table: axes that never mattered, the nearest configuration that works, what to run next.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "bisect/search_table.h"

namespace faultline {
namespace search_detail {
namespace {

// Conditions of more settings than this are not looked for: they would say too little for their length.
constexpr size_t kMaxConditionAxes = 3;
// Work-arounds named for one combination.
constexpr size_t kMaxWorkarounds = 3;

struct Pair {
  size_t left;
  size_t right;
  bool alike;
};

bool tested(const SearchRow& row) {
  return row.status == RowStatus::kPasses || row.status == RowStatus::kFails;
}

// Pairs of rows that differ in axis `a` alone and of which both resolutions are known.
std::vector<Pair> pairs_of(const Table& table, size_t a) {
  std::vector<Pair> pairs;
  for (size_t row = 0; row < table.rows(); ++row) {
    for (const size_t other : table.flips(row, a)) {
      if (table.value(other, a) < table.value(row, a)) continue;
      const SearchRow& left = table.row(row);
      const SearchRow& right = table.row(other);
      if (left.resolved.empty() || right.resolved.empty()) continue;
      // Rows that resolve alike and behave differently show that the resolution does not tell everything.
      const bool contradicted = tested(left) && tested(right) && left.status != right.status;
      pairs.push_back({row, other, !contradicted && resolve_alike(left, right, table.axis(a))});
    }
  }
  return pairs;
}

struct Condition {
  AxisSet axes;
  size_t row;  // gives the values
};

bool holds(const Table& table, const Condition& condition, const Pair& pair) {
  return table.agree(condition.row, pair.left, condition.axes);
}

// Conditions of exactly `size` other axes under which all pairs, at least one, resolve alike.
void find_conditions(const Table& table, size_t a, const std::vector<Pair>& pairs, size_t size, AxisSet& axes,
                     size_t from, std::vector<Condition>& found) {
  if (size == 0) {
    // One pass over the pairs a set of axes: alike or not, by the values they have there.
    std::map<AxisValues, std::pair<size_t, bool>> by_values;
    for (const Pair& pair : pairs) {
      auto& [row, alike] = by_values.try_emplace(table.project(pair.left, axes), pair.left, true).first->second;
      alike = alike && pair.alike;
    }
    for (const auto& [values, entry] : by_values) {
      if (entry.second) found.push_back({axes, entry.first});
    }
    return;
  }
  for (size_t other = from; other < table.axes(); ++other) {
    if (other == a) continue;
    axes[other] = true;
    find_conditions(table, a, pairs, size - 1, axes, other + 1, found);
    axes[other] = false;
  }
}

Inert describe_inert(const Table& table, size_t a, const std::vector<Pair>& pairs, const Condition& condition) {
  Inert inert{table.axis(a), table.project(condition.row, condition.axes), {}, {}};
  std::vector<std::string> values;
  size_t total = 0;
  std::string effect;
  // Pairs that ran come first: they show it as well as follow from it.
  for (const bool ran : {true, false}) {
    for (const Pair& pair : pairs) {
      const SearchRow& left = table.row(pair.left);
      const SearchRow& right = table.row(pair.right);
      if (!holds(table, condition, pair) || (tested(left) && tested(right)) != ran) continue;
      ++total;
      if (inert.pairs.size() < kMaxPairs) inert.pairs.emplace_back(left.id, right.id);
      for (const size_t row : {pair.left, pair.right}) {
        const std::string& value = table.values(a)[static_cast<size_t>(table.value(row, a))];
        if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
      }
      effect = left.resolved.at(table.axis(a));
    }
  }
  constexpr size_t kMaxValues = 6;
  inert.because = fmt::format(
      "{} resolve to the same configuration ({}) in {} that {} in {} alone, such as {} and {}",
      words(values, kMaxValues), effect == "-" ? "the setting has no effect there" : "as " + effect,
      total == 1 ? "the one pair of rows" : fmt::format("all {} pairs of rows", total),
      total == 1 ? "differs" : "differ", table.axis(a), inert.pairs.front().first, inert.pairs.front().second);
  return inert;
}

}  // namespace

std::vector<Inert> inert_axes(const Table& table) {
  std::vector<Inert> result;
  for (size_t a = 0; a < table.axes(); ++a) {
    const std::vector<Pair> pairs = pairs_of(table, a);
    std::vector<bool> explained(pairs.size());
    for (size_t size = 0; size <= kMaxConditionAxes; ++size) {
      AxisSet axes(table.axes());
      std::vector<Condition> conditions;
      find_conditions(table, a, pairs, size, axes, 0, conditions);
      // The condition that explains most goes first; one that explains nothing new is not worth a line.
      const auto news = [&](const Condition& condition) {
        size_t count = 0;
        for (size_t i = 0; i < pairs.size(); ++i) count += !explained[i] && holds(table, condition, pairs[i]);
        return count;
      };
      while (!conditions.empty()) {
        const auto best =
            std::max_element(conditions.begin(), conditions.end(),
                             [&](const auto& left, const auto& right) { return news(left) < news(right); });
        if (news(*best) == 0) break;
        for (size_t i = 0; i < pairs.size(); ++i) explained[i] = explained[i] || holds(table, *best, pairs[i]);
        result.push_back(describe_inert(table, a, pairs, *best));
        conditions.erase(best);
      }
    }
  }
  return result;
}

std::vector<Workaround> workarounds_of(const Table& table, const SignatureView& view,
                                       const std::vector<Combination>& combinations) {
  std::vector<Workaround> result;
  for (const Combination& combination : combinations) {
    std::vector<std::tuple<size_t, size_t, size_t>> candidates;  // changed axes, failing row, passing row
    for (size_t bad = 0; bad < table.rows(); ++bad) {
      if (view.states[bad] != State::kFailsFirst || !table.agree(bad, combination.row, combination.axes)) continue;
      for (size_t good = 0; good < table.rows(); ++good) {
        const SearchRow& row = table.row(good);
        if (row.status == RowStatus::kPasses && row.runs_on_target) {
          candidates.emplace_back(table.distance(bad, good), bad, good);
        }
      }
    }
    if (candidates.empty()) continue;
    const size_t nearest = std::get<0>(*std::min_element(candidates.begin(), candidates.end()));
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                    [&](const auto& candidate) { return std::get<0>(candidate) != nearest; }),
                     candidates.end());
    std::sort(candidates.begin(), candidates.end());
    size_t named = 0;
    for (const auto& [distance, bad, good] : candidates) {
      Workaround workaround;
      workaround.id = table.row(good).id;
      workaround.changes = table.changes(bad, good);
      workaround.from = table.row(bad).id;
      workaround.signature = view.signature;
      const bool repeated = std::any_of(result.begin(), result.end(), [&](const Workaround& other) {
        return other.changes == workaround.changes && other.signature == workaround.signature;
      });
      if (repeated) continue;
      result.push_back(std::move(workaround));
      if (++named == kMaxWorkarounds) break;
    }
  }
  return result;
}

}  // namespace search_detail
}  // namespace faultline
