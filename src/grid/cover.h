// Covering arrays: few rows that still hold every combination of values of any two (or three) columns.
#pragma once

#include <cstddef>
#include <vector>

namespace faultline {

// One row: its value's number in each column, from 0. All rows have the same columns.
using CodedRow = std::vector<int>;

inline constexpr size_t kMaxStrength = 3;

struct CoverQuery {
  size_t strength = 2;        // columns that are combined, 1 … kMaxStrength; where there are fewer, all of them
  std::vector<bool> allowed;  // one flag a row: may be chosen, and its combinations are to be held
  std::vector<bool> met;      // one flag a row: its combinations need no other row; empty: none
};

// Indices, ascending, of allowed rows that together with the rows that are `met` hold every combination that an allowed
// row holds. Chosen greedily, each row for what it adds, in several orders of rows that add as much; the shortest
// selection counts, and no row of it is needless. The same input gives the same output.
std::vector<size_t> cover(const std::vector<CodedRow>& rows, const CoverQuery& query);

// Whether nothing would be chosen.
bool is_covered(const std::vector<CodedRow>& rows, const CoverQuery& query);

}  // namespace faultline
