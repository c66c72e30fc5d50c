#include "ops/weights_in_use.h"

#include <algorithm>
#include <vector>

#include "ops/kinds.h"
#include "testing.h"

using namespace faultline;

namespace {

bool brings(const std::vector<WeightRange>& ranges, const TensorView& view) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const WeightRange& range) {
    return range.data == view.data && range.bytes == static_cast<uint64_t>(view.elements()) * dtype_bytes(view.dtype);
  });
}

OpCall call_of(const ArgumentList& arguments) {
  return OpCall{arguments.get(), nullptr, {}, false};
}

}  // namespace

TEST_CASE("an ordinary op reads all of its weights") {
  std::vector<float> memory(100);
  const TensorView x = make_view(reinterpret_cast<std::byte*>(memory.data()), Dtype::kF32, {2, 4});
  const TensorView first = make_view(x.data + 40, Dtype::kF32, {3, 4});
  const TensorView second = make_view(x.data + 100, Dtype::kF32, {2, 4});
  ArgumentList arguments;
  arguments.add({x});
  arguments.add({first, second});
  arguments.add({TensorView{}});
  arguments.add({TensorView{}});
  arguments.add({x});
  const auto ranges = weights_in_use(op_kind(ops::Linear::kName), call_of(arguments));
  CHECK(ranges.size() == 2);
  CHECK(brings(ranges, first));
  CHECK(brings(ranges, second));
}

TEST_CASE("of the routed experts only those with rows are read, each with all of its matrices") {
  std::vector<std::byte> memory(1000);
  std::vector<int32_t> starts = {0, 2, 2, 3, 3};  // experts 0 and 2
  const TensorView offsets = make_view(reinterpret_cast<std::byte*>(starts.data()), Dtype::kI32, {5});
  const TensorView any = make_view(memory.data(), Dtype::kU8, {1, 1});
  std::vector<TensorView> weights;
  std::vector<TensorView> scales;
  for (int i = 0; i < 8; ++i) {
    weights.push_back(make_view(memory.data() + 10 + i * 8, Dtype::kU8, {2, 4}));
    scales.push_back(make_view(memory.data() + 500 + i * 2, Dtype::kF8E4M3, {2, 1}));
  }
  ArgumentList arguments;
  arguments.add({any});  // x
  arguments.add({any});  // order
  arguments.add({offsets});
  arguments.add(weights);
  arguments.add(scales);
  arguments.add({TensorView{}});
  arguments.add({any});
  const auto ranges = weights_in_use(op_kind(ops::ExpertLinear::kName), call_of(arguments));
  CHECK(ranges.size() == 8);
  for (const size_t i : {0, 1, 4, 5}) {
    CHECK(brings(ranges, weights[i]));
    CHECK(brings(ranges, scales[i]));
  }
  CHECK_FALSE(brings(ranges, weights[2]));
  CHECK_FALSE(brings(ranges, weights[7]));
}

TEST_CASE("of the embeddings the rows of the tokens are read, and an id outside the table brings nothing") {
  std::vector<uint16_t> memory(60);
  std::vector<int32_t> tokens = {4, -1, 0, 99};
  const TensorView table = make_view(reinterpret_cast<std::byte*>(memory.data()), Dtype::kBF16, {6, 8});
  const TensorView ids = make_view(reinterpret_cast<std::byte*>(tokens.data()), Dtype::kI32, {4});
  ArgumentList arguments;
  arguments.add({ids});
  arguments.add({table});
  arguments.add({table});
  const auto ranges = weights_in_use(op_kind(ops::Embed::kName), call_of(arguments));
  REQUIRE(ranges.size() == 2);
  CHECK(ranges[0].data == table.data + 4 * 16);
  CHECK(ranges[0].bytes == 16);
  CHECK(ranges[1].data == table.data);
}
