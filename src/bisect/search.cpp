#include "bisect/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "bisect/search_table.h"

namespace faultline {
namespace search_detail {
namespace {

bool shows(const SearchRow& row, const std::string& signature) {
  return row.status == RowStatus::kFails &&
         (row.signature == signature || std::find(row.also.begin(), row.also.end(), signature) != row.also.end());
}

// True when the failure is the unplanted pass's own: its twin row shows the signature too, or could not say (it did not
// run, or failed otherwise) while other unplanted rows do.
bool known_unplanted(const SearchRow& planted, const std::string& signature, const Table& unplanted) {
  const std::optional<size_t> twin = unplanted.find(planted.axes);
  if (twin) {
    if (shows(unplanted.row(*twin), signature)) return true;
    if (unplanted.row(*twin).status == RowStatus::kPasses) return false;
  }
  for (size_t i = 0; i < unplanted.rows(); ++i) {
    if (shows(unplanted.row(i), signature)) return true;
  }
  return false;
}

State state_of(const SearchRow& row, const std::string& signature, int64_t last_order) {
  if (row.status == RowStatus::kPasses) return State::kAbsent;
  if (row.status != RowStatus::kFails) return State::kUnknown;
  if (row.signature == signature) return State::kFailsFirst;
  if (shows(row, signature)) return State::kFailsLater;
  if (row.complete) return State::kAbsent;
  // A failure that comes later than this signature ever does would have been preceded by it.
  return last_order >= 0 && row.order > last_order ? State::kAbsent : State::kUnknown;
}

// What changing one axis of a failing row, alone, does to the signature.
enum class Flip : uint8_t {
  kVanishes,
  kPersists,
  kAlike,    // no tested value, but one that resolves to the very same configuration
  kUnknown,  // nothing tested
};

class Combiner {
 public:
  Combiner(const Table& table, const SignatureView& view) : table_(table), view_(view) {
    for (size_t row = 0; row < table.rows(); ++row) {
      if (!view.fails(row)) continue;
      std::vector<Flip>& flips = flips_[row];
      for (size_t a = 0; a < table.axes(); ++a) flips.push_back(flip(row, a));
      if (view.states[row] == State::kFailsFirst) starts_.push_back(row);
    }
    // The rows about which most is known first: later ones that they explain need no search of their own.
    std::stable_sort(starts_.begin(), starts_.end(), [&](size_t left, size_t right) {
      return count(left, Flip::kUnknown) < count(right, Flip::kUnknown);
    });
  }

  std::vector<Combination> run() {
    std::vector<Combination> found;
    std::vector<size_t> interactions;
    for (const size_t row : starts_) {
      if (covered(row, found)) continue;
      std::optional<Combination> combination = by_single_flips(row);
      if (combination) {
        add(*std::move(combination), found);
      } else {
        interactions.push_back(row);
      }
    }
    for (const size_t row : interactions) {
      if (!covered(row, found)) add(by_elimination(row), found);
    }
    // In grid order, not in the order of how much is known.
    std::stable_sort(found.begin(), found.end(),
                     [](const Combination& left, const Combination& right) { return left.row < right.row; });
    return found;
  }

 private:
  Flip flip(size_t row, size_t a) const {
    Flip result = Flip::kUnknown;
    for (const size_t other : table_.flips(row, a)) {
      if (view_.states[other] == State::kAbsent) return Flip::kVanishes;
      if (view_.fails(other)) {
        result = Flip::kPersists;
      } else if (result == Flip::kUnknown && table_.row(other).status != RowStatus::kFails &&
                 resolve_alike(table_.row(row), table_.row(other), table_.axis(a))) {
        result = Flip::kAlike;
      }
    }
    return result;
  }

  std::ptrdiff_t count(size_t row, Flip kind) const {
    const std::vector<Flip>& flips = flips_.at(row);
    return std::count(flips.begin(), flips.end(), kind);
  }

  bool contradicted(size_t row, const AxisSet& on) const {
    for (size_t other = 0; other < table_.rows(); ++other) {
      if (view_.states[other] == State::kAbsent && table_.agree(row, other, on)) return true;
    }
    return false;
  }

  // True when `other` fails though an axis that `row` needs was changed: then it has a cause of its own.
  bool other_cause(size_t other, const AxisSet& needed) const {
    for (size_t a = 0; a < table_.axes(); ++a) {
      if (needed[a] && flips_.at(other)[a] == Flip::kPersists) return true;
    }
    return false;
  }

  // The axes whose change makes the signature vanish, and those that could not be told. Axes that cannot be varied at
  // this row may be settled at a failing row that agrees with it in everything still in question. Nothing when a row
  // without the signature has this combination: the axes interact.
  std::optional<Combination> by_single_flips(size_t row) const {
    AxisSet in(table_.axes());
    AxisSet needed(table_.axes());
    for (size_t a = 0; a < table_.axes(); ++a) {
      needed[a] = flips_.at(row)[a] == Flip::kVanishes;
      in[a] = needed[a] || flips_.at(row)[a] == Flip::kUnknown;
    }
    if (contradicted(row, in)) return std::nullopt;

    bool changed = true;
    while (changed) {
      changed = false;
      for (size_t a = 0; a < table_.axes(); ++a) {
        if (!in[a] || needed[a]) continue;
        changed = settle(row, a, in, needed) || changed;
      }
    }
    Combination combination{in, in, row};
    for (size_t a = 0; a < table_.axes(); ++a) combination.untested[a] = in[a] && !needed[a];
    return combination;
  }

  bool settle(size_t row, size_t a, AxisSet& in, AxisSet& needed) const {
    AxisSet without = in;
    without[a] = false;
    for (const auto& [other, flips] : flips_) {
      if (!table_.agree(row, other, without) || other_cause(other, needed)) continue;
      if (flips[a] == Flip::kVanishes && table_.value(other, a) == table_.value(row, a)) {
        needed[a] = true;
        return true;
      }
    }
    for (const auto& [other, flips] : flips_) {
      if (flips[a] != Flip::kPersists || !table_.agree(row, other, without) || other_cause(other, needed)) continue;
      if (contradicted(row, without)) {
        needed[a] = true;
      } else {
        in[a] = false;
      }
      return true;
    }
    return false;
  }

  // Where axes interact (two causes in one row): drop what can go while no row contradicts, one axis after the other.
  Combination by_elimination(size_t row) const {
    Combination combination{AxisSet(table_.axes(), true), AxisSet(table_.axes()), row};
    for (size_t a = 0; a < table_.axes(); ++a) {
      const Flip kind = flips_.at(row)[a];
      combination.untested[a] = kind == Flip::kUnknown;
      if (kind != Flip::kPersists && kind != Flip::kAlike) continue;
      combination.axes[a] = false;
      if (contradicted(row, combination.axes)) combination.axes[a] = true;
    }
    return combination;
  }

  // An untested axis says "perhaps": only a settled combination explains a row.
  bool covered(size_t row, const std::vector<Combination>& found) const {
    return std::any_of(found.begin(), found.end(), [&](const Combination& combination) {
      return std::count(combination.untested.begin(), combination.untested.end(), true) == 0 &&
             table_.agree(row, combination.row, combination.axes);
    });
  }

  // True when `narrow` says nothing that `wide` does not say.
  bool within(const Combination& narrow, const Combination& wide) const {
    for (size_t a = 0; a < table_.axes(); ++a) {
      if (wide.axes[a] && !narrow.axes[a]) return false;
    }
    return table_.agree(narrow.row, wide.row, wide.axes);
  }

  void add(Combination combination, std::vector<Combination>& found) const {
    for (Combination& other : found) {
      if (!within(combination, other)) continue;
      if (within(other, combination)) {
        for (size_t a = 0; a < table_.axes(); ++a) other.untested[a] = other.untested[a] && combination.untested[a];
      }
      return;
    }
    found.erase(std::remove_if(found.begin(), found.end(),
                               [&](const Combination& other) { return within(other, combination); }),
                found.end());
    found.push_back(std::move(combination));
  }

  const Table& table_;
  const SignatureView& view_;
  std::map<size_t, std::vector<Flip>> flips_;  // of every failing row, by axis
  std::vector<size_t> starts_;
};

}  // namespace

std::vector<SignatureView> signatures_of(const Pass& pass, const Pass* unplanted) {
  const Table& table = pass.table;
  std::vector<std::string> names;
  for (size_t i = 0; i < table.rows(); ++i) {
    const SearchRow& row = table.row(i);
    if (row.status == RowStatus::kFails && std::find(names.begin(), names.end(), row.signature) == names.end()) {
      names.push_back(row.signature);
    }
  }
  std::vector<SignatureView> views;
  for (const std::string& name : names) {
    SignatureView view{name, {}, {}, {}};
    int64_t last_order = -1;
    bool orders_known = true;
    for (size_t i = 0; i < table.rows(); ++i) {
      const SearchRow& row = table.row(i);
      if (row.status != RowStatus::kFails || row.signature != name) continue;
      orders_known = orders_known && row.order >= 0;
      last_order = std::max(last_order, row.order);
    }
    if (!orders_known) last_order = -1;
    for (size_t i = 0; i < table.rows(); ++i) {
      const SearchRow& row = table.row(i);
      State state = state_of(row, name, last_order);
      const bool fails = state == State::kFailsFirst || state == State::kFailsLater;
      if (fails && unplanted != nullptr && known_unplanted(row, name, unplanted->table)) {
        if (state == State::kFailsFirst) view.known.push_back(i);
        state = State::kUnknown;
      } else if (state == State::kUnknown && row.status == RowStatus::kFails) {
        view.masked.push_back(i);
      }
      view.states.push_back(state);
    }
    views.push_back(std::move(view));
  }
  return views;
}

std::vector<Combination> combinations_of(const Table& table, const SignatureView& view) {
  return Combiner(table, view).run();
}

namespace {

std::vector<std::string> ids(const Table& table, const std::vector<size_t>& rows) {
  std::vector<std::string> list;
  list.reserve(rows.size());
  for (const size_t row : rows) list.push_back(table.row(row).id);
  return list;
}

// Pairs of rows within the combination that differ in axis `a` alone and both fail: with this signature first, where
// such pairs exist.
std::vector<std::pair<std::string, std::string>> failing_pairs(const Table& table, const SignatureView& view,
                                                               const Combination& combination, size_t a) {
  std::vector<std::pair<std::string, std::string>> first;
  std::vector<std::pair<std::string, std::string>> later;
  for (size_t row = 0; row < table.rows() && first.size() < kMaxPairs; ++row) {
    if (!view.fails(row) || !table.agree(row, combination.row, combination.axes)) continue;
    for (const size_t other : table.flips(row, a)) {
      if (table.value(other, a) < table.value(row, a) || !view.fails(other)) continue;
      const bool both_first = view.states[row] == State::kFailsFirst && view.states[other] == State::kFailsFirst;
      (both_first ? first : later).emplace_back(table.row(row).id, table.row(other).id);
    }
  }
  first.insert(first.end(), later.begin(), later.end());
  if (first.size() > kMaxPairs) first.resize(kMaxPairs);
  return first;
}

void describe(const Pass& pass, const SignatureView& view, const std::vector<Combination>& combinations,
              SearchResult& result) {
  const Table& table = pass.table;
  for (const Combination& combination : combinations) {
    MinimalCombination minimal{table.project(combination.row, combination.axes), {}, view.signature, pass.plant};
    for (size_t a = 0; a < table.axes(); ++a) {
      if (combination.untested[a]) minimal.untested.push_back(table.axis(a));
    }
    for (size_t a = 0; a < table.axes(); ++a) {
      if (combination.axes[a]) continue;
      auto pairs = failing_pairs(table, view, combination, a);
      if (!pairs.empty()) {
        result.ruled_out.push_back({table.axis(a), view.signature, pass.plant, minimal.axes, std::move(pairs)});
      }
    }
    result.minimal_combinations.push_back(std::move(minimal));
  }
}

// Rows that did not run, by why.
std::vector<std::string> untestable_sentences(const Table& table) {
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  for (size_t i = 0; i < table.rows(); ++i) {
    const SearchRow& row = table.row(i);
    if (row.status != RowStatus::kUntestable) continue;
    const std::string why = row.reason.empty() ? row.verdict : fmt::format("{}: {}", row.verdict, row.reason);
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& candidate) { return candidate.first == why; });
    if (group == groups.end()) group = groups.insert(groups.end(), {why, {}});
    group->second.push_back(row.id);
  }
  constexpr size_t kMaxIds = 6;
  std::vector<std::string> sentences;
  sentences.reserve(groups.size());
  for (const auto& [why, rows] : groups) {
    sentences.push_back(fmt::format("Nothing is known about {} ({} {}): {}.", words(rows, kMaxIds), rows.size(),
                                    rows.size() == 1 ? "row" : "rows", why));
  }
  return sentences;
}

std::vector<std::string> single_valued_axes(const Table& table) {
  std::set<std::string> varying;
  for (size_t a = 0; a < table.axes(); ++a) varying.insert(table.axis(a));
  std::vector<std::string> single;
  if (table.rows() == 0) return single;
  for (const auto& [axis, value] : table.row(0).axes) {
    if (varying.count(axis) == 0) single.push_back(fmt::format("{}={}", axis, value));
  }
  return single;
}

std::string untested_sentence(const Table& table, const SignatureView& view, const Combination& combination, size_t a) {
  AxisSet rest = combination.axes;
  rest[a] = false;
  std::vector<std::string> hidden;
  for (size_t row = 0; row < table.rows(); ++row) {
    if (view.fails(row) || view.states[row] == State::kAbsent || !table.agree(row, combination.row, rest)) continue;
    if (table.value(row, a) == table.value(combination.row, a)) continue;
    const SearchRow& other = table.row(row);
    const std::string& why = other.status == RowStatus::kFails ? "fails first with " + other.signature : other.verdict;
    hidden.push_back(
        fmt::format("{} ({}, {})", table.values(a)[static_cast<size_t>(table.value(row, a))], other.id, why));
  }
  constexpr size_t kMaxHidden = 4;
  const std::string condition = words(table.project(combination.row, rest));
  return fmt::format(
      "Whether {} matters for \"{}\" is untested{}: {}. Run another value of {} that can run here, or run "
      "on a target where these can.",
      table.axis(a), view.signature, condition.empty() ? "" : " under " + condition,
      hidden.empty() ? "no row differs in it alone" : "no verdict from " + words(hidden, kMaxHidden), table.axis(a));
}

void suggest(const Pass& pass, const std::vector<SignatureView>& views,
             const std::vector<std::vector<Combination>>& combinations, const SearchOptions& options,
             SearchResult& result) {
  const Table& table = pass.table;
  for (size_t s = 0; s < views.size(); ++s) {
    for (const Combination& combination : combinations[s]) {
      for (size_t a = 0; a < table.axes(); ++a) {
        if (!combination.untested[a]) continue;
        result.next_experiments.push_back(untested_sentence(table, views[s], combination, a));
      }
    }
  }
  // Which rows hide each other is only worth a line where a later failure could hide behind an earlier one.
  for (const SignatureView& view : views) {
    constexpr size_t kMaxIds = 6;
    if (view.masked.empty() || view.states.empty()) continue;
    const std::vector<std::string> masked = ids(table, view.masked);
    result.next_experiments.push_back(fmt::format(
        "{} fail first with another signature and so say nothing about \"{}\": mend that and run them again.",
        words(masked, kMaxIds), view.signature));
  }
  for (std::string& sentence : untestable_sentences(table)) result.next_experiments.push_back(std::move(sentence));

  size_t passes = 0;
  for (size_t i = 0; i < table.rows(); ++i) passes += table.row(i).status == RowStatus::kPasses;
  if (passes != 0 && !options.checks.empty() && options.checks != "reference") {
    result.next_experiments.push_back(fmt::format(
        "{} {} under checks: {}, which does not look for finite but wrong results: run with checks: reference.", passes,
        passes == 1 ? "row passes" : "rows pass", options.checks));
  }
  const std::vector<std::string> single = single_valued_axes(table);
  if (!single.empty() && table.rows() != 0) {
    constexpr size_t kMaxAxes = 12;
    result.next_experiments.push_back(
        fmt::format("Tried with one value only, so nothing is known of their effect: {}.", words(single, kMaxAxes)));
  }
}

}  // namespace
}  // namespace search_detail

SearchResult search(const std::vector<SearchRow>& rows, const SearchOptions& options) {
  using namespace search_detail;
  SearchResult result;
  const std::vector<Pass> passes = passes_of(rows);
  for (const Pass& pass : passes) {
    const Pass* unplanted = !pass.plant.empty() && passes.front().plant.empty() ? &passes.front() : nullptr;
    const std::vector<SignatureView> views = signatures_of(pass, unplanted);
    std::vector<std::vector<Combination>> combinations;
    for (const SignatureView& view : views) {
      combinations.push_back(combinations_of(pass.table, view));
      describe(pass, view, combinations.back(), result);
      if (!view.known.empty()) {
        result.known_under_plant.push_back({pass.plant, view.signature, ids(pass.table, view.known)});
      }
      if (!view.masked.empty()) result.masked.push_back({view.signature, pass.plant, ids(pass.table, view.masked)});
      if (pass.plant.empty()) {
        auto workarounds = workarounds_of(pass.table, view, combinations.back());
        result.workarounds.insert(result.workarounds.end(), workarounds.begin(), workarounds.end());
      }
    }
    if (&pass == &passes.front()) {
      result.inert = inert_axes(pass.table);
      suggest(pass, views, combinations, options, result);
    }
  }
  return result;
}

}  // namespace faultline
