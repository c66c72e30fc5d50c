// One broken contract of one op, as the checks see it: no names yet, the engine knows those.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/op.h"

namespace faultline {

// How many rows of a pass are real: a padded graph replay has more rows than that.
struct LiveCounts {
  int64_t tokens = 0;
  int64_t requests = 0;
};

struct OpViolation {
  int operand = 0;
  std::string kind;            // a verdict name: nonfinite, bounds, unwritten, canary, mismatch, probability, layout
  std::vector<int64_t> index;  // coordinates in the operand; caches: [slot, column]
  std::string value;           // "nan", "-1", "3.5"
  uint32_t bits = 0;
  int64_t count = 0;           // elements that break the same contract
  std::string detail;          // one sentence
  bool setting = false;        // a gap to the model reference that the resolved row explains
  std::string attribute = {};  // of a setting: which of the op's attributes differs from the model's ("theta")
};

// "nan", "-nan" is never printed; infinities are "inf" and "-inf"; otherwise the shortest round-trip text.
std::string value_text(float value);

// The live rows of an operand in this call, at most its first dimension.
int64_t live_rows(const OpCall& call, const Region& region, int operand, const LiveCounts& live);
// The live columns of one row of an operand of rank 2 (all of them without a lengths operand).
int64_t live_columns(const OpCall& call, const Region& region, const TensorView& view, int64_t row);

// The slots of a cache operand that the live rows of a call write, in range only: a bad slot is the index check's
// business.
std::vector<int64_t> slots_written(const OpCall& call, const OperandSpec& spec, int operand, const LiveCounts& live);

// Calls visit(offset, row, flat column) for each live element of a non-cache operand; stops when it returns false.
template <class Visit>
void for_each_live(const OpCall& call, const OperandSpec& spec, int operand, const LiveCounts& live, Visit&& visit) {
  const TensorView& view = call.view(operand);
  const int64_t rows = live_rows(call, spec.region, operand, live);
  for (int64_t row = 0; row < rows; ++row) {
    if (view.rank == 1) {
      if (!visit(view.offset(row), row, int64_t{0})) return;
      continue;
    }
    if (view.rank == 2) {
      const int64_t columns = live_columns(call, spec.region, view, row);
      for (int64_t column = 0; column < columns; ++column)
        if (!visit(view.offset(row, column), row, column)) return;
      continue;
    }
    for (int64_t i = 0; i < view.dim(1); ++i)
      for (int64_t j = 0; j < view.dim(2); ++j)
        if (!visit(view.offset(row, i, j), row, i * view.dim(2) + j)) return;
  }
}

// [row], [row, column] or [row, i, j].
std::vector<int64_t> coordinates(const TensorView& view, int64_t row, int64_t flat_column);

}  // namespace faultline
