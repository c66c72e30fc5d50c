#include "base/repeat_statistics.h"

#include <cmath>

#include "testing.h"

using namespace faultline;

TEST_CASE("29 clean runs call something good at 95 % and a failure rate of 10 %") {
  CHECK(clean_runs_needed(0.10) == 29);
  CHECK(std::pow(0.9, 29) <= 0.05);
  CHECK(std::pow(0.9, 28) > 0.05);
}

TEST_CASE("the clean runs needed are the fewest that exclude the rate") {
  CHECK(clean_runs_needed(1.0) == 1);
  CHECK(clean_runs_needed(0.95) == 1);
  CHECK(clean_runs_needed(0.94) == 2);
  CHECK(clean_runs_needed(0.5) == 5);
  CHECK(clean_runs_needed(0.5, 0.5) == 1);
  for (const double rate : {0.9, 0.6, 0.33, 0.2, 0.07, 0.01, 0.001}) {
    const int64_t runs = clean_runs_needed(rate);
    CHECK(std::pow(1 - rate, static_cast<double>(runs)) <= 0.05);
    CHECK(std::pow(1 - rate, static_cast<double>(runs - 1)) > 0.05);
  }
}

TEST_CASE("runs that all failed, or none, bound the rate by a root of the level") {
  for (const int64_t runs : {1, 2, 4, 5, 29}) {
    const double root = std::pow(0.05, 1.0 / static_cast<double>(runs));
    CHECK(rate_at_least({runs, runs}) == Approx(root).epsilon(1e-9));
    CHECK(rate_at_most({runs, 0}) == Approx(1 - root).epsilon(1e-9));
    CHECK(rate_at_least({runs, 0}) == 0);
    CHECK(rate_at_most({runs, runs}) == 1);
  }
  CHECK(rate_at_least({0, 0}) == 0);
  CHECK(rate_at_most({0, 0}) == 1);
  CHECK(rate_at_most({29, 0}) < kDesignFailureRate);
  CHECK(rate_at_most({28, 0}) > kDesignFailureRate);
}

TEST_CASE("bounds of mixed runs are those of Clopper and Pearson") {
  // One-sided bounds at 95 % are the ends of the two-sided interval at 90 %; for 5 of 10 that is 0.2224 … 0.7776.
  CHECK(rate_at_least({10, 5}) == Approx(0.22244).epsilon(1e-4));
  CHECK(rate_at_most({10, 5}) == Approx(1 - 0.22244).epsilon(1e-4));
  // For 1 of 20 P(X >= 1) = 1 - (1 - p)^20 = 0.05.
  CHECK(rate_at_least({20, 1}) == Approx(1 - std::pow(0.95, 1.0 / 20)).epsilon(1e-9));
}

TEST_CASE("more failures raise both bounds, and more clean runs lower them") {
  CHECK(rate_at_least({50, 6}) > rate_at_least({50, 5}));
  CHECK(rate_at_most({50, 6}) > rate_at_most({50, 5}));
  CHECK(rate_at_least({60, 5}) < rate_at_least({50, 5}));
  CHECK(rate_at_most({60, 5}) < rate_at_most({50, 5}));
}

TEST_CASE("runs are mixed when some failed and some did not") {
  CHECK(RunCount{3, 1}.mixed());
  CHECK_FALSE(RunCount{3, 3}.mixed());
  CHECK_FALSE(RunCount{3, 0}.mixed());
  CHECK_FALSE(RunCount{}.mixed());
}
