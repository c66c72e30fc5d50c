#include "engine/op_contract.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <set>

#include "check/inspect.h"
#include "check/layout.h"
#include "check/poison.h"
#include "ops/kinds.h"

namespace faultline {

NeighbourSum::NeighbourSum(const OpCall& call, const OperandSpec& spec, int operand)
    : argument_(call.argument(operand)) {
  const CacheGeometry& geometry = *argument_.geometry;
  const TensorView& slots = call.view(spec.region.slots_operand);
  for (int64_t i = 0; i < slots.elements(); ++i) {
    const int64_t slot = slots.load_index(i);
    if (slot >= 0 && slot < geometry.slots) written_.insert(slot);
  }
  for (const int64_t slot : written_) pages_.insert(slot / geometry.page_size);
  before_ = sum();
}

int64_t NeighbourSum::changed() const {
  const auto after = sum();
  size_t i = 0;
  for (const int64_t page : pages_) {
    if (after[i] != before_[i]) return page;
    ++i;
  }
  return -1;
}

std::vector<uint64_t> NeighbourSum::sum() const {
  const CacheGeometry& geometry = *argument_.geometry;
  std::vector<uint64_t> sums;
  for (const int64_t page : pages_) {
    uint64_t sum = 0;
    for (int64_t slot = page * geometry.page_size; slot < (page + 1) * geometry.page_size; ++slot) {
      if (written_.count(slot) != 0) continue;
      for (const ByteRange& range : slot_bytes(geometry, slot))
        if (range.end > range.begin)
          sum = XXH64(argument_.view().data + range.begin, static_cast<size_t>(range.end - range.begin), sum);
    }
    sums.push_back(sum);
  }
  return sums;
}

bool is_checked_output(const OperandSpec& spec) {
  return spec.direction == Direction::kOut && spec.content != Content::kScratch;
}

std::optional<OpViolation> check_operand(const Op& op, const OpCall& call, int i, const LiveCounts& live,
                                         CheckLevel level) {
  const OperandSpec& spec = op.kind->operands[static_cast<size_t>(i)];
  switch (spec.content) {
    case Content::kValues:
    case Content::kE4m3Scales:
      return find_nonfinite(call, spec, i, live);
    case Content::kProbabilities: {
      auto found = find_nonfinite(call, spec, i, live);
      return found ? found : find_bad_probability(call, spec, i, live);
    }
    case Content::kIndices:
      if (level < CheckLevel::kFull) return std::nullopt;
      return find_bad_index(call, spec, op.index_rules[static_cast<size_t>(i)], i, live);
    case Content::kCache: {
      return find_nonfinite_slots(call.argument(i), *call.argument(i).geometry, i, slots_written(call, spec, i, live));
    }
    case Content::kMetadata:
    case Content::kFp4Codes:
    case Content::kWeight:
    case Content::kScratch:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<OpViolation> check_outputs(const Op& op, const OpCall& call, const LiveCounts& live, CheckLevel level,
                                         bool poisoned) {
  for (int i = 0; i < static_cast<int>(op.kind->operands.size()); ++i) {
    const OperandSpec& spec = op.kind->operands[static_cast<size_t>(i)];
    if (!is_checked_output(spec) || !call.argument(i).present()) continue;
    if (poisoned && level >= CheckLevel::kFull) {
      if (auto found = find_unwritten(call, spec, i, live)) return found;
    }
    if (auto found = check_operand(op, call, i, live, level)) return found;
  }
  return std::nullopt;
}

namespace {

// Where each expert has an input scale of its own, those of the experts that tokens are routed to.
std::optional<OpViolation> check_expert_scales(const OpCall& call) {
  using Q = ops::QuantizeFp4Experts;
  const Argument& scales = call.argument(Q::kInputScale);
  const auto stacked = static_cast<size_t>(call.attr().integer("stacked"));
  const TensorView& ids = call.view(Q::kIds);
  std::set<size_t> used;
  for (int64_t t = 0; t < ids.dim(0); ++t)
    for (int64_t j = 0; j < ids.dim(1); ++j) used.insert(static_cast<size_t>(ids.load_index(ids.offset(t, j))));
  for (const size_t expert : used) {
    if (expert >= scales.views.size() / stacked) continue;  // no such expert: the check of indices says so
    Argument own = scales;
    own.views = scales.views.subspan(expert * stacked, stacked);
    auto found = find_bad_scalar_scale(own, Q::kInputScale, true);
    if (!found) continue;
    found->index.front() += static_cast<int64_t>(expert * stacked);
    return found;
  }
  return std::nullopt;
}

}  // namespace

std::optional<OpViolation> check_scales(const Op& op, const OpCall& call, bool indices_are_there) {
  if (op.kind->name == ops::QuantizeFp4Experts::kName)
    return indices_are_there ? check_expert_scales(call) : std::nullopt;
  for (int o = 0; o < op.arguments.size(); ++o) {
    const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
    if (spec.content != Content::kWeight || !call.argument(o).present()) continue;
    const bool input_scale = spec.name == "input_scale";
    const bool scale = input_scale || spec.name == "global_scale" || spec.name == "block_scale";
    if (!scale) continue;
    if (auto found = find_bad_scalar_scale(call.argument(o), o, input_scale)) return found;
  }
  return std::nullopt;
}

bool has_layout_conflict(const Op& op) {
  for (int o = 0; o < op.arguments.size(); ++o) {
    const auto& written = op.written[static_cast<size_t>(o)];
    if (written && op.kind->operands[static_cast<size_t>(o)].direction == Direction::kIn &&
        !same_layout(*op.arguments[o].geometry, *written))
      return true;
  }
  return false;
}

std::optional<OpViolation> check_layouts(const Op& op, const OpCall& call, const LiveCounts& live) {
  for (int o = 0; o < op.arguments.size(); ++o) {
    const auto& written = op.written[static_cast<size_t>(o)];
    const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
    if (!written || spec.direction != Direction::kIn || same_layout(*call.argument(o).geometry, *written)) continue;
    if (auto found = find_layout_conflict(call.argument(o), *written, o, slots_read(call, *op.kind, o, live)))
      return found;
  }
  return std::nullopt;
}

}  // namespace faultline
