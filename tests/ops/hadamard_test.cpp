#include "op_harness.h"
#include "ops/kinds.h"

using namespace faultline;
using namespace faultline::test;
using ops::Hadamard;

TEST_CASE("the Hadamard transform agrees with its reference, for one value, one head and many") {
  Random random(1);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const int64_t dim : {1, 2, 32, 128})
      for (const int64_t tokens : {0, 1, 5}) {
        const Tensor x = random.values(dtype, {tokens, 3, dim}, 4);
        Tensor out(dtype, {tokens, 3, dim});
        OpHarness op(Hadamard::kName);
        op.add(x).add(out);
        op.require_agreement("hadamard", Hadamard::kOut, out);
      }
}

TEST_CASE("the transform of four values is the scaled sums and differences of Sylvester's matrix") {
  Tensor x(Dtype::kF32, {1, 1, 4});
  for (int64_t i = 0; i < 4; ++i) x.view().store(i, static_cast<float>(1 << i));  // 1 2 4 8
  const Tensor out(Dtype::kF32, {1, 1, 4});
  OpHarness op(Hadamard::kName);
  op.add(x).add(out);
  REQUIRE(!op.run("hadamard"));
  CHECK(out.at(0) == 7.5f);   // (1 + 2 + 4 + 8) / 2
  CHECK(out.at(1) == -2.5f);  // (1 - 2 + 4 - 8) / 2
  CHECK(out.at(2) == -4.5f);  // (1 + 2 - 4 - 8) / 2
  CHECK(out.at(3) == 1.5f);   // (1 - 2 - 4 + 8) / 2
}

TEST_CASE("a query and a key that are both rotated keep their product") {
  Random random(2);
  constexpr int64_t kDim = 128;
  const Tensor x = random.values(Dtype::kF32, {2, 1, kDim});
  const Tensor out(Dtype::kF32, {2, 1, kDim});
  OpHarness op(Hadamard::kName);
  op.add(x).add(out);
  REQUIRE(!op.run("hadamard"));
  double before = 0;
  double after = 0;
  for (int64_t d = 0; d < kDim; ++d) {
    before += static_cast<double>(x.at(d)) * x.at(kDim + d);
    after += static_cast<double>(out.at(d)) * out.at(kDim + d);
  }
  CHECK(std::abs(before - after) < 1e-4);
}
