#include "bisect/screen_repeats.h"

#include <numeric>
#include <random>

#include "testing.h"

using namespace faultline;

namespace {

using Runs = std::vector<int64_t>;

RepeatedRow passed(int64_t runs) {
  return {{runs, 0}, "", true};
}
RepeatedRow failed(int64_t runs, int64_t failures, const std::string& signature = "mismatch at x") {
  return {{runs, failures}, signature, true};
}

}  // namespace

TEST_CASE("auto: of each signature the first row that showed it is repeated first, and nothing else") {
  CHECK(repeats_to_run({passed(1), failed(1, 1), failed(1, 1), failed(1, 1, "nan at y")}) == Runs{0, 4, 0, 4});
}

TEST_CASE("auto: where every failure is there each time a passing row needs four runs") {
  CHECK(repeats_to_run({passed(1), failed(5, 5), failed(1, 1)}) == Runs{3, 0, 0});
  CHECK(repeats_to_run({passed(4), failed(5, 5)}) == Runs{0, 0});
}

TEST_CASE("auto: where a failure is flaky a passing row needs 29 runs, a few at a time") {
  CHECK(repeats_to_run({passed(1), failed(5, 2)}) == Runs{8, 0});
  CHECK(repeats_to_run({passed(25), failed(5, 2)}) == Runs{4, 0});
  CHECK(repeats_to_run({passed(29), failed(5, 2)}) == Runs{0, 0});
}

TEST_CASE("auto: where nothing fails a row is called good after 29 runs") {
  CHECK(repeats_to_run({passed(1), passed(28)}) == Runs{8, 1});
  CHECK(repeats_to_run({passed(29), passed(29)}) == Runs{0, 0});
}

TEST_CASE("auto: a row that cannot run again is left alone") {
  CHECK(repeats_to_run({{{0, 0}, "", false}, passed(29)}) == Runs{0, 0});
  CHECK(repeats_to_run({{{1, 1}, "hang at x", false}, passed(4)}) == Runs{0, 0});
  CHECK(repeats_to_run({}).empty());
}

TEST_CASE("auto: a fault with a rate of 0.1 is seen in the row that has it at the stated level") {
  std::mt19937 random(11);  // seeded: the same draws each time
  std::bernoulli_distribution fails(0.1);
  int seen = 0;
  constexpr int kTimes = 400;
  for (int time = 0; time < kTimes; ++time) {
    RepeatedRow row = passed(0);
    for (int64_t more = 1; more > 0; more = repeats_to_run({row}).front())
      for (int64_t run = 0; run < more; ++run) {
        ++row.count.runs;
        if (!fails(random)) continue;
        ++row.count.failures;
        row.signature = "nan at y";
      }
    seen += row.count.failures > 0;
    CHECK(row.count.runs <= 29 + 8);
  }
  CHECK(seen >= kTimes * 93 / 100);
}
