#include "bisect/search_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace faultline::search_detail {
namespace {

const std::string& value_or_empty(const AxisValues& axes, const std::string& axis) {
  static const std::string kEmpty;
  const auto found = axes.find(axis);
  return found == axes.end() ? kEmpty : found->second;
}

}  // namespace

Table::Table(std::vector<const SearchRow*> rows) : rows_(std::move(rows)) {
  std::map<std::string, std::vector<std::string>> values;
  for (const SearchRow* row : rows_) {
    for (const auto& [axis, value] : row->axes) values[axis];
  }
  for (auto& [axis, list] : values) {
    for (const SearchRow* row : rows_) {
      const std::string& value = value_or_empty(row->axes, axis);
      if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
    }
    if (list.size() < 2) continue;
    axes_.push_back(axis);
    values_.push_back(list);
  }
  for (size_t i = 0; i < rows_.size(); ++i) {
    bool known = true;
    codes_.push_back(encode(rows_[i]->axes, known));
    by_code_[codes_.back()].push_back(i);
  }
}

std::vector<int> Table::encode(const AxisValues& axes, bool& known) const {
  std::vector<int> code(axes_.size());
  for (size_t a = 0; a < axes_.size(); ++a) {
    const std::string& value = value_or_empty(axes, axes_[a]);
    const auto found = std::find(values_[a].begin(), values_[a].end(), value);
    if (found == values_[a].end()) known = false;
    code[a] = static_cast<int>(found - values_[a].begin());
  }
  return code;
}

std::vector<size_t> Table::flips(size_t row, size_t a) const {
  std::vector<size_t> found;
  std::vector<int> code = codes_[row];
  for (int value = 0; value < static_cast<int>(values_[a].size()); ++value) {
    if (value == codes_[row][a]) continue;
    code[a] = value;
    const auto rows = by_code_.find(code);
    if (rows != by_code_.end()) found.insert(found.end(), rows->second.begin(), rows->second.end());
  }
  return found;
}

std::optional<size_t> Table::find(const AxisValues& axes) const {
  bool known = true;
  const std::vector<int> code = encode(axes, known);
  const auto found = by_code_.find(code);
  if (!known || found == by_code_.end()) return std::nullopt;
  return found->second.front();
}

bool Table::agree(size_t left, size_t right, const AxisSet& on) const {
  for (size_t a = 0; a < axes_.size(); ++a) {
    if (on[a] && codes_[left][a] != codes_[right][a]) return false;
  }
  return true;
}

size_t Table::distance(size_t left, size_t right) const {
  size_t count = 0;
  for (size_t a = 0; a < axes_.size(); ++a) count += codes_[left][a] != codes_[right][a];
  return count;
}

AxisValues Table::project(size_t row, const AxisSet& on) const {
  AxisValues result;
  for (size_t a = 0; a < axes_.size(); ++a) {
    if (on[a]) result[axes_[a]] = values_[a][static_cast<size_t>(codes_[row][a])];
  }
  return result;
}

AxisValues Table::changes(size_t from, size_t to) const {
  AxisSet differ(axes_.size());
  for (size_t a = 0; a < axes_.size(); ++a) differ[a] = codes_[from][a] != codes_[to][a];
  return project(to, differ);
}

std::vector<Pass> passes_of(const std::vector<SearchRow>& rows) {
  // The unplanted pass comes first even where its rows do not: the others are read against it.
  std::vector<std::string> plants;
  for (const SearchRow& row : rows) {
    if (std::find(plants.begin(), plants.end(), row.plant) == plants.end()) plants.push_back(row.plant);
  }
  std::stable_partition(plants.begin(), plants.end(), [](const std::string& plant) { return plant.empty(); });

  std::vector<Pass> passes;
  for (const std::string& plant : plants) {
    std::vector<const SearchRow*> members;
    for (const SearchRow& row : rows) {
      if (row.plant == plant) members.push_back(&row);
    }
    passes.push_back({plant, Table(std::move(members))});
  }
  return passes;
}

bool resolve_alike(const SearchRow& left, const SearchRow& right, const std::string& axis) {
  // Without the axis's own entry its effect may be one that the resolved map does not show.
  return left.resolved.count(axis) != 0 && left.resolved == right.resolved;
}

std::string words(const AxisValues& axes) {
  std::string text;
  for (const auto& [axis, value] : axes) text += fmt::format("{}{}={}", text.empty() ? "" : ", ", axis, value);
  return text;
}

std::string words(const std::vector<std::string>& list, size_t limit) {
  if (list.size() <= limit) return fmt::format("{}", fmt::join(list, ", "));
  return fmt::format("{} and {} more", fmt::join(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(limit), ", "),
                     list.size() - limit);
}

}  // namespace faultline::search_detail
