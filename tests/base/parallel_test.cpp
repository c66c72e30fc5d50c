#include "base/parallel.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "testing.h"

using namespace faultline;

namespace {
struct Threads {
  explicit Threads(int count) { set_parallel_threads(count); }
  ~Threads() { set_parallel_threads(1); }
};
}  // namespace

TEST_CASE("every index is worked on once, however many threads there are") {
  for (const int threads : {1, 2, 5}) {
    const Threads set(threads);
    for (const int64_t count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      parallel_for(count, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; });
      for (const auto& times : seen) REQUIRE(times == 1);
    }
  }
}

TEST_CASE("one thread works in its caller alone") {
  const auto me = std::this_thread::get_id();
  parallel_for(100, [&](int64_t) { REQUIRE(std::this_thread::get_id() == me); });
}

TEST_CASE("a loop within a loop is done, in the thread that began it") {
  const Threads set(3);
  std::atomic<int> sum{0};
  parallel_for(8, [&](int64_t) {
    const auto me = std::this_thread::get_id();
    parallel_for(10, [&](int64_t) { sum += std::this_thread::get_id() == me ? 1 : 1000; });
  });
  CHECK(sum == 80);
}

TEST_CASE("loops that two threads begin at once are both done") {
  const Threads set(2);
  std::atomic<int> sum{0};
  const auto loops = [&] {
    for (int n = 0; n < 200; ++n) parallel_for(16, [&](int64_t) { ++sum; });
  };
  std::thread other(loops);
  loops();
  other.join();
  CHECK(sum == 2 * 200 * 16);
}
