#include "check/inspect.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "ops/kinds.h"

namespace faultline {
namespace {

constexpr double kProbabilitySumTolerance = 1e-3;  // float sums over a vocabulary of 155k: error far below

void note(std::optional<OpViolation>& found, int operand, const char* kind, std::vector<int64_t> index, float value,
          uint32_t bits, std::string detail) {
  if (!found)
    found = OpViolation{operand, kind, std::move(index), value_text(value), bits, 0, std::move(detail), false};
  ++found->count;
}

// Whose request a token row or request row belongs to, and how many keys of it may be pointed at.
struct Owner {
  const TensorView* page_table = nullptr;
  int64_t row = 0;
  int64_t length = 0;

  bool owns(int64_t slot) const {
    for (int64_t c = 0; c < std::min(length, page_table->dim(1)); ++c)
      if (page_table->load_index(page_table->offset(row, c)) == slot) return true;
    return false;
  }
};

std::optional<Owner> owner_of(const OpCall& call, const IndexRule& rule, int64_t row) {
  if (rule.page_table_operand < 0 || !call.argument(rule.page_table_operand).present()) return std::nullopt;
  Owner owner;
  owner.page_table = &call.view(rule.page_table_operand);
  const TensorView& map = call.view(rule.row_to_request_operand);
  owner.row = map.load_index(map.offset(row));
  if (owner.row < 0 || owner.row >= owner.page_table->dim(0)) return std::nullopt;
  const TensorView& lengths = call.view(rule.owner_lengths_operand);
  owner.length = lengths.load_index(lengths.offset(row));
  return owner;
}

}  // namespace

std::optional<OpViolation> find_nonfinite(const OpCall& call, const OperandSpec& spec, int operand,
                                          const LiveCounts& live) {
  const TensorView& view = call.view(operand);
  std::optional<OpViolation> found;
  const bool bytes = spec.content == Content::kE4m3Scales;
  for_each_live(call, spec, operand, live, [&](int64_t at, int64_t row, int64_t column) {
    if (bytes) {
      const uint8_t code = view.as<uint8_t>()[at];
      if (e4m3_is_nan(code))
        note(found, operand, "nonfinite", coordinates(view, row, column), e4m3_to_float(code), code,
             "an e4m3 block scale is NaN (0x7F or 0xFF)");
      return true;
    }
    const float value = view.load(at);
    if (!std::isfinite(value))
      note(found, operand, "nonfinite", coordinates(view, row, column), value, raw_bits(view, at),
           "a value is not finite");
    return true;
  });
  return found;
}

std::optional<OpViolation> find_nonfinite_slots(const Argument& argument, const CacheGeometry& geometry, int operand,
                                                const std::vector<int64_t>& slots) {
  std::optional<OpViolation> found;
  std::vector<float> row(static_cast<size_t>(geometry.width()));
  for (const int64_t slot : slots) {
    decode_slot(geometry, argument.view().data, slot, row.data());
    for (int64_t column = 0; column < geometry.width(); ++column) {
      const float value = row[static_cast<size_t>(column)];
      if (!std::isfinite(value))
        note(found, operand, "nonfinite", {slot, column}, value, float_bits(value),
             fmt::format("slot {} of the cache decodes to a value that is not finite", slot));
    }
  }
  return found;
}

std::optional<OpViolation> find_bad_probability(const OpCall& call, const OperandSpec& spec, int operand,
                                                const LiveCounts& live) {
  const TensorView& view = call.view(operand);
  std::optional<OpViolation> found;
  const int64_t rows = live_rows(call, spec.region, operand, live);
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t column = 0; column < view.dim(1); ++column) {
      const int64_t at = view.offset(row, column);
      const float value = view.load(at);
      if (!(value >= 0))
        note(found, operand, "probability", {row, column}, value, raw_bits(view, at),
             "a probability is negative or NaN");
      sum += value;
    }
    if (!found && !(std::abs(sum - 1) <= kProbabilitySumTolerance))
      note(found, operand, "probability", {row}, static_cast<float>(sum), float_bits(static_cast<float>(sum)),
           fmt::format("the probabilities of row {} sum to {}", row, sum));
  }
  return found;
}

std::optional<OpViolation> find_bad_index(const OpCall& call, const OperandSpec& spec, const IndexRule& rule,
                                          int operand, const LiveCounts& live) {
  const TensorView& view = call.view(operand);
  std::optional<OpViolation> found;
  const int64_t rows = live_rows(call, spec.region, operand, live);
  const bool flat = view.rank == 1;
  const auto bad = [&](int64_t row, int64_t column, int64_t value, std::string detail) {
    note(found, operand, "bounds", flat ? std::vector<int64_t>{row} : std::vector<int64_t>{row, column},
         static_cast<float>(value), static_cast<uint32_t>(value), std::move(detail));
    if (found->count == 1) found->value = fmt::format("{}", value);
  };
  std::unordered_set<int64_t> seen;
  for (int64_t row = 0; row < rows; ++row) {
    if (!flat || row == 0) seen.clear();
    const int64_t columns = flat ? 1 : live_columns(call, spec.region, view, row);
    int64_t expected = columns;
    if (rule.count_lengths_operand >= 0) {
      const TensorView& lengths = call.view(rule.count_lengths_operand);
      expected = std::clamp<int64_t>(lengths.load_index(lengths.offset(row)), 0, columns);
    }
    const std::optional<Owner> owner = owner_of(call, rule, row);
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t value = view.load_index(flat ? view.offset(row) : view.offset(row, column));
      if (rule.minus_one_tail && column >= expected) {
        if (value != -1)
          bad(row, column, value, fmt::format("row {} has {} valid entries; the tail must be -1", row, expected));
        continue;
      }
      if (value < rule.begin || value >= rule.end) {
        bad(row, column, value,
            value == -1 && rule.minus_one_tail
                ? fmt::format("-1 inside the valid prefix of row {} ({} entries)", row, expected)
                : fmt::format("outside [{}, {})", rule.begin, rule.end));
        continue;
      }
      if (rule.unique && !seen.insert(value).second) {
        bad(row, column, value, fmt::format("row {} holds this entry twice", row));
        continue;
      }
      if (owner && !owner->owns(value))
        bad(row, column, value, fmt::format("slot {} is not in the pages of request row {}", value, owner->row));
    }
  }
  return found;
}

std::optional<OpViolation> find_bad_scale(const Argument& argument, int operand) {
  std::optional<OpViolation> found;
  for (size_t i = 0; i < argument.views.size(); ++i) {
    const TensorView& view = argument.views[i];
    if (view.data == nullptr) continue;
    const bool codes = view.dtype == Dtype::kF8E4M3 && view.rank == 2;
    if (!codes && view.dtype != Dtype::kF32) continue;
    for (int64_t at = 0; at < view.elements(); ++at) {
      if (codes) {
        const uint8_t code = view.as<uint8_t>()[at];
        if (e4m3_is_nan(code))
          note(found, operand, "nonfinite", {static_cast<int64_t>(i), at / view.dim(1), at % view.dim(1)},
               e4m3_to_float(code), code, "a block scale of the checkpoint is NaN");
        continue;
      }
      const float value = view.as<float>()[at];
      if (!(value > 0) || !std::isfinite(value))
        note(found, operand, "nonfinite", {static_cast<int64_t>(i), at}, value, float_bits(value),
             "a scale of the checkpoint is zero, negative or not finite (its reciprocal is what the kernel multiplies "
             "with)");
    }
  }
  return found;
}

std::optional<OpViolation> find_bad_scalar_scale(const Argument& argument, int operand, bool maximum_of_list) {
  std::optional<OpViolation> found;
  float largest = 0;
  size_t at = 0;
  bool any = false;
  const auto usable = [](float value) { return value > 0 && std::isfinite(value); };
  const auto report = [&](size_t i, float value) {
    note(found, operand, "nonfinite", {static_cast<int64_t>(i)}, value, float_bits(value),
         fmt::format("a scale of the checkpoint is {}: the kernel multiplies with it or its reciprocal",
                     value_text(value)));
  };
  for (size_t i = 0; i < argument.views.size(); ++i) {
    const TensorView& view = argument.views[i];
    if (view.data == nullptr || view.dtype != Dtype::kF32 || view.elements() != 1) continue;
    const float value = view.as<float>()[0];
    if (!any || !(value <= largest)) {
      largest = value;
      at = i;
    }
    any = true;
    if (!maximum_of_list && !usable(value)) report(i, value);
  }
  if (maximum_of_list && any && !usable(largest)) report(at, largest);
  return found;
}

std::vector<int64_t> slots_read(const OpCall& call, const OpKind& kind, int operand, const LiveCounts& live) {
  const Argument& argument = call.argument(operand);
  const CacheGeometry& geometry = *argument.geometry;
  std::vector<int64_t> result;
  std::unordered_set<int64_t> seen;
  const auto add = [&](int64_t slot) {
    if (slot >= 0 && slot < geometry.slots && seen.insert(slot).second) result.push_back(slot);
  };
  const auto add_table = [&](int table_operand, int lengths_operand, int map_operand) {
    const TensorView& table = call.view(table_operand);
    const TensorView& lengths = call.view(lengths_operand);
    const TensorView& map = call.view(map_operand);
    for (int64_t row = 0; row < std::min(live.tokens, lengths.dim(0)); ++row) {
      const int64_t request = map.load_index(row);
      if (request < 0 || request >= table.dim(0)) continue;
      const int64_t length = std::min(lengths.load_index(row), table.dim(1));
      for (int64_t c = 0; c < length; ++c) add(table.load_index(table.offset(request, c)));
    }
  };
  if (kind.name == ops::Attention::kName) {
    if (!call.attr().flag("dense")) {
      const TensorView& indices = call.view(ops::Attention::kIndices);
      for (int64_t row = 0; row < std::min(live.tokens, indices.dim(0)); ++row)
        for (int64_t c = 0; c < indices.dim(1); ++c) add(indices.load_index(indices.offset(row, c)));
    } else if (call.attr().integer("index_form") == 1) {
      add_table(ops::Attention::kPageTable, ops::Attention::kLengths, ops::Attention::kRowToRequest);
    } else {
      for (int64_t slot = 0; slot < geometry.slots; ++slot) add(slot);
    }
  } else if (kind.name == ops::IndexScores::kName) {
    add_table(ops::IndexScores::kPageTable, ops::IndexScores::kLengths, ops::IndexScores::kRowToRequest);
  } else {
    const Region& region = kind.operands[static_cast<size_t>(operand)].region;
    if (region.slots_operand >= 0) {
      const TensorView& slots = call.view(region.slots_operand);
      // Gathers list the slots of all requests: as many as their lengths sum to.
      Region listed;
      listed.rows = Rows::kAll;
      listed.sum_operand = region.sum_operand;
      const int64_t count = live_rows(call, listed, region.slots_operand, live);
      for (int64_t i = 0; i < count; ++i) add(slots.load_index(i));
    }
  }
  return result;
}

}  // namespace faultline
