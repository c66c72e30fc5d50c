#include "base/repeat_statistics.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace faultline {
namespace {

// P(X = k) of the binomial distribution, for 0 < rate < 1.
double exactly(int64_t runs, int64_t failures, double rate) {
  const auto n = static_cast<double>(runs);
  const auto k = static_cast<double>(failures);
  const double ways = std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
  return std::exp(ways + k * std::log(rate) + (n - k) * std::log1p(-rate));
}

double at_most(int64_t runs, int64_t failures, double rate) {
  double sum = 0;
  for (int64_t k = 0; k <= failures; ++k) sum += exactly(runs, k, rate);
  return std::min(sum, 1.0);
}

// The rate at which `holds` turns from true to false.
template <class Holds>
double turning_point(Holds&& holds) {
  constexpr int kHalvings = 60;  // more than a double has digits between 0 and 1
  double low = 0;
  double high = 1;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (holds(middle) ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

int64_t clean_runs_needed(double rate, double level) {
  FAULTLINE_CHECK(rate > 0 && level > 0 && level < 1);
  if (rate >= 1) return 1;
  const double missed = 1 - level;
  auto runs = std::max<int64_t>(1, std::llround(std::log(missed) / std::log1p(-rate)));
  while (runs > 1 && std::pow(1 - rate, static_cast<double>(runs - 1)) <= missed) --runs;
  while (std::pow(1 - rate, static_cast<double>(runs)) > missed) ++runs;
  return runs;
}

double rate_at_least(const RunCount& count, double level) {
  if (count.failures <= 0) return 0;
  return turning_point([&](double rate) { return 1 - at_most(count.runs, count.failures - 1, rate) <= 1 - level; });
}

double rate_at_most(const RunCount& count, double level) {
  if (count.failures >= count.runs) return 1;
  return turning_point([&](double rate) { return at_most(count.runs, count.failures, rate) > 1 - level; });
}

}  // namespace faultline
