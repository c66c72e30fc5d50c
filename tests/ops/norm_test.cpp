#include "op_harness.h"
#include "ops/kinds.h"

using namespace faultline;
using namespace faultline::test;
using ops::LayerNorm;
using ops::RmsNorm;

TEST_CASE("rmsnorm agrees with its reference on any number of rows and columns") {
  Random random(1);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const int64_t rows : {0, 1, 3})
      for (const int64_t columns : {1, 48, 128, 200}) {
        const Tensor x = random.values(dtype, {rows, columns}, 3);
        const Tensor weight = random.values(Dtype::kBF16, {columns});
        Tensor out(dtype, {rows, columns});
        OpHarness op(RmsNorm::kName);
        op.add(x).add(weight).add(out).attributes().set("eps", 1e-5);
        op.require_agreement("rmsnorm", RmsNorm::kOut, out);
      }
}

TEST_CASE("rmsnorm rounds to the activation's type before the weight is applied") {
  Tensor x(Dtype::kBF16, {1, 3});
  const Tensor weight = [] {
    Tensor w(Dtype::kF32, {3});
    for (int64_t i = 0; i < 3; ++i) w.view().store(i, 1.001f);
    return w;
  }();
  for (int64_t i = 0; i < 3; ++i) x.view().store(i, static_cast<float>(i + 1));
  Tensor out(Dtype::kBF16, {1, 3});
  OpHarness op(RmsNorm::kName);
  op.add(x).add(weight).add(out).attributes().set("eps", 0.0);
  REQUIRE(!op.run("rmsnorm"));
  const float scale = 1.0f / std::sqrt(14.0f / 3.0f);
  for (int64_t i = 0; i < 3; ++i)
    CHECK(out.at(i) == round_to_bf16(round_to_bf16(static_cast<float>(i + 1) * scale) * 1.001f));
}

TEST_CASE("rmsnorm depends on eps, and a NaN stays in its row") {
  Tensor x(Dtype::kF32, {2, 4});
  for (int64_t i = 0; i < 8; ++i) x.view().store(i, 1e-3f);
  x.view().store(5, std::nanf(""));
  Tensor weight(Dtype::kF32, {4});
  for (int64_t i = 0; i < 4; ++i) weight.view().store(i, 1);
  Tensor out(Dtype::kF32, {2, 4});
  OpHarness op(RmsNorm::kName);
  op.add(x).add(weight).add(out).attributes().set("eps", 1e-6);
  REQUIRE(!op.run("rmsnorm"));
  CHECK(out.at(0) == Approx(1.0 / std::sqrt(2.0)));
  CHECK(std::isfinite(out.at(3)));
  CHECK(std::isnan(out.at(4)));
  op.attributes().set("eps", 3e-6);
  REQUIRE(!op.run("rmsnorm"));
  CHECK(out.at(0) == Approx(0.5));
}

TEST_CASE("rmsnorm reads and writes columns of a wider tensor") {
  Random random(2);
  const Tensor wide = random.values(Dtype::kBF16, {3, 40});
  Tensor wide_out(Dtype::kBF16, {3, 40});
  const Tensor weight = random.values(Dtype::kBF16, {16});
  Tensor narrow_x(Dtype::kBF16, {3, 16});
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < 16; ++c) narrow_x.view().store(r * 16 + c, wide.at(r * 40 + 8 + c));
  Tensor narrow_out(Dtype::kBF16, {3, 16});
  OpHarness op(RmsNorm::kName);
  op.add(narrow_x).add(weight).add(narrow_out).attributes().set("eps", 1e-5);
  REQUIRE(!op.run("rmsnorm"));

  ArgumentList arguments;
  arguments.add({slice_last(wide.view(), 8, 16)});
  arguments.add({weight.view()});
  arguments.add({slice_last(wide_out.view(), 20, 16)});
  const OpCall call{arguments.get(), &op.attributes(), {}, false};
  REQUIRE(!find_kernel(RmsNorm::kName, "rmsnorm")->run(call));
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < 40; ++c)
      CHECK(wide_out.at(r * 40 + c) == (c >= 20 && c < 36 ? narrow_out.at(r * 16 + c - 20) : 0.0f));
}

TEST_CASE("layernorm agrees with its reference, also where the mean is far from zero") {
  Random random(3);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const int64_t rows : {0, 1, 3})
      for (const int64_t columns : {2, 32, 128, 130}) {
        Tensor x = random.values(dtype, {rows, columns});
        for (int64_t i = 0; i < x.view().elements(); ++i) x.view().store(i, x.at(i) + 2);
        const Tensor weight = random.values(Dtype::kF32, {columns});
        const Tensor bias = random.values(Dtype::kBF16, {columns});
        Tensor out(dtype, {rows, columns});
        OpHarness op(LayerNorm::kName);
        op.add(x).add(weight).add(bias).add(out).attributes().set("eps", 1e-6);
        op.require_agreement("layernorm", LayerNorm::kOut, out);
      }
}

TEST_CASE("layernorm removes the mean, scales to unit variance, then applies weight and bias") {
  Tensor x(Dtype::kF32, {1, 2});
  x.view().store(0, 5);
  x.view().store(1, 9);
  Tensor weight(Dtype::kF32, {2});
  Tensor bias(Dtype::kF32, {2});
  for (int64_t i = 0; i < 2; ++i) {
    weight.view().store(i, 3);
    bias.view().store(i, 0.5f);
  }
  Tensor out(Dtype::kF32, {1, 2});
  OpHarness op(LayerNorm::kName);
  op.add(x).add(weight).add(bias).add(out).attributes().set("eps", 0.0);
  REQUIRE(!op.run("layernorm"));
  CHECK(out.at(0) == Approx(-2.5));
  CHECK(out.at(1) == Approx(3.5));
}

TEST_CASE("a weight that is too short is recorded by the checked build and makes NaN") {
  Random random(4);
  const Tensor x = random.values(Dtype::kF32, {1, 8});
  const Tensor weight = random.values(Dtype::kF32, {6});
  Tensor out(Dtype::kF32, {1, 8});
  OpHarness op(RmsNorm::kName);
  op.add(x).add(weight).add(out).attributes().set("eps", 1e-5);
  const kernels::AccessLog log = op.run_checked("rmsnorm");
  CHECK(log.count == 2);
  CHECK(log.first[0].operand == RmsNorm::kWeight);
  CHECK(log.first[0].extent == 6);
  CHECK(std::isnan(out.at(7)));
}
