#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;
using ops::Embed;

TEST_CASE("embed copies rows of a table of any float type") {
  Random random(1);
  for (const Dtype table_dtype : {Dtype::kF32, Dtype::kBF16})
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const Tensor table = random.values(table_dtype, {7, 130});
      const Tensor ids = integers({4}, {6, 0, 3, 3});
      Tensor out(dtype, {4, 130});
      OpHarness op(Embed::kName);
      op.add(ids).add(table).add(out);
      op.require_agreement("embed", Embed::kOut, out);
      for (int64_t c = 0; c < 130; ++c)
        CHECK(out.at(c) == (dtype == Dtype::kF32 ? table.at(6 * 130 + c) : round_to_bf16(table.at(6 * 130 + c))));
    }
}

TEST_CASE("embed of no tokens writes nothing") {
  Random random(2);
  const Tensor table = random.values(Dtype::kBF16, {7, 16});
  const Tensor ids = integers({0}, {});
  Tensor out(Dtype::kBF16, {0, 16});
  OpHarness op(Embed::kName);
  op.add(ids).add(table).add(out);
  CHECK(op.run_checked("embed").count == 0);
}

TEST_CASE("the checked embed records a token id past the vocabulary") {
  Random random(3);
  const Tensor table = random.values(Dtype::kBF16, {7, 4});
  const Tensor ids = integers({2}, {7, 2});
  Tensor out(Dtype::kF32, {2, 4});
  OpHarness op(Embed::kName);
  op.add(ids).add(table).add(out);
  const kernels::AccessLog log = op.run_checked("embed");
  CHECK(log.count == 4);
  CHECK(log.first[0].operand == Embed::kTable);
  CHECK(log.first[0].block == 0);
  CHECK(std::isnan(out.at(0)));
  CHECK(out.at(4) == table.at(8));
}
