// What repeated runs of something that may fail at random prove. Runs are taken to fail independently of one another,
// each with the same probability, the failure rate.
#pragma once

#include <cstdint>

namespace faultline {

// The level at which anything is called good, necessary or gone: a statement that is wrong in at most one case of 20.
inline constexpr double kConfidenceLevel = 0.95;
// Something is called good when a failure rate of this or more is excluded at that level. Rarer faults can be missed.
inline constexpr double kDesignFailureRate = 0.10;

struct RunCount {
  int64_t runs = 0;
  int64_t failures = 0;

  RunCount& operator+=(const RunCount& other) {
    runs += other.runs;
    failures += other.failures;
    return *this;
  }
  // Runs disagree: the failure is not there each time.
  bool mixed() const { return failures > 0 && failures < runs; }
  bool operator==(const RunCount&) const = default;
};

// The fewest clean runs after which a failure rate of `rate` (above 0) or more is excluded at `level`: the smallest n
// with (1 - rate)^n <= 1 - level. 29 for a rate of 0.1 at 0.95: 0.9^29 = 0.0471, 0.9^28 = 0.0523.
int64_t clean_runs_needed(double rate, double level = kConfidenceLevel);

// One-sided exact bounds of the failure rate after `count` (Clopper and Pearson, Biometrika 26, 1934): the rate at
// which that many failures or more have the probability 1 - level (0 without failures), and the rate at which that many
// or fewer have it (1 where every run failed, and without runs). After n runs that all failed the first is
// (1 - level)^(1/n); after n clean ones the second is 1 - (1 - level)^(1/n).
double rate_at_least(const RunCount& count, double level = kConfidenceLevel);
double rate_at_most(const RunCount& count, double level = kConfidenceLevel);

}  // namespace faultline
