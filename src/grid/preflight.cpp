#include "grid/preflight.h"

#include <algorithm>
#include <map>

namespace faultline {
namespace {

constexpr std::string_view kNoEffect = "-";

// For each row, whether the axis changes nothing there.
std::vector<bool> inert_rows(const std::vector<PreflightRow>& rows, const std::string& axis) {
  std::map<AxisValues, std::vector<size_t>> groups;  // rows that differ in this axis alone
  for (size_t i = 0; i < rows.size(); ++i) {
    AxisValues others = rows[i].row.axes;
    others.erase(axis);
    groups[std::move(others)].push_back(i);
  }
  std::vector<bool> inert(rows.size(), false);
  for (const auto& [others, members] : groups) {
    const AxisValues& first = rows[members.front()].configuration.resolved;
    const auto effect = first.find(axis);
    const bool unused = effect != first.end() && effect->second == kNoEffect;
    const bool alike = std::all_of(members.begin(), members.end(), [&](size_t i) {
      const ResolvedConfiguration& c = rows[i].configuration;
      return c.resolved == first && c.status == rows[members.front()].configuration.status;
    });
    if (!alike || (members.size() < 2 && !unused)) continue;
    for (const size_t i : members) inert[i] = true;
  }
  return inert;
}

}  // namespace

std::vector<InertAxis> inert_axes(const std::vector<PreflightRow>& rows) {
  std::vector<InertAxis> found;
  if (rows.empty()) return found;
  for (const auto& [axis, unused_value] : rows.front().row.axes) {
    const std::vector<bool> inert = inert_rows(rows, axis);
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
