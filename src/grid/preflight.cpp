#include "grid/preflight.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "grid/resolve.h"

namespace faultline {
namespace {

constexpr std::string_view kNoEffect = "-";

// Rows as small numbers: thousands of them are compared with each other once an axis.
struct Coded {
  std::vector<std::vector<uint32_t>> axes;  // of a row, one value an axis
  std::vector<uint32_t> effects;            // of a row: equal where rows resolve alike

  explicit Coded(const std::vector<PreflightRow>& rows) {
    std::unordered_map<std::string, uint32_t> values;
    std::unordered_map<std::string, uint32_t> resolved;
    const auto number = [](auto& table, const std::string& text) {
      return table.emplace(text, static_cast<uint32_t>(table.size())).first->second;
    };
    for (const PreflightRow& row : rows) {
      axes.emplace_back();
      for (const auto& [axis, value] : row.row.axes) axes.back().push_back(number(values, value));
      std::string effect(target_status_name(row.configuration.status));
      for (const auto& [key, value] : row.configuration.resolved)
        (effect += '\n').append(key).append("=").append(value);
      effects.push_back(number(resolved, effect));
    }
  }
};

// For each row, whether the axis (the at-th) changes nothing there.
std::vector<bool> inert_rows(const std::vector<PreflightRow>& rows, const Coded& coded, const std::string& axis,
                             size_t at) {
  std::map<std::vector<uint32_t>, std::vector<size_t>> groups;  // rows that differ in this axis alone
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<uint32_t> others = coded.axes[i];
    others[at] = 0;
    groups[std::move(others)].push_back(i);
  }
  std::vector<bool> inert(rows.size(), false);
  for (const auto& [others, members] : groups) {
    const AxisValues& first = rows[members.front()].configuration.resolved;
    const auto effect = first.find(axis);
    const bool unused = effect != first.end() && effect->second == kNoEffect;
    const bool alike = std::all_of(members.begin(), members.end(),
                                   [&](size_t i) { return coded.effects[i] == coded.effects[members.front()]; });
    if (!alike || (members.size() < 2 && !unused)) continue;
    for (const size_t i : members) inert[i] = true;
  }
  return inert;
}

}  // namespace

std::vector<InertAxis> inert_axes(const std::vector<PreflightRow>& rows) {
  std::vector<InertAxis> found;
  if (rows.empty()) return found;
  const Coded coded(rows);
  size_t at = 0;
  for (const auto& [axis, unused_value] : rows.front().row.axes) {
    const std::vector<bool> inert = inert_rows(rows, coded, axis, at++);
    if (std::all_of(inert.begin(), inert.end(), [](bool flag) { return flag; })) {
      found.push_back({axis, {}, rows.size()});
      continue;
    }
    // The first other axis that explains it: values of it under which every row is inert.
    for (const auto& [other, unused_other] : rows.front().row.axes) {
      if (other == axis) continue;
      std::map<std::string, std::pair<size_t, bool>> values;  // rows, all of them inert
      for (size_t i = 0; i < rows.size(); ++i) {
        auto& [count, all] = values.try_emplace(rows[i].row.axes.at(other), 0, true).first->second;
        ++count;
        all = all && inert[i];
      }
      const size_t before = found.size();
      for (const auto& [value, seen] : values)
        if (seen.second) found.push_back({axis, {{other, value}}, seen.first});
      if (found.size() > before) break;
    }
  }
  return found;
}

}  // namespace faultline
