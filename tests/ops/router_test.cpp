#include <set>

#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;
using ops::Router;

namespace {

struct Fixture {
  Tensor logits;
  Tensor bias;
  Tensor ids;
  Tensor weights;
  OpHarness op{Router::kName};

  Fixture(Tensor logits_in, Tensor bias_in, int64_t k, int64_t groups = 1, int64_t topk_group = 1)
      : logits(std::move(logits_in)),
        bias(std::move(bias_in)),
        ids(Dtype::kI32, {logits.view().dim(0), k}),
        weights(Dtype::kF32, {logits.view().dim(0), k}) {
    op.add(logits).add(bias).add(ids).add(weights);
    op.attributes()
        .set("k", k)
        .set("n_group", groups)
        .set("topk_group", topk_group)
        .set("norm_topk", true)
        .set("scaling", 2.5);
  }
  std::optional<OpKind::SelectionProblem> selection() {
    return op_kind(Router::kName).selection(op.call(), logits.view().dim(0));
  }
};

Tensor row(std::initializer_list<float> values) {
  Tensor tensor(Dtype::kF32, {1, static_cast<int64_t>(values.size())});
  int64_t i = 0;
  for (const float value : values) tensor.view().store(i++, value);
  return tensor;
}
Tensor zeros(int64_t count) {
  return Tensor(Dtype::kF32, {count});
}
Tensor near_seven(Random& random, int64_t count) {
  Tensor bias(Dtype::kF32, {count});
  for (int64_t i = 0; i < count; ++i) bias.view().store(i, 7 + 0.1f * random.normal());
  return bias;
}

}  // namespace

TEST_CASE("moe_fused_gate agrees with its reference, with and without groups") {
  Random random(1);
  for (const int64_t rows : {0, 1, 129})
    for (const int64_t groups : {1, 4, 16})
      for (const int64_t topk_group : {int64_t{1}, (groups + 1) / 2, groups}) {
        const int64_t k = std::min<int64_t>(4, 16 / groups * topk_group);
        Fixture f(random.values(Dtype::kF32, {rows, 16}), near_seven(random, 16), k, groups, topk_group);
        f.op.require_agreement("moe_fused_gate", Router::kIds, f.ids);
        f.op.require_agreement("moe_fused_gate", Router::kWeights, f.weights);
        CHECK(!f.selection());
      }
}

TEST_CASE("the router chooses by score plus bias, and weighs by score alone") {
  Fixture f(row({0, 1, 2, 3}), zeros(4), 2);
  f.bias.view().store(0, 5);
  REQUIRE(!f.op.run("moe_fused_gate"));
  CHECK(f.ids.integer(0) == 0);
  CHECK(f.ids.integer(1) == 3);
  const double low = 0.5, high = 1 / (1 + std::exp(-3.0));
  CHECK(f.weights.at(0) == Approx(2.5 * low / (low + high)));
  CHECK(f.weights.at(1) == Approx(2.5 * high / (low + high)));
  f.op.attributes().set("norm_topk", false);
  REQUIRE(!f.op.run("moe_fused_gate"));
  CHECK(f.weights.at(0) == Approx(2.5 * low));
}

TEST_CASE("only experts of the kept groups are chosen") {
  // Group 0 holds the best expert, group 1 the best pair.
  Fixture f(row({3, -9, 2, 2}), zeros(4), 2, 2, 1);
  REQUIRE(!f.op.run("moe_fused_gate"));
  CHECK(f.ids.integer(0) == 2);
  CHECK(f.ids.integer(1) == 3);
  CHECK(!f.selection());
  f.ids.view().store_index(0, 0);
  const auto problem = f.selection();
  REQUIRE(problem);
  CHECK(problem->at == 0);
  CHECK(problem->message.find("group") != std::string::npos);
}

TEST_CASE("equal experts are chosen in their order, and any of them is right") {
  Fixture f(row({1, 1, 1, 1}), zeros(4), 2);
  REQUIRE(!f.op.run("moe_fused_gate"));
  CHECK(f.ids.integer(0) == 0);
  CHECK(f.ids.integer(1) == 1);
  f.ids.view().store_index(1, 3);
  CHECK(!f.selection());
}

TEST_CASE("rows of NaN choose valid experts, each once") {
  const float nan = std::nanf("");
  for (const int64_t groups : {1, 2})
    for (const bool all : {false, true}) {
      Fixture f(row({nan, nan, nan, all ? nan : 1, nan, nan, nan, nan}), zeros(8), 3, groups, 1);
      REQUIRE(!f.op.run("moe_fused_gate"));
      std::set<int64_t> chosen;
      for (int64_t j = 0; j < 3; ++j) {
        CHECK(f.ids.integer(j) >= 0);
        CHECK(f.ids.integer(j) < 8);
        chosen.insert(f.ids.integer(j));
      }
      CHECK(chosen.size() == 3);
      if (!all) CHECK(f.ids.integer(0) == 3);
      CHECK(std::isnan(f.weights.at(2)));
      CHECK(f.op.run_checked("moe_fused_gate").count == 0);
    }
}

TEST_CASE("scores of zero are not divided by zero") {
  Fixture f(row({-200, -200, -200, -200}), zeros(4), 2);
  REQUIRE(!f.op.run("moe_fused_gate"));
  CHECK(f.weights.at(0) == 0);
}

TEST_CASE("the router's selection check names an expert that is not among the best, or does not exist") {
  Fixture f(row({0, 1, 2, 3}), zeros(4), 2);
  REQUIRE(!f.op.run("moe_fused_gate"));
  CHECK(!f.selection());
  f.ids.view().store_index(1, 1);
  auto problem = f.selection();
  REQUIRE(problem);
  CHECK(problem->operand == Router::kIds);
  CHECK(problem->at == 1);
  CHECK(problem->message.find("row 0: expert 1") == 0);
  for (const int64_t expert : {-1, 4}) {
    f.ids.view().store_index(1, expert);
    problem = f.selection();
    REQUIRE(problem);
    CHECK(problem->message.find("does not exist") != std::string::npos);
  }
}

TEST_CASE("the router's selection check looks at live rows only") {
  Fixture f(row({0, 1, 2, 3}), zeros(4), 2);
  f.ids.fill(0xFF);
  CHECK(f.selection());
  CHECK(!op_kind(Router::kName).selection(f.op.call(), 0));
}

TEST_CASE("a bias rounded to bf16 changes the choice, not the weights' arithmetic, and is the model's structure") {
  // bf16 has steps of 2^-5 at 7: both biases become 7, and the better score wins.
  Tensor bias(Dtype::kF32, {2});
  bias.view().store(0, 7.001f);
  bias.view().store(1, 7.012f);
  Fixture f(row({0.01f, 0.0f}), bias, 1);
  REQUIRE(!f.op.run("moe_fused_gate"));
  CHECK(f.ids.integer(0) == 1);
  f.op.attributes().set("router_bias", true);
  REQUIRE(!f.op.run("moe_fused_gate"));
  CHECK(f.ids.integer(0) == 0);
  CHECK_FALSE(f.selection());
  f.op.require_agreement("moe_fused_gate", Router::kWeights, f.weights);
  f.op.attributes().set("router_bias", false);
  CHECK(f.selection());  // without the rounding the choice is wrong
  const auto& structure = op_kind(Router::kName).structure;
  CHECK(std::count(structure.begin(), structure.end(), "router_bias") == 1);
}

TEST_CASE("a fused shared expert is the last choice of every token, with weight 1") {
  Random random(31);
  constexpr int64_t kRows = 6, kRouted = 2;
  Fixture apart(random.values(Dtype::kF32, {kRows, 8}), near_seven(random, 8), kRouted);
  REQUIRE(!apart.op.run("moe_fused_gate"));
  Fixture f(apart.logits, apart.bias, kRouted + 1);
  f.op.attributes().set("k", kRouted).set("fused_shared", true);
  f.op.require_agreement("moe_fused_gate", Router::kWeights, f.weights);
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t j = 0; j < kRouted; ++j) {
      CHECK(f.ids.integer(t * (kRouted + 1) + j) == apart.ids.integer(t * kRouted + j));
      CHECK(f.weights.at(t * (kRouted + 1) + j) == apart.weights.at(t * kRouted + j));
    }
    CHECK(f.ids.integer(t * (kRouted + 1) + kRouted) == 8);
    CHECK(f.weights.at(t * (kRouted + 1) + kRouted) == 1.0f);
  }
  CHECK_FALSE(f.selection());
  f.ids.view().store_index(kRouted, 3);
  REQUIRE(f.selection());
  CHECK(f.selection()->at == kRouted);
}
