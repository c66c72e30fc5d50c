#include "op_harness.h"
#include "ops/kinds.h"

using namespace faultline;
using namespace faultline::test;
using ops::Rope;

namespace {

Attributes& set_rope(OpHarness& op, int64_t rope_dim, bool interleaved, bool enabled = true, double theta = 1e4) {
  return op.attributes()
      .set("theta", theta)
      .set("rope_dim", rope_dim)
      .set("interleaved", interleaved)
      .set("enabled", enabled);
}

}  // namespace

TEST_CASE("rope agrees with its reference in both pairings, for whole and partial heads") {
  Random random(1);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const int64_t tokens : {0, 1, 3})
      for (const int64_t rope_dim : {16, 64})
        for (const bool interleaved : {true, false}) {
          const Tensor x = random.values(dtype, {tokens, 5, 64});
          Tensor positions(Dtype::kI32, {tokens});
          for (int64_t t = 0; t < tokens; ++t) positions.view().store_index(t, random.below(200000));
          Tensor out(dtype, {tokens, 5, 64});
          OpHarness op(Rope::kName);
          set_rope(op.add(x).add(positions).add(out), rope_dim, interleaved, true, 1e6);
          op.require_agreement("rope", Rope::kOut, out);
        }
}

TEST_CASE("rope turns the first pair by the position itself") {
  Tensor x(Dtype::kF32, {1, 1, 4});
  for (int64_t i = 0; i < 4; ++i) x.view().store(i, static_cast<float>(i + 1));
  const Tensor positions = integers({1}, {2});
  Tensor out(Dtype::kF32, {1, 1, 4});
  OpHarness op(Rope::kName);
  set_rope(op.add(x).add(positions).add(out), 4, true);
  REQUIRE(!op.run("rope"));
  CHECK(out.at(0) == Approx(std::cos(2.0) - 2 * std::sin(2.0)));
  CHECK(out.at(1) == Approx(2 * std::cos(2.0) + std::sin(2.0)));
  CHECK(out.at(2) == Approx(3 * std::cos(0.02) - 4 * std::sin(0.02)));
  set_rope(op, 4, false);
  REQUIRE(!op.run("rope"));
  CHECK(out.at(0) == Approx(std::cos(2.0) - 3 * std::sin(2.0)));
  CHECK(out.at(2) == Approx(3 * std::cos(2.0) + std::sin(2.0)));
  CHECK(out.at(1) == Approx(2 * std::cos(0.02) - 4 * std::sin(0.02)));
}

TEST_CASE("rope leaves the dims past rope_dim, and everything at position 0 or when it is off") {
  Random random(2);
  const Tensor x = random.values(Dtype::kBF16, {2, 3, 8});
  const Tensor positions = integers({2}, {0, 7});
  Tensor out(Dtype::kBF16, {2, 3, 8});
  OpHarness op(Rope::kName);
  set_rope(op.add(x).add(positions).add(out), 4, true);
  REQUIRE(!op.run("rope"));
  for (int64_t i = 0; i < 24; ++i) CHECK(out.at(i) == x.at(i));
  for (int64_t h = 0; h < 3; ++h) {
    CHECK(out.at(24 + h * 8) != x.at(24 + h * 8));
    for (int64_t d = 4; d < 8; ++d) CHECK(out.at(24 + h * 8 + d) == x.at(24 + h * 8 + d));
  }
  set_rope(op, 4, true, false);
  REQUIRE(!op.run("rope"));
  CHECK(out.same_bytes(x));
}

TEST_CASE("rope works in place") {
  Random random(3);
  const Tensor x = random.values(Dtype::kF32, {2, 2, 8});
  const Tensor positions = integers({2}, {5, 6});
  Tensor out(Dtype::kF32, {2, 2, 8});
  OpHarness op(Rope::kName);
  set_rope(op.add(x).add(positions).add(out), 8, false);
  REQUIRE(!op.run("rope"));
  Tensor both(x);
  op.replace(Rope::kX, both);
  op.replace(Rope::kOut, both);
  REQUIRE(!op.run("rope"));
  CHECK(both.same_bytes(out));
}

TEST_CASE("rope's frequencies depend on theta") {
  Tensor x(Dtype::kF32, {1, 1, 4});
  x.view().store(2, 1);
  const Tensor positions = integers({1}, {100});
  Tensor out(Dtype::kF32, {1, 1, 4});
  OpHarness op(Rope::kName);
  set_rope(op.add(x).add(positions).add(out), 4, true, true, 1e6);
  REQUIRE(!op.run("rope"));
  CHECK(out.at(3) == Approx(std::sin(0.1)));
  set_rope(op, 4, true, true, 1e4);
  REQUIRE(!op.run("rope"));
  CHECK(out.at(3) == Approx(std::sin(1.0)));
}
