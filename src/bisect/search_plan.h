// `strategy: adaptive`: which rows of a grid to run next, as a pure function of what is known of it (docs/search.md).
//
//   1. Screen a covering array: every pair of values that a runnable row holds, in a row that ran.
//   2. For each failing row that nothing found explains: one factor at a time, toward the nearest passing row first.
//   3. Confirm what was found by rows that share the combination and nothing else, as far as the grid has them.
//   4. Screen what the failures hid: every pair of values of the rows outside the combinations found, in a row that
//      passed. Where nothing failed, or little more is asked for, every triple.
// Ends when all of this is done, so that the combinations are those of the full grid wherever a failure needs no more
// settings at once than the strength that covered_strength() gives.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bisect/search.h"

namespace faultline {

struct SearchStep {
  std::string phase;         // for the status line: "screening pairs"
  std::vector<size_t> rows;  // indices into the grid, ascending; empty: nothing is left to run
};

// `grid`: all rows of one pass over the grid, RowStatus::kNotRun where they could be run and were not. `unplanted`, for
// the pass of a plant: those of the unplanted pass, whose failures are not the plant's.
SearchStep rows_to_run_next(const std::vector<SearchRow>& grid, const std::vector<SearchRow>& unplanted = {});

// How many settings at once are covered: every combination of so many values that a runnable row outside the failing
// combinations holds was in a row that passed, or that resolves to the same as one. The number of axes where every row
// ran; 0 where not even single values are covered.
size_t covered_strength(const std::vector<SearchRow>& grid, const std::vector<SearchRow>& unplanted = {});

}  // namespace faultline
