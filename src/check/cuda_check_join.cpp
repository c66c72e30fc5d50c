// Which checks and which poison can share a launch.
#include <algorithm>
#include <array>

#include "check/cuda_check_tables.h"

namespace faultline::device_checks {
namespace {

// Memory that a task goes over: `width` bytes of each `period`, or all of it.
struct Region {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  uintptr_t period = 0;  // 0: all of it
  uintptr_t width = 0;
};

uintptr_t address(const void* data) {
  return reinterpret_cast<uintptr_t>(data);
}

bool is_cache(const Task& task) {
  return task.kind == TaskKind::kSlots || task.kind == TaskKind::kNeighbours;
}

bool has_region(const Task& task) {
  return task.kind != TaskKind::kMark && task.kind != TaskKind::kCanaries;
}

Region region_of(const Task& task) {
  Region region;
  region.begin = address(task.data);
  if (is_cache(task)) {
    const int64_t row = task.format == SlotFormat::kIndexFp8 ? task.row_bytes : task.stride_bytes;
    region.end = region.begin + static_cast<uintptr_t>(task.capacity * row);
    return region;
  }
  const int64_t bytes = task.element_bytes;
  const int64_t last = (task.rows - 1) * task.row_stride + (task.inner - 1) * task.inner_stride + task.columns;
  region.end = region.begin + static_cast<uintptr_t>(std::max<int64_t>(last, 0) * bytes);
  const int64_t period = task.inner > 1 ? task.inner_stride : task.row_stride;
  if (task.inner > 1 && (period <= 0 || task.row_stride % period != 0)) return region;
  region.period = static_cast<uintptr_t>(std::max<int64_t>(period, 0) * bytes);
  region.width = static_cast<uintptr_t>(task.columns * bytes);
  return region;
}

// Columns of the same rows (parts of one tensor that two ops write) do not overlap although their rows do.
bool overlap(const Region& a, const Region& b) {
  if (a.end <= b.begin || b.end <= a.begin) return false;
  if (a.period == 0 || a.period != b.period) return true;
  const uintptr_t offset =
      b.begin >= a.begin ? (b.begin - a.begin) % a.period : (a.period - (a.begin - b.begin) % a.period) % a.period;
  return offset < a.width || offset + b.width > a.period;
}

Region region_of(const Integers& list, int64_t rows = 1) {
  Region region;
  region.begin = address(list.data);
  const int64_t entries = rows > 1 ? rows * list.stride : list.count * list.stride;
  region.end = list.data == nullptr ? region.begin : region.begin + static_cast<uintptr_t>(entries) * sizeof(int32_t);
  return region;
}

bool reads(const Task& task, const Region& written) {
  if (has_region(task) && overlap(region_of(task), written)) return true;
  const std::array lists = {region_of(task.sum),
                            region_of(task.lengths),
                            region_of(task.valid),
                            region_of(task.table, task.table_rows),
                            region_of(task.row_to_request),
                            region_of(task.owner_lengths),
                            region_of(task.slots)};
  return std::any_of(lists.begin(), lists.end(), [&](const Region& list) { return overlap(list, written); });
}

bool same_memory(const Task& a, const Task& b) {
  return !is_cache(a) && !is_cache(b) && has_region(a) && has_region(b) && a.data == b.data && a.rows == b.rows &&
         a.inner == b.inner && a.columns == b.columns && a.row_stride == b.row_stride &&
         a.inner_stride == b.inner_stride && a.element_bytes == b.element_bytes && a.walk == b.walk &&
         a.lengths.data == b.lengths.data && a.sum.data == b.sum.data && a.pattern == b.pattern &&
         a.sentinel == b.sentinel;
}

// Whether a block's part of the check is its part of the poison too.
bool same_parts(const Task& task) {
  const bool whole_rows = task.inner * task.columns * task.element_bytes % kVectorBytes == 0;
  switch (task.kind) {
    case TaskKind::kFloats:
    case TaskKind::kIntegers:
      return task.walk != Walk::kFlat || whole_rows;
    case TaskKind::kCodes:
      return task.walk == Walk::kVectors || (task.walk == Walk::kFlat && whole_rows);
    case TaskKind::kIndices:
      return !task.flat || task.unique;
    default:
      return false;
  }
}

}  // namespace

std::vector<Task> join(std::vector<Task> checks, std::vector<Task> poisons) {
  const auto sparse = [](const Task& task) { return task.sparse; };
  if (std::any_of(checks.begin(), checks.end(), sparse) || std::any_of(poisons.begin(), poisons.end(), sparse))
    return {};
  for (Task& check : checks) {
    if (!same_parts(check)) continue;
    const auto twin =
        std::find_if(poisons.begin(), poisons.end(), [&](const Task& p) { return same_memory(check, p); });
    if (twin == poisons.end()) continue;
    check.work = Work::kBoth;
    poisons.erase(twin);
  }
  const auto conflicts = [&](const Task& writer, const Task* self) {
    if (!has_region(writer) || writer.kind == TaskKind::kNeighbours) return false;
    const Region written = region_of(writer);
    return std::any_of(checks.begin(), checks.end(), [&](const Task& t) { return &t != self && reads(t, written); });
  };
  for (const Task& check : checks)
    if (check.work == Work::kBoth && conflicts(check, &check)) return {};
  for (const Task& poison : poisons)
    if (conflicts(poison, nullptr)) return {};
  checks.insert(checks.end(), poisons.begin(), poisons.end());
  return checks;
}

}  // namespace faultline::device_checks
