#include "grid/expand.h"

#include <algorithm>
#include <map>

#include "grid/cover.h"

namespace faultline {
namespace {

constexpr size_t kIdDigits = 3;

bool excluded_by(const Exclusion& exclusion, const AxisValues& axes) {
  return std::all_of(exclusion.when.begin(), exclusion.when.end(), [&](const RequestedAxis& axis) {
    return std::find(axis.values.begin(), axis.values.end(), axes.at(axis.name)) != axis.values.end();
  });
}

// Values as numbers, in order of appearance.
std::vector<CodedRow> coded(const std::vector<GridRow>& rows) {
  std::map<std::string, std::map<std::string, int>> seen;
  std::vector<CodedRow> codes;
  codes.reserve(rows.size());
  for (const GridRow& row : rows) {
    FAULTLINE_CHECK(row.axes.size() == rows.front().axes.size());  // all rows of a grid have the same axes
    CodedRow code;
    for (const auto& [axis, value] : row.axes) {
      auto& numbers = seen[axis];
      code.push_back(numbers.emplace(value, static_cast<int>(numbers.size())).first->second);
    }
    codes.push_back(std::move(code));
  }
  return codes;
}

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
  CoverQuery query;
  query.allowed = allowed;
  return cover(coded(rows), query);
}

}  // namespace faultline
