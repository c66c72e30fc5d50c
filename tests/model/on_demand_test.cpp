#include "model/on_demand.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "fixtures.h"
#include "model/checkpoint.h"

using namespace faultline;
using fixtures::mentions;

namespace {

constexpr uint64_t kFrame = OnDemandWeights::kFrame;

// Tensor t holds bytes that tell tensor and position.
std::byte value_of(size_t tensor, uint64_t at) {
  return static_cast<std::byte>(tensor * 41 + at / 1000 + at % 251 + 1);
}

struct Made {
  std::atomic<int> calls{0};
  std::unique_ptr<OnDemandWeights> weights;

  Made(const std::vector<uint64_t>& sizes, uint64_t frames,
       OnDemandWeights::Keep keep = OnDemandWeights::Keep::kWhatFits) {
    auto created = OnDemandWeights::create(
        sizes,
        [this](size_t tensor, uint64_t first, std::span<std::byte> out) {
          ++calls;
          for (uint64_t i = 0; i < out.size(); ++i) out[i] = value_of(tensor, first + i);
        },
        frames * kFrame, keep);
    REQUIRE(created);
    weights = std::move(*created);
    calls = 0;
  }
  Status need(std::initializer_list<WeightRange> ranges) {
    return need_weights(std::span<const WeightRange>(ranges.begin(), ranges.size()));
  }
  WeightRange whole(size_t tensor, uint64_t bytes) const { return {weights->place(tensor), bytes}; }
  bool right(size_t tensor, uint64_t bytes) const {
    for (uint64_t i = 0; i < bytes; i += 997)
      if (weights->place(tensor)[i] != value_of(tensor, i)) return false;
    return weights->place(tensor)[bytes - 1] == value_of(tensor, bytes - 1);
  }
};

}  // namespace

TEST_CASE("small tensors are always there, large ones once they were asked for") {
  constexpr uint64_t kLarge = kFrame + 12'345;
  Made made({1000, kLarge, 64}, 8);
  CHECK(made.right(0, 1000));
  CHECK(made.right(2, 64));
  REQUIRE(made.need({made.whole(1, kLarge)}));
  CHECK(made.right(1, kLarge));
  CHECK(made.calls == 2);  // two frames
  REQUIRE(made.need({made.whole(1, kLarge)}));
  CHECK(made.calls == 2);
}

TEST_CASE("a part of a tensor brings the frames that it lies in, no others") {
  Made made({4 * kFrame}, 8);
  REQUIRE(made.need({{made.weights->place(0) + kFrame + 5, 10}}));
  CHECK(made.calls == 1);
  CHECK(made.weights->place(0)[kFrame + 5] == value_of(0, kFrame + 5));
}

TEST_CASE("what was used longest ago makes room, and comes back with the same bytes at the same place") {
  const std::vector<uint64_t> sizes(5, kFrame);
  Made made(sizes, 3);
  for (const size_t tensor : {0, 1, 2}) REQUIRE(made.need({made.whole(tensor, kFrame)}));
  REQUIRE(made.need({made.whole(0, kFrame)}));
  REQUIRE(made.need({made.whole(3, kFrame)}));  // in 1's memory
  CHECK(made.calls == 4);
  CHECK(made.right(0, kFrame));
  CHECK(made.right(2, kFrame));
  CHECK(made.right(3, kFrame));
  REQUIRE(made.need({made.whole(0, kFrame), made.whole(2, kFrame), made.whole(3, kFrame)}));
  CHECK(made.calls == 4);
  REQUIRE(made.need({made.whole(1, kFrame)}));
  CHECK(made.calls == 5);
  CHECK(made.right(1, kFrame));
  CHECK(made.weights->statistics().resident_bytes < 4 * kFrame);
}

TEST_CASE("places that were used and given up leave no mapping behind: a process may have some 65530") {
  constexpr size_t kTensors = 240;
  Made made(std::vector<uint64_t>(kTensors, kFrame), 4);
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  for (size_t tensor = 0; tensor < 20; tensor += 2) REQUIRE(made.need({made.whole(tensor, kFrame)}));
  const auto before = mappings();
  for (size_t tensor = 20; tensor < kTensors; tensor += 2) REQUIRE(made.need({made.whole(tensor, kFrame)}));
  CHECK(mappings() < before + 20);
  CHECK(made.right(kTensors - 2, kFrame));
}

TEST_CASE("what one call needs never makes room for another part of it") {
  Made made({kFrame, kFrame, 2 * kFrame}, 3);
  REQUIRE(made.need({made.whole(0, kFrame), made.whole(1, kFrame)}));
  REQUIRE(made.need({made.whole(2, 2 * kFrame), made.whole(0, kFrame)}));
  CHECK(made.right(0, kFrame));
  CHECK(made.right(2, 2 * kFrame));
}

TEST_CASE("more than the budget at once is refused, and what was there stays good") {
  Made made({kFrame, 3 * kFrame}, 2);
  REQUIRE(made.need({made.whole(0, kFrame)}));
  const Status refused = made.need({made.whole(1, 3 * kFrame)});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().kind == ErrorKind::kCannotRun);
  CHECK(mentions(refused.error().message, "--host-memory"));
  CHECK(made.right(0, kFrame));
  REQUIRE(made.need({{made.weights->place(1), kFrame}}));
  CHECK(made.weights->place(1)[7] == value_of(1, 7));
}

TEST_CASE("keeping only the latest takes no more memory than the largest call") {
  const std::vector<uint64_t> sizes(6, kFrame);
  Made made(sizes, 6, OnDemandWeights::Keep::kLatest);
  for (size_t tensor = 0; tensor < sizes.size(); ++tensor) {
    REQUIRE(made.need({made.whole(tensor, kFrame)}));
    CHECK(made.right(tensor, kFrame));
  }
  CHECK(made.weights->statistics().resident_bytes < 2 * kFrame);
  REQUIRE(made.need({made.whole(0, kFrame), made.whole(1, kFrame)}));
  CHECK((made.right(0, kFrame) && made.right(1, kFrame)));
}

TEST_CASE("memory that is nobody's here needs nothing") {
  Made made({kFrame}, 1);
  std::vector<std::byte> other(100);
  CHECK(made.need({{other.data(), other.size()}, {nullptr, 0}}));
  CHECK(made.calls == 0);
}

TEST_CASE("a checkpoint made on use has the tensors of one made at once, and another process makes the same") {
  // Wide enough that experts are large tensors.
  const std::string spec =
      "synth:tiny?hidden_size=512&moe_intermediate_size=1024&n_routed_experts=3&num_hidden_layers=2";
  const auto whole = Checkpoint::open(spec, {SynthMemory::Mode::kWhole, 0});
  REQUIRE(whole);
  CHECK(whole->on_demand() == nullptr);
  const auto lazy = Checkpoint::open(spec, {SynthMemory::Mode::kOnUse, 4 * kFrame});
  REQUIRE(lazy);
  REQUIRE(lazy->on_demand() != nullptr);
  CHECK(lazy->identity() == whole->identity());
  CHECK(lazy->descriptors().empty());
  const auto attached = Checkpoint::attach(lazy->manifest(), {});
  REQUIRE(attached);
  CHECK(attached->identity() == whole->identity());
  CHECK(attached->on_demand()->budget() == lazy->on_demand()->budget());
  REQUIRE(lazy->tensors().size() == whole->tensors().size());
  size_t large = 0;
  for (const StoredTensor& tensor : whole->tensors()) {
    const auto bytes = static_cast<uint64_t>(tensor.view.elements()) * dtype_bytes(tensor.view.dtype);
    large += bytes >= OnDemandWeights::kSmall ? 1 : 0;
    for (const Checkpoint* other : {&*lazy, &*attached}) {
      const TensorView* view = other->find(tensor.name);
      REQUIRE(view != nullptr);
      const WeightRange range{view->data, bytes};
      REQUIRE(need_weights({&range, 1}));
      REQUIRE(std::memcmp(view->data, tensor.view.data, bytes) == 0);
    }
  }
  CHECK(large > 10);
}

TEST_CASE("a model is made on use where it is larger than the memory named, and refused where one tensor is") {
  const std::string spec = "synth:tiny?hidden_size=1024&vocab_size=2000&num_hidden_layers=2";  // lm_head: 4 MB
  const auto chosen = Checkpoint::open(spec, {SynthMemory::Mode::kAuto, uint64_t{5} << 20});
  REQUIRE(chosen);
  CHECK(chosen->on_demand() != nullptr);
  const auto fits = Checkpoint::open(spec, {SynthMemory::Mode::kAuto, uint64_t{500} << 20});
  REQUIRE(fits);
  CHECK(fits->on_demand() == nullptr);
  const auto small = Checkpoint::open(spec, {SynthMemory::Mode::kAuto, uint64_t{2} << 20});
  REQUIRE_FALSE(small);
  CHECK(small.error().kind == ErrorKind::kCannotRun);
  CHECK(mentions(small.error().message, "lm_head.weight alone is"));
  const auto whole = Checkpoint::open(spec, {SynthMemory::Mode::kWhole, uint64_t{5} << 20});
  REQUIRE_FALSE(whole);
  CHECK(whole.error().kind == ErrorKind::kCannotRun);
}
