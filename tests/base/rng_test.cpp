#include "base/rng.h"

#include <cmath>

#include "testing.h"

using namespace faultline;

TEST_CASE("streams are splitmix64") {
  // The first outputs of the published generator with seed 0.
  constexpr CounterRng rng(0);
  CHECK(rng.bits(0) == 0xE220A8397B1DCDAFu);
  CHECK(rng.bits(1) == 0x6E789E6AA1B965F4u);
}

TEST_CASE("streams differ by seed and by name, and only by these") {
  CHECK(stream_key(1, "a") == stream_key(1, "a"));
  CHECK(stream_key(1, "a") != stream_key(2, "a"));
  CHECK(stream_key(1, "a") != stream_key(1, "b"));
}

TEST_CASE("uniform and bounded values stay in their ranges and use them") {
  const CounterRng rng(7, "uniform");
  double sum = 0;
  int64_t counts[10] = {};
  constexpr int kDraws = 20000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const float u = rng.uniform(i);
    REQUIRE((u >= 0.0f && u < 1.0f));
    sum += u;
    const uint64_t below = rng.below(i, 10);
    REQUIRE(below < 10);
    ++counts[below];
  }
  CHECK(std::fabs(sum / kDraws - 0.5) < 0.01);
  for (const int64_t count : counts) CHECK(std::fabs(static_cast<double>(count) - kDraws / 10.0) < 200);
}

TEST_CASE("normal values have mean 0 and variance 1") {
  const CounterRng rng(7, "normal");
  double sum = 0;
  double squares = 0;
  constexpr int kDraws = 50000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double value = rng.normal(i);
    REQUIRE(std::fabs(value) < 3.48);
    sum += value;
    squares += value * value;
  }
  CHECK(std::fabs(sum / kDraws) < 0.02);
  CHECK(std::fabs(squares / kDraws - 1) < 0.02);
}
