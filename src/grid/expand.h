// The rows of a grid, and a small selection of them that still meets every pair of values.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/error.h"
#include "grid/experiment.h"
#include "report/findings.h"

namespace faultline {

inline constexpr size_t kMaxRows = 100000;

struct GridRow {
  std::string id;   // "c001": the row's place in the whole product, so that an exclusion renumbers nothing
  AxisValues axes;  // the experiment's axes only
};

struct Grid {
  std::vector<GridRow> rows;      // to be looked at
  std::vector<GridRow> excluded;  // by the experiment
};

// The product of the axes in file order, the last one changing fastest, or the rows as listed. Bad input: more than
// kMaxRows rows, or none left.
Result<Grid> expand_grid(const Experiment& experiment);

// `strategy: pairs`: indices, ascending, of allowed rows which together hold every pair of values of two axes that any
// allowed row holds (a covering array of strength 2, cover.h). `allowed` has one flag a row.
std::vector<size_t> covering_rows(const std::vector<GridRow>& rows, const std::vector<bool>& allowed);

}  // namespace faultline
