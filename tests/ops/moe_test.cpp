#include "ops/fp4_tiles.h"
#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;
using ops::ExpertLinear;
using ops::ExpertLinearW4A4;
using ops::MoeCombine;
using ops::MoePermute;

namespace {

constexpr int64_t kExperts = 4;

// Rows of tokens sorted by expert; expert 2 never has one.
struct Routing {
  int64_t tokens;
  int64_t k;
  Tensor ids;
  Tensor order;
  Tensor offsets{Dtype::kI32, {kExperts + 1}};
  OpHarness op{MoePermute::kName};

  Routing(int64_t tokens_in, int64_t k_in, Random& random, bool one_expert = false)
      : tokens(tokens_in), k(k_in), ids(Dtype::kI32, {tokens, k}), order(Dtype::kI32, {tokens * k}) {
    const int32_t usable[] = {0, 1, 3};
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t first = random.below(3);
      for (int64_t j = 0; j < k; ++j) ids.view().store_index(t * k + j, one_expert ? 3 : usable[(first + j) % 3]);
    }
    op.add(ids).add(order).add(offsets);
    REQUIRE(!op.run("moe_align"));
  }
};

void set_experts(OpHarness& op, int64_t k, int64_t stacked, bool x_per_token) {
  op.attributes().set("k", k).set("stacked", stacked).set("x_per_token", x_per_token);
}

WeightList expert_weights(Precision precision, Random& random, int64_t stacked, int64_t rows, int64_t columns) {
  WeightList weights(precision, random, {}, columns);
  for (int64_t i = 0; i < kExperts * stacked; ++i) weights.add(random, rows, columns);
  return weights;
}

}  // namespace

TEST_CASE("moe_align agrees with its reference, for no rows, many rows and one expert") {
  Random random(1);
  for (const int64_t tokens : {0, 1, 129})
    for (const int64_t k : {1, 3})
      for (const bool one_expert : {false, true}) {
        Routing r(tokens, k, random, one_expert);
        r.op.require_agreement("moe_align", MoePermute::kOrder, r.order);
        r.op.require_agreement("moe_align", MoePermute::kOffsets, r.offsets);
        CHECK(r.offsets.integer(kExperts) == tokens * k);
        CHECK(r.offsets.integer(2) == r.offsets.integer(3));  // the idle expert
      }
}

TEST_CASE("moe_align keeps the order of rows within an expert") {
  Random random(2);
  const Routing r(50, 2, random);
  for (int64_t e = 0; e < kExperts; ++e)
    for (int64_t i = r.offsets.integer(e); i < r.offsets.integer(e + 1); ++i) {
      CHECK(r.ids.integer(r.order.integer(i)) == e);
      if (i > r.offsets.integer(e)) CHECK(r.order.integer(i - 1) < r.order.integer(i));
    }
}

TEST_CASE("the checked moe_align records an expert that does not exist") {
  Random random(3);
  Routing r(5, 2, random);
  r.ids.view().store_index(7, kExperts);
  const kernels::AccessLog log = r.op.run_checked("moe_align");
  CHECK(log.count > 0);
  CHECK(log.first[0].operand == MoePermute::kIds);
  CHECK(log.first[0].index == kExperts);
  CHECK(log.first[0].extent == kExperts);
  CHECK(r.offsets.integer(kExperts) == 9);
}

TEST_CASE("expert products of every precision agree with the reference") {
  Random random(4);
  for (const Precision precision : kEveryPrecision)
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
      for (const int64_t tokens : {0, 1, 40})
        for (const bool x_per_token : {true, false}) {
          constexpr int64_t kWidth = 10, kColumns = 48;
          const int64_t stacked = x_per_token ? 2 : 1;
          const Routing r(tokens, 2, random);
          const WeightList weights = expert_weights(precision, random, stacked, kWidth, kColumns);
          const Tensor x = random.values(dtype, {x_per_token ? tokens : tokens * 2, kColumns});
          Tensor out(dtype, {tokens * 2, stacked * kWidth});
          OpHarness op(ExpertLinear::kName);
          op.add(x).add(r.order).add(r.offsets);
          weights.add_to(op);
          op.add(out);
          set_experts(op, 2, stacked, x_per_token);
          op.require_agreement(weights.kernel(), ExpertLinear::kOut, out);
        }
}

TEST_CASE("each row of an expert product is its token's, under its expert's weights") {
  Random random(5);
  const Routing r(6, 2, random);
  const WeightList weights = expert_weights(Precision::kF32, random, 2, 3, 8);
  const Tensor x = random.values(Dtype::kF32, {6, 8});
  Tensor out(Dtype::kF32, {12, 6});
  OpHarness op(ExpertLinear::kName);
  op.add(x).add(r.order).add(r.offsets);
  weights.add_to(op);
  op.add(out);
  set_experts(op, 2, 2, true);
  REQUIRE(!op.run("dense"));
  for (int64_t flat = 0; flat < 12; ++flat)
    for (int64_t n = 0; n < 6; ++n) {
      const auto list = static_cast<size_t>(r.ids.integer(flat) * 2 + n / 3);
      const TensorView& w = op.call().argument(ExpertLinear::kWeight).views[list];
      double expected = 0;
      for (int64_t c = 0; c < 8; ++c)
        expected += static_cast<double>(x.at(flat / 2 * 8 + c)) * w.load(w.offset(n % 3, c));
      CHECK(out.at(flat * 6 + n) == Approx(expected).margin(1e-5));
    }
}

TEST_CASE("the W4A4 expert products agree with both references, past a tile of rows of one expert") {
  Random random(6);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const int64_t tokens : {int64_t{0}, int64_t{1}, kTileRows + 1})
      for (const bool x_per_token : {true, false}) {
        constexpr int64_t kWidth = 6, kColumns = 32, kTopK = 2;
        const int64_t stacked = x_per_token ? 2 : 1;
        const Routing r(tokens, kTopK, random, tokens > 1);
        const WeightList weights = expert_weights(Precision::kNvfp4, random, stacked, kWidth, kColumns);
        const int64_t x_rows = x_per_token ? tokens : tokens * kTopK;
        const Tensor codes = random_codes(random, x_rows, kColumns);
        const Tensor scales = random_scales(random, x_rows, kColumns);
        const Tensor small = scalar(0.125f);
        const Tensor large = scalar(0.5f);
        Tensor out(dtype, {tokens * kTopK, stacked * kWidth});
        OpHarness op(ExpertLinearW4A4::kName);
        op.add(codes).add(scales).add(r.order).add(r.offsets);
        weights.add_to(op);
        op.add_list({small.view(), large.view()}).add(out);
        set_experts(op, kTopK, stacked, x_per_token);
        op.require_agreement("flashinfer_cutlass", ExpertLinearW4A4::kOut, out);
        Tensor spec(out);
        op.replace(ExpertLinearW4A4::kOut, spec);
        find_kernel(ExpertLinearW4A4::kName, "flashinfer_cutlass")->spec(op.call());
        const Tolerance tolerance = tolerance_for(ExpertLinearW4A4::kName, dtype);
        for (int64_t i = 0; i < out.view().elements(); ++i)
          CHECK(std::abs(out.at(i) - spec.at(i)) <= tolerance.atol + tolerance.rtol * std::abs(spec.at(i)));
      }
}

TEST_CASE("the checked expert product records a row that does not exist and computes the others") {
  Random random(7);
  Routing r(4, 1, random, true);
  const WeightList weights = expert_weights(Precision::kBf16, random, 1, 3, 16);
  const Tensor x = random.values(Dtype::kF32, {4, 16});
  Tensor sound(Dtype::kF32, {4, 3});
  OpHarness op(ExpertLinear::kName);
  op.add(x).add(r.order).add(r.offsets);
  weights.add_to(op);
  op.add(sound);
  set_experts(op, 1, 1, true);
  REQUIRE(op.run_checked("dense").count == 0);
  r.order.view().store_index(2, 9);
  Tensor out(Dtype::kF32, {4, 3});
  out.fill(0xFF);
  op.replace(ExpertLinear::kOut, out);
  const kernels::AccessLog log = op.run_checked("dense");
  CHECK(log.count == 1);
  CHECK(log.first[0].operand == ExpertLinear::kOrder);
  CHECK(log.first[0].index == 9);
  CHECK(log.first[0].extent == 4);
  CHECK(log.first[0].block == 3);
  CHECK(std::isnan(out.at(2 * 3)));
  CHECK(out.at(3 * 3) == sound.at(3 * 3));
}

TEST_CASE("moe_finalize agrees with its reference and sums in float") {
  Random random(8);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const int64_t tokens : {0, 1, 129})
      for (const int64_t k : {1, 8}) {
        const Tensor x = random.values(dtype, {tokens * k, 33});
        const Tensor weights = random.values(Dtype::kF32, {tokens, k});
        Tensor out(dtype, {tokens, 33});
        OpHarness op(MoeCombine::kName);
        op.add(x).add(weights).add(out);
        op.require_agreement("moe_finalize", MoeCombine::kOut, out);
      }
  // 256 + 1 + 1 is 258 in float, and 256 where each sum is rounded to bf16.
  Tensor x(Dtype::kBF16, {3, 1});
  x.view().store(0, 256);
  x.view().store(1, 1);
  x.view().store(2, 1);
  Tensor weights(Dtype::kF32, {1, 3});
  weights.view().store(0, 1);
  weights.view().store(1, 1);
  weights.view().store(2, 1);
  Tensor out(Dtype::kBF16, {1, 1});
  OpHarness op(MoeCombine::kName);
  op.add(x).add(weights).add(out);
  REQUIRE(!op.run("moe_finalize"));
  CHECK(out.at(0) == 258);
}

TEST_CASE("a routing weight of NaN spoils its token alone") {
  Random random(9);
  const Tensor x = random.values(Dtype::kF32, {6, 5});
  Tensor weights = random.values(Dtype::kF32, {3, 2});
  weights.view().store(3, std::nanf(""));
  Tensor out(Dtype::kF32, {3, 5});
  OpHarness op(MoeCombine::kName);
  op.add(x).add(weights).add(out);
  REQUIRE(!op.run("moe_finalize"));
  for (int64_t t = 0; t < 3; ++t)
    for (int64_t c = 0; c < 5; ++c) CHECK(std::isnan(out.at(t * 5 + c)) == (t == 1));
}

TEST_CASE("expert products declare the rows of each token's experts, and serve the axis") {
  const OpKind& kind = op_kind(ExpertLinear::kName);
  CHECK(kind.operands[ExpertLinear::kOut].region.multiplier == Region::kTopK);
  CHECK(kind.operands[ExpertLinear::kX].region.multiplier == Region::kTopKUnlessPerToken);
  CHECK(kind.operands[ExpertLinear::kOrder].index.unique);
  CHECK(kernel_serving("moe_runner_backend", "flashinfer_cutlass", ExpertLinearW4A4::kName) != nullptr);
  CHECK(kernel_serving("moe_runner_backend", "marlin", ExpertLinear::kName) != nullptr);
  CHECK(kernel_serving("moe_runner_backend", "cutlass", ExpertLinearW4A4::kName) == nullptr);
}

TEST_CASE("W4A4 experts with input scales of their own multiply each row by its expert's") {
  Random random(21);
  constexpr int64_t kTokens = 9, kTopK = 2, kWidth = 6, kColumns = 32, kStacked = 2;
  const Routing r(kTokens, kTopK, random);
  const WeightList weights = expert_weights(Precision::kNvfp4, random, kStacked, kWidth, kColumns);
  const Tensor codes = random_codes(random, kTokens * kTopK, kColumns);
  const Tensor scales = random_scales(random, kTokens * kTopK, kColumns);
  std::vector<Tensor> scalars;
  for (int64_t i = 0; i < kExperts * kStacked; ++i) scalars.push_back(scalar(0.25f * static_cast<float>(1 + i)));
  const auto run = [&](bool per_expert, const std::vector<TensorView>& input_scales, bool agree) {
    Tensor out(Dtype::kF32, {kTokens * kTopK, kStacked * kWidth});
    OpHarness op(ExpertLinearW4A4::kName);
    op.add(codes).add(scales).add(r.order).add(r.offsets);
    weights.add_to(op);
    op.add_list(input_scales).add(out);
    set_experts(op, kTopK, kStacked, false);
    op.attributes().set("per_expert", per_expert);
    if (agree) op.require_agreement("flashinfer_cutlass", ExpertLinearW4A4::kOut, out);
    REQUIRE(!op.run("flashinfer_cutlass"));
    Tensor spec(out);
    op.replace(ExpertLinearW4A4::kOut, spec);
    op.run_spec("flashinfer_cutlass");
    const Tolerance tolerance = tolerance_for(ExpertLinearW4A4::kName, Dtype::kF32);
    for (int64_t i = 0; i < out.view().elements(); ++i)
      CHECK(std::abs(out.at(i) - spec.at(i)) <= tolerance.atol + tolerance.rtol * std::abs(spec.at(i)));
    return out;
  };
  const Tensor own = run(true, views_of(scalars), true);
  const Tensor one = scalar(1.0f);
  const Tensor unscaled = run(false, {one.view()}, false);
  for (int64_t row = 0; row < kTokens * kTopK; ++row) {
    const float factor = 0.25f * static_cast<float>(2 * r.ids.integer(row) + 2);  // the second of its two
    for (int64_t c = 0; c < kStacked * kWidth; ++c) {
      const float expected = unscaled.at(row * kStacked * kWidth + c) * factor;
      CHECK(std::abs(own.at(row * kStacked * kWidth + c) - expected) <= 1e-5f * std::abs(expected));
    }
  }
}
