#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;
using ops::Add;
using ops::GatherRows;
using ops::SiluMul;

TEST_CASE("silu_and_mul agrees with its reference") {
  Random random(1);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const int64_t rows : {0, 1, 129})
      for (const int64_t columns : {1, 200}) {
        const Tensor x = random.values(dtype, {rows, 2 * columns}, 3);
        Tensor out(dtype, {rows, columns});
        OpHarness op(SiluMul::kName);
        op.add(x).add(out);
        op.require_agreement("silu_and_mul", SiluMul::kOut, out);
      }
}

TEST_CASE("silu_and_mul gates by the first half and passes NaN on") {
  Tensor x(Dtype::kF32, {1, 8});
  const float values[8] = {0, -200, 200, std::nanf(""), 3, 3, 3, 3};
  for (int64_t i = 0; i < 8; ++i) x.view().store(i, values[i]);
  Tensor out(Dtype::kF32, {1, 4});
  OpHarness op(SiluMul::kName);
  op.add(x).add(out);
  REQUIRE(!op.run("silu_and_mul"));
  CHECK(out.at(0) == 0);
  CHECK(out.at(1) == 0);
  CHECK(out.at(2) == 600);
  CHECK(std::isnan(out.at(3)));
}

TEST_CASE("add agrees with its reference, bit for bit") {
  Random random(2);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const int64_t rows : {0, 1, 129}) {
      const Tensor a = random.values(dtype, {rows, 37});
      const Tensor b = random.values(dtype, {rows, 37}, 100);
      Tensor out(dtype, {rows, 37});
      OpHarness op(Add::kName);
      op.add(a).add(b).add(out);
      op.require_agreement("add", Add::kOut, out);
      if (rows > 0 && dtype == Dtype::kF32) CHECK(out.at(5) == a.at(5) + b.at(5));
    }
}

TEST_CASE("gather_rows copies the rows it is told to") {
  Random random(3);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
    const Tensor x = random.values(dtype, {5, 33});
    const Tensor rows = integers({3}, {4, 0, 4});
    Tensor out(dtype, {3, 33});
    OpHarness op(GatherRows::kName);
    op.add(x).add(rows).add(out);
    op.require_agreement("gather_rows", GatherRows::kOut, out);
    for (int64_t c = 0; c < 33; ++c) CHECK(out.at(c) == x.at(4 * 33 + c));
  }
}

TEST_CASE("the checked gather_rows records a row past the tensor and goes on") {
  Random random(4);
  const Tensor x = random.values(Dtype::kF32, {5, 8});
  const Tensor rows = integers({2}, {7, 1});
  Tensor out(Dtype::kF32, {2, 8});
  OpHarness op(GatherRows::kName);
  op.add(x).add(rows).add(out);
  const kernels::AccessLog log = op.run_checked("gather_rows");
  CHECK(log.count == 8);
  CHECK(log.first[0].operand == GatherRows::kX);
  CHECK(log.first[0].is_write == 0);
  CHECK(log.first[0].extent == 40);
  CHECK(log.first[0].index >= 56);
  CHECK(std::isnan(out.at(0)));
  CHECK(out.at(8) == x.at(8));
}
