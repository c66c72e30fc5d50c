// `repeats: auto`: where another run of a configuration changes what is concluded. Pure functions.
//
// Each row runs once. Then, of each signature, the first row that showed it runs until it has failed five times of
// five (the fault is there each time, or nearly: a rate of 55 % or more, at 95 %), or until runs disagree (it is
// flaky). Then the rows that passed run until the lowest rate that the failures leave is excluded for them: four clean
// runs where every fault is there each time, 29 (kDesignFailureRate) where one is flaky or where nothing has failed. A
// row that fails on the way is a failing row from then on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/repeat_statistics.h"

namespace faultline {

struct RepeatedRow {
  RunCount count;
  std::string signature;  // of its first failure; empty: it has not failed
  bool open = true;       // may run again; false: guard, unsupported, skipped
};

// How many more runs each row should make now; all 0 when more would change nothing.
std::vector<int64_t> repeats_to_run(const std::vector<RepeatedRow>& rows);

}  // namespace faultline
