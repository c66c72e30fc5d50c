#include "grid/expand.h"

#include <algorithm>
#include <map>
#include <queue>
#include <utility>

namespace faultline {
namespace {

constexpr size_t kIdDigits = 3;

bool excluded_by(const Exclusion& exclusion, const AxisValues& axes) {
  return std::all_of(exclusion.when.begin(), exclusion.when.end(), [&](const RequestedAxis& axis) {
    return std::find(axis.values.begin(), axis.values.end(), axes.at(axis.name)) != axis.values.end();
  });
}

// Rows as small numbers, and every pair of (axis, value) as one index.
class PairTable {
 public:
  explicit PairTable(const std::vector<GridRow>& rows) {
    std::map<std::string, std::map<std::string, size_t>> seen;
    for (const GridRow& row : rows)
      for (const auto& [axis, value] : row.axes) seen[axis].emplace(value, seen[axis].size());
    for (const auto& [axis, values] : seen) counts_.push_back(values.size());
    codes_.reserve(rows.size());
    for (const GridRow& row : rows) {
      std::vector<size_t> code;
      for (const auto& [axis, values] : seen) {
        const auto it = row.axes.find(axis);
        FAULTLINE_CHECK(it != row.axes.end());  // all rows of a grid have the same axes
        code.push_back(values.at(it->second));
      }
      codes_.push_back(std::move(code));
    }
    size_t pairs = 0;
    for (size_t a = 0; a < counts_.size(); ++a)
      for (size_t b = a + 1; b < counts_.size(); ++b) {
        offsets_.push_back(pairs);
        pairs += counts_[a] * counts_[b];
      }
    // One axis alone: its values are what has to be met.
    if (counts_.size() == 1) pairs = counts_[0];
    covered_.assign(pairs, false);
  }

  size_t gain(size_t row) const {
    size_t count = 0;
    visit(row, [&](size_t pair) { count += covered_[pair] ? 0 : 1; });
    return count;
  }
  void cover(size_t row) {
    visit(row, [&](size_t pair) { covered_[pair] = true; });
  }

 private:
  template <class Visitor>
  void visit(size_t row, Visitor&& visitor) const {
    const std::vector<size_t>& code = codes_[row];
    if (code.size() == 1) return visitor(code[0]);
    size_t index = 0;
    for (size_t a = 0; a < code.size(); ++a)
      for (size_t b = a + 1; b < code.size(); ++b) visitor(offsets_[index++] + code[a] * counts_[b] + code[b]);
  }

  std::vector<size_t> counts_;
  std::vector<size_t> offsets_;
  std::vector<std::vector<size_t>> codes_;
  std::vector<bool> covered_;
};

}  // namespace

Result<Grid> expand_grid(const Experiment& experiment) {
  const bool listed = !experiment.rows.empty();
  size_t total = listed ? experiment.rows.size() : 1;
  for (const RequestedAxis& axis : experiment.axes) {
    FAULTLINE_CHECK(!axis.values.empty());
    if (listed) continue;
    if (axis.values.size() > kMaxRows / total)
      return bad_input("the axes span more than {} configurations; give them fewer values, or split the experiment",
                       kMaxRows);
    total *= axis.values.size();
  }
  const size_t digits = std::max(kIdDigits, std::to_string(total).size());
  Grid grid;
  for (size_t number = 0; number < total; ++number) {
    GridRow row;
    row.id = fmt::format("c{:0{}}", number + 1, digits);
    if (listed) row.axes = experiment.rows[number];
    size_t rest = number;
    for (auto axis = experiment.axes.rbegin(); !listed && axis != experiment.axes.rend(); ++axis) {
      row.axes[axis->name] = axis->values[rest % axis->values.size()];
      rest /= axis->values.size();
    }
    const bool out = std::any_of(experiment.exclude.begin(), experiment.exclude.end(),
                                 [&](const Exclusion& exclusion) { return excluded_by(exclusion, row.axes); });
    (out ? grid.excluded : grid.rows).push_back(std::move(row));
  }
  if (grid.rows.empty()) return bad_input("the experiment excludes all of its {} configurations", total);
  return grid;
}

std::vector<size_t> covering_rows(const std::vector<GridRow>& rows, const std::vector<bool>& allowed) {
  FAULTLINE_CHECK(allowed.size() == rows.size());
  if (rows.empty()) return {};
  PairTable table(rows);
  // Gains only shrink, so a row whose fresh gain still heads the queue is the best one. Ties go to the lower index.
  const auto worse = [](const std::pair<size_t, size_t>& a, const std::pair<size_t, size_t>& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  };
  std::priority_queue<std::pair<size_t, size_t>, std::vector<std::pair<size_t, size_t>>, decltype(worse)> queue(worse);
  for (size_t i = 0; i < rows.size(); ++i)
    if (allowed[i]) queue.emplace(table.gain(i), i);
  std::vector<size_t> chosen;
  while (!queue.empty()) {
    const size_t row = queue.top().second;
    queue.pop();
    const std::pair<size_t, size_t> fresh{table.gain(row), row};
    if (fresh.first == 0) continue;
    if (!queue.empty() && worse(fresh, queue.top())) {
      queue.push(fresh);
      continue;
    }
    table.cover(row);
    chosen.push_back(row);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace faultline
