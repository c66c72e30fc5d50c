#include "check/violation.h"

#include <algorithm>
#include <cmath>

namespace faultline {

std::string value_text(float value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return fmt::format("{}", value);
}

int64_t live_rows(const OpCall& call, const Region& region, int operand, const LiveCounts& live) {
  const TensorView& view = call.view(operand);
  if (region.sum_operand >= 0) {
    const TensorView& lengths = call.view(region.sum_operand);
    int64_t sum = 0;
    for (int64_t i = 0; i < std::min(live.requests, lengths.dim(0)); ++i) sum += lengths.load_index(i);
    return std::clamp<int64_t>(sum, 0, view.dim(0));
  }
  const bool per_token =
      region.multiplier == Region::kTopKUnlessPerToken && call.attr().integer_or("x_per_token", 0) != 0;
  const int64_t multiplier =
      region.multiplier > 0 ? region.multiplier : (per_token ? 1 : call.attr().integer_or("k", 1));
  switch (region.rows) {
    case Rows::kAll:
      return view.dim(0);
    case Rows::kTokens:
      return std::min(view.dim(0), live.tokens * multiplier);
    case Rows::kRequests:
      return std::min(view.dim(0), live.requests * multiplier);
  }
  return 0;
}

int64_t live_columns(const OpCall& call, const Region& region, const TensorView& view, int64_t row) {
  if (region.lengths_operand < 0) return view.dim(1);
  const TensorView& lengths = call.view(region.lengths_operand);
  if (row >= lengths.dim(0)) return 0;
  return std::clamp<int64_t>(lengths.load_index(lengths.offset(row)), 0, view.dim(1));
}

std::vector<int64_t> slots_written(const OpCall& call, const OperandSpec& spec, int operand, const LiveCounts& live) {
  std::vector<int64_t> result;
  if (spec.region.slots_operand < 0) return result;
  const CacheGeometry& geometry = *call.argument(operand).geometry;
  const TensorView& slots = call.view(spec.region.slots_operand);
  Region listed;
  listed.sum_operand = spec.region.sum_operand;
  const int64_t count = live_rows(call, listed, spec.region.slots_operand, live);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = slots.load_index(i);
    if (slot >= 0 && slot < geometry.slots) result.push_back(slot);
  }
  return result;
}

std::vector<int64_t> coordinates(const TensorView& view, int64_t row, int64_t flat_column) {
  if (view.rank == 1) return {row};
  if (view.rank == 2) return {row, flat_column};
  return {row, flat_column / view.dim(2), flat_column % view.dim(2)};
}

}  // namespace faultline
