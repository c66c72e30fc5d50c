#include "kernels/launch.h"

#include <set>
#include <vector>

#include "kernels/cache_rows.h"
#include "kernels/operand.h"
#include "testing.h"

using namespace faultline;
using namespace faultline::kernels;

namespace {

constexpr int kThreads = 32;

// Reverses an array through shared memory. Without the barrier between its phases a thread reads what another has not
// written yet.
template <bool kBarrier>
struct ReverseBody {
  using HostOnly = void;
  const int* in;
  int* out;

  template <class Block>
  void operator()(Block& block) const {
    int* staged = block.template shared<int>(kThreads);
    if constexpr (kBarrier) {
      block.for_each_thread([&](int t) { staged[t] = in[t]; });
      block.for_each_thread([&](int t) { out[t] = staged[kThreads - 1 - t]; });
    } else {
      block.for_each_thread([&](int t) {
        staged[t] = in[t];
        out[t] = staged[kThreads - 1 - t];
      });
    }
  }
};

template <bool kBarrier>
bool reverses(uint64_t seed) {
  std::vector<int> in(kThreads);
  std::vector<int> out(kThreads, 0);
  for (int i = 0; i < kThreads; ++i) in[static_cast<size_t>(i)] = 100 + i;
  launch(LaunchContext{.seed = seed}, Grid{}, kThreads, sizeof(int) * kThreads,
         ReverseBody<kBarrier>{in.data(), out.data()});
  return std::equal(in.begin(), in.end(), out.rbegin());
}

struct CountBody {
  using HostOnly = void;
  std::vector<int64_t>* seen;
  int* counter;

  template <class Block>
  void operator()(Block& block) const {
    seen->push_back(block.index(0) + 10 * block.index(1) + 100 * block.index(2));
    block.for_each_thread([&](int) { block.atomic_add(counter, 1); });
  }
};

struct ReduceBody {
  using HostOnly = void;
  float* sum;
  float* max;
  float nan_at;  // thread whose value is NaN, -1: none

  template <class Block>
  void operator()(Block& block) const {
    PerThread<float, Block> value(block);
    block.for_each_thread([&](int t) {
      value[t] = static_cast<float>(t) == nan_at ? float_from_bits(0x7FC00000u) : static_cast<float>(t);
    });
    *sum = block.sum(value);
    *max = block.max(value);
  }
};

struct PoisonBody {
  using HostOnly = void;
  bool* nan;

  template <class Block>
  void operator()(Block& block) const {
    const float* fresh = block.template shared<float>(4);
    *nan = fresh[0] != fresh[0] && fresh[3] != fresh[3];
  }
};

template <bool kChecked>
struct CopyBody {
  using HostOnly = void;
  Operand<float> in;
  Operand<float> out;
  int64_t shift;
  AccessLog* log;

  template <class Block>
  void operator()(Block& block) const {
    const auto from = open<kChecked>(in, log, block);
    const auto to = open<kChecked>(out, log, block);
    block.for_each_thread([&](int t) { to.store(t + shift, from.load(t)); });
  }
};

}  // namespace

TEST_CASE("a missing barrier shows under the random order of threads") {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CHECK(reverses<true>(seed));
    wrong += reverses<false>(seed) ? 0 : 1;
  }
  CHECK(wrong == 20);
}

TEST_CASE("the order of threads depends on the seed alone") {
  const auto order = [](uint64_t seed) {
    std::vector<int> seen;
    HostBlock block(Grid{}, 8, 0, seed);
    block.begin(0, 0, 0);
    block.for_each_thread([&](int t) { seen.push_back(t); });
    return seen;
  };
  CHECK(order(3) == order(3));
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 0; seed < 16; ++seed) orders.insert(order(seed));
  CHECK(orders.size() > 3);
}

TEST_CASE("every block of a grid runs once, with all its threads") {
  std::vector<int64_t> seen;
  int counter = 0;
  launch(LaunchContext{}, Grid{2, 3, 2}, 7, 0, CountBody{&seen, &counter});
  CHECK(seen.size() == 12);
  CHECK(std::set<int64_t>(seen.begin(), seen.end()).size() == 12);
  CHECK(counter == 12 * 7);
}

TEST_CASE("an empty grid runs nothing") {
  std::vector<int64_t> seen;
  int counter = 0;
  launch(LaunchContext{}, Grid{0}, 7, 0, CountBody{&seen, &counter});
  CHECK(counter == 0);
}

TEST_CASE("block reductions cover all threads, and a NaN is their maximum") {
  float sum = 0;
  float max = 0;
  launch(LaunchContext{}, Grid{}, 16, 0, ReduceBody{&sum, &max, -1});
  CHECK(sum == 120);
  CHECK(max == 15);
  launch(LaunchContext{}, Grid{}, 16, 0, ReduceBody{&sum, &max, 4});
  CHECK(max != max);
}

TEST_CASE("shared memory starts as NaN in every block") {
  bool nan = false;
  launch(LaunchContext{}, Grid{}, 4, 4 * sizeof(float), PoisonBody{&nan});
  CHECK(nan);
}

TEST_CASE("a checked view is silent while indices are in range") {
  std::vector<float> in(8, 2.5f);
  std::vector<float> out(8, 0.0f);
  AccessLog log;
  launch(LaunchContext{}, Grid{}, 8, 0, CopyBody<true>{{in.data(), 8, 0}, {out.data(), 8, 1}, 0, &log});
  CHECK(log.count == 0);
  CHECK(out == in);
}

TEST_CASE("a checked view drops a bad write and records its coordinate") {
  std::vector<float> in(8, 2.5f);
  std::vector<float> out(9, 0.0f);  // one more than the view may reach
  AccessLog log;
  launch(LaunchContext{}, Grid{}, 8, 0, CopyBody<true>{{in.data(), 8, 0}, {out.data(), 8, 1}, 1, &log});
  CHECK(log.count == 1);
  CHECK(log.first[0].operand == 1);
  CHECK(log.first[0].is_write == 1);
  CHECK(log.first[0].index == 8);
  CHECK(log.first[0].extent == 8);
  CHECK(log.first[0].thread == 7);
  CHECK(out[7] == 2.5f);
  CHECK(out[8] == 0.0f);
}

TEST_CASE("a bad read through a checked view is recorded and yields NaN") {
  std::vector<float> in(5, 1.0f);
  std::vector<float> out(8, 0.0f);
  AccessLog log;
  launch(LaunchContext{}, Grid{}, 8, 0, CopyBody<true>{{in.data(), 5, 0}, {out.data(), 8, 1}, 0, &log});
  CHECK(log.count == 3);
  CHECK(log.first[0].operand == 0);
  CHECK(log.first[0].is_write == 0);
  CHECK(log.first[0].index >= 5);
  for (size_t i = 0; i < 8; ++i) CHECK((out[i] != out[i]) == (i >= 5));
}

TEST_CASE("a record names the block") {
  AccessLog log;
  HostBlock block(Grid{4, 2}, 1, 0, 0);
  block.begin(3, 1, 0);
  uint8_t bytes[4] = {};
  const View<uint8_t, true> view(bytes, 4, 2, &log, block.place());
  CHECK(e4m3_is_nan(view.load_as<E4m3>(4).code));
  CHECK(view.load_as<float>(0) == 0);
  view.store_as<float>(1, 1.0f);
  CHECK(log.count == 2);
  CHECK(log.first[0].block == 7);
  CHECK(log.first[1].is_write == 1);
  CHECK(log.first[1].index == 1);
}

TEST_CASE("the log counts on past its capacity") {
  std::vector<float> in(1, 1.0f);
  std::vector<float> out(64, 0.0f);
  AccessLog log;
  launch(LaunchContext{}, Grid{}, 64, 0, CopyBody<true>{{in.data(), 1, 0}, {out.data(), 64, 1}, 0, &log});
  CHECK(log.count == 63);
}
