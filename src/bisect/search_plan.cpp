#include "bisect/search_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "bisect/search_table.h"
#include "grid/cover.h"

namespace faultline {
namespace {

using search_detail::AxisSet;
using search_detail::Combination;
using search_detail::Pass;
using search_detail::SignatureView;
using search_detail::State;
using search_detail::Table;

constexpr size_t kPairs = 2;
constexpr size_t kTriples = 3;

Pass pass_of(const std::vector<SearchRow>& rows) {
  std::vector<const SearchRow*> pointers;
  pointers.reserve(rows.size());
  for (const SearchRow& row : rows) pointers.push_back(&row);
  return {rows.empty() ? "" : rows.front().plant, Table(std::move(pointers))};
}

// A failing combination: these settings, by axis name.
bool holds(const SearchRow& row, const AxisValues& combination) {
  return std::all_of(combination.begin(), combination.end(), [&](const auto& setting) {
    const auto found = row.axes.find(setting.first);
    return found != row.axes.end() && found->second == setting.second;
  });
}

class Planner {
 public:
  Planner(const std::vector<SearchRow>& grid, const std::vector<SearchRow>& unplanted)
      : grid_(grid), pass_(pass_of(grid)), table_(pass_.table) {
    std::optional<Pass> other;
    if (!unplanted.empty()) other = pass_of(unplanted);
    views_ = search_detail::signatures_of(pass_, other ? &*other : nullptr);
    for (const SignatureView& view : views_) {
      found_.push_back(search_detail::combinations_of(table_, view));
      for (const Combination& combination : found_.back())
        failing_.push_back(table_.project(combination.row, combination.axes));
    }
    own_failures_ = !failing_.empty();
    if (other) {
      for (const SignatureView& view : search_detail::signatures_of(*other, nullptr))
        for (const Combination& combination : search_detail::combinations_of(other->table, view))
          failing_.push_back(other->table.project(combination.row, combination.axes));
    }
    for (size_t row = 0; row < table_.rows(); ++row) {
      codes_.emplace_back();
      for (size_t a = 0; a < table_.axes(); ++a) codes_.back().push_back(table_.value(row, a));
      if (table_.row(row).status == RowStatus::kPasses && tells_all(row)) passing_.insert(table_.row(row).resolved);
      const bool hidden = std::any_of(failing_.begin(), failing_.end(), [&](const AxisValues& combination) {
        return holds(table_.row(row), combination);
      });
      explained_.push_back(hidden);
    }
  }

  SearchStep next() {
    // Without an axis that varies there is nothing to combine.
    if (table_.axes() == 0 && !grid_.empty() && not_run(0)) return {"screening", {0}};
    if (const auto rows = screen(); !rows.empty()) return {"screening pairs", rows};
    if (const auto rows = vary(); !rows.empty()) return {"one factor at a time", rows};
    if (const auto rows = confirm(); !rows.empty()) return {"confirming", rows};
    if (const auto rows = cover(codes_, unhidden(kPairs)); !rows.empty())
      return {"screening pairs that failures hid", rows};
    const auto rows = cover(codes_, unhidden(kTriples));
    if (!rows.empty() && (!own_failures_ || few(rows.size()))) return {"screening triples", rows};
    return {};
  }

  size_t strength() const {
    if (std::none_of(grid_.begin(), grid_.end(), [](const SearchRow& row) { return row.status == RowStatus::kNotRun; }))
      return grid_.empty() ? 0 : grid_.front().axes.size();
    size_t strength = 0;
    while (strength < kMaxStrength && is_covered(codes_, unhidden(strength + 1))) ++strength;
    return strength;
  }

 private:
  size_t none() const { return table_.rows(); }
  bool not_run(size_t row) const { return table_.row(row).status == RowStatus::kNotRun; }
  bool ran(size_t row) const {
    return table_.row(row).status == RowStatus::kPasses || table_.row(row).status == RowStatus::kFails;
  }
  // The resolved map shows the effect of every axis.
  bool tells_all(size_t row) const {
    const SearchRow& r = table_.row(row);
    return std::all_of(r.axes.begin(), r.axes.end(),
                       [&](const auto& setting) { return r.resolved.count(setting.first) != 0; });
  }
  // Resolves to what a passing row resolves to: it would be the same run.
  bool passes_alike(size_t row) const { return tells_all(row) && passing_.count(table_.row(row).resolved) != 0; }

  // No more than half of what can be run is then run.
  bool few(size_t more) const {
    size_t runs = more;
    size_t runnable = 0;
    for (size_t row = 0; row < table_.rows(); ++row) {
      runs += ran(row);
      runnable += ran(row) || not_run(row);
    }
    return 2 * runs <= runnable;
  }

  std::vector<size_t> screen() const {
    CoverQuery query;
    query.strength = kPairs;
    for (size_t row = 0; row < table_.rows(); ++row) {
      query.allowed.push_back(ran(row) || not_run(row));
      query.met.push_back(ran(row));
    }
    std::vector<size_t> rows = cover(codes_, query);
    return rows;
  }

  // What is still to be seen pass: the rows that nothing found says fail.
  CoverQuery unhidden(size_t strength) const {
    CoverQuery query;
    query.strength = strength;
    for (size_t row = 0; row < table_.rows(); ++row) {
      query.allowed.push_back(not_run(row) && !explained_[row] && !passes_alike(row));
      query.met.push_back(table_.row(row).status == RowStatus::kPasses || (not_run(row) && passes_alike(row)));
    }
    return query;
  }

  // --- one factor at a time

  std::vector<size_t> vary() const {
    std::set<size_t> rows;
    for (size_t s = 0; s < views_.size(); ++s) {
      for (const Combination& combination : found_[s]) {
        const size_t before = rows.size();
        for (size_t a = 0; a < table_.axes(); ++a)
          if (combination.untested[a]) vary_axis(views_[s], combination, a, rows);
        // One combination at a time: settled, it usually explains the signature's other rows too.
        if (rows.size() != before) break;
      }
    }
    return {rows.begin(), rows.end()};
  }

  void vary_axis(const SignatureView& view, const Combination& combination, size_t a, std::set<size_t>& rows) const {
    if (const size_t flip = best_flip(combination.row, a); flip != none()) {
      rows.insert(flip);
      return;
    }
    // It cannot be varied here. It may be elsewhere, in a row that shares everything that is in question.
    AxisSet rest = combination.axes;
    rest[a] = false;
    for (size_t other = 0; other < table_.rows(); ++other) {
      if (other == combination.row || !table_.agree(other, combination.row, rest)) continue;
      const bool fails = view.fails(other);
      if (!fails && !(not_run(other) && !explained_by_another(other, view))) continue;
      const bool flip_known = flips_tell(view, other, a);
      const size_t flip = flip_known ? none() : best_flip(other, a);
      if (!flip_known && flip == none()) continue;  // it cannot be varied there either
      if (fails && flip_known) continue;            // which settles nothing
      if (!fails) rows.insert(other);
      if (!flip_known) rows.insert(flip);
      return;
    }
  }

  bool flips_tell(const SignatureView& view, size_t row, size_t a) const {
    const std::vector<size_t> flips = table_.flips(row, a);
    return std::any_of(flips.begin(), flips.end(),
                       [&](size_t flip) { return view.fails(flip) || view.states[flip] == State::kAbsent; });
  }

  // Whether a failing combination of another signature would show instead.
  bool explained_by_another(size_t row, const SignatureView& view) const {
    for (size_t s = 0; s < views_.size(); ++s) {
      if (views_[s].signature == view.signature) continue;
      for (const Combination& combination : found_[s])
        if (table_.agree(row, combination.row, combination.axes)) return true;
    }
    return false;
  }

  // Whether another combination, of any signature, would make it fail as well.
  bool holds_another(size_t row, const Combination& combination) const {
    const AxisValues own = table_.project(combination.row, combination.axes);
    return std::any_of(failing_.begin(), failing_.end(),
                       [&](const AxisValues& other) { return other != own && holds(table_.row(row), other); });
  }

  // A row not run yet that differs from `row` in axis `a` alone and resolves otherwise: with the value of the nearest
  // passing row, else one that nothing found says fails, else any; none() where there is none.
  size_t best_flip(size_t row, size_t a) const {
    size_t best = none();
    int best_score = -1;
    const size_t passing = nearest_passing(row);
    for (const size_t flip : table_.flips(row, a)) {
      if (!not_run(flip) || search_detail::resolve_alike(table_.row(row), table_.row(flip), table_.axis(a))) continue;
      const bool toward = passing != none() && table_.value(passing, a) == table_.value(flip, a);
      const int score = (explained_[flip] ? 0 : 2) + (toward ? 1 : 0);
      if (score <= best_score) continue;
      best = flip;
      best_score = score;
    }
    return best;
  }

  size_t nearest_passing(size_t row) const {
    size_t best = none();
    for (size_t other = 0; other < table_.rows(); ++other) {
      if (table_.row(other).status != RowStatus::kPasses) continue;
      if (best == none() || table_.distance(row, other) < table_.distance(row, best)) best = other;
    }
    return best;
  }

  // --- confirmation

  std::vector<size_t> confirm() const {
    std::set<size_t> rows;
    for (const auto& combinations : found_)
      for (const Combination& combination : combinations) confirm(combination, rows);
    return {rows.begin(), rows.end()};
  }

  // That the combination is enough shows in rows that share nothing else with the one it was found in: another cause of
  // that row's failure is then out of the way. And every value of the other settings is seen with it once.
  void confirm(const Combination& combination, std::set<size_t>& rows) const {
    std::vector<size_t> sharing;
    size_t farthest = 0;
    for (size_t row = 0; row < table_.rows(); ++row) {
      if (!(ran(row) || not_run(row)) || !table_.agree(row, combination.row, combination.axes)) continue;
      if (holds_another(row, combination)) continue;
      sharing.push_back(row);
      farthest = std::max(farthest, table_.distance(row, combination.row));
    }
    bool far_seen = farthest <= 1;
    std::set<std::pair<size_t, int>> open;  // axis, value
    for (const size_t row : sharing)
      for (size_t a = 0; a < table_.axes(); ++a) open.emplace(a, table_.value(row, a));
    const auto see = [&](size_t row) {
      for (size_t a = 0; a < table_.axes(); ++a) open.erase({a, table_.value(row, a)});
      far_seen = far_seen || table_.distance(row, combination.row) == farthest;
    };
    for (const size_t row : sharing)
      if (ran(row)) see(row);
    while (!far_seen || !open.empty()) {
      size_t best = none();
      std::pair<size_t, size_t> best_gain{0, 0};  // new values, distance
      for (const size_t row : sharing) {
        if (!not_run(row) || rows.count(row) != 0) continue;
        const size_t distance = table_.distance(row, combination.row);
        if (!far_seen && distance != farthest) continue;
        size_t news = 0;
        for (size_t a = 0; a < table_.axes(); ++a) news += open.count({a, table_.value(row, a)});
        const std::pair<size_t, size_t> gain{news, distance};
        if (best != none() && gain <= best_gain) continue;
        best = row;
        best_gain = gain;
      }
      if (best == none() || (far_seen && best_gain.first == 0)) return;
      rows.insert(best);
      see(best);
    }
  }

  const std::vector<SearchRow>& grid_;
  const Pass pass_;
  const Table& table_;
  std::vector<SignatureView> views_;
  std::vector<std::vector<Combination>> found_;  // by view
  std::vector<AxisValues> failing_;              // all of them, those of the unplanted pass too
  bool own_failures_ = false;
  std::vector<CodedRow> codes_;
  std::vector<bool> explained_;   // by row: holds a failing combination
  std::set<AxisValues> passing_;  // resolved maps of passing rows
};

}  // namespace

SearchStep rows_to_run_next(const std::vector<SearchRow>& grid, const std::vector<SearchRow>& unplanted) {
  return Planner(grid, unplanted).next();
}

size_t covered_strength(const std::vector<SearchRow>& grid, const std::vector<SearchRow>& unplanted) {
  return Planner(grid, unplanted).strength();
}

}  // namespace faultline
