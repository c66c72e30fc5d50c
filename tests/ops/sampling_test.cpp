#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;
using ops::Argmax;
using ops::Sample;
using ops::Softmax;

namespace {

const float kNan = std::nanf("");

Tensor row(std::initializer_list<float> values) {
  Tensor tensor(Dtype::kF32, {1, static_cast<int64_t>(values.size())});
  int64_t i = 0;
  for (const float value : values) tensor.view().store(i++, value);
  return tensor;
}

Tensor softmax(const Tensor& logits, double temperature, double top_p) {
  Tensor probs(Dtype::kF32, {logits.view().dim(0), logits.view().dim(1)});
  OpHarness op(Softmax::kName);
  op.add(logits).add(probs).attributes().set("temperature", temperature).set("top_p", top_p);
  REQUIRE(!op.run("softmax"));
  return probs;
}

struct Sampling {
  KernelResult result;
  int64_t token;
};
Sampling sample(const char* kernel, const Tensor& probs, float draw) {
  const Tensor uniform = scalar(draw);
  Tensor token(Dtype::kI32, {1});
  OpHarness op(Sample::kName);
  op.add(probs).add(uniform).add(token);
  KernelResult result = op.run(kernel);
  return {std::move(result), token.integer(0)};
}

int64_t argmax(const Tensor& logits) {
  Tensor token(Dtype::kI32, {1});
  OpHarness op(Argmax::kName);
  op.add(logits).add(token);
  REQUIRE(!op.run("argmax"));
  return token.integer(0);
}

}  // namespace

TEST_CASE("softmax agrees with its reference at any temperature and top_p") {
  Random random(1);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const int64_t rows : {0, 1, 5})
      for (const int64_t vocabulary : {1, 127, 1000})
        for (const double temperature : {0.5, 1.0})
          for (const double top_p : {0.1, 0.95, 1.0}) {
            const Tensor logits = random.values(dtype, {rows, vocabulary}, 3);
            Tensor probs(Dtype::kF32, {rows, vocabulary});
            OpHarness op(Softmax::kName);
            op.add(logits).add(probs).attributes().set("temperature", temperature).set("top_p", top_p);
            op.require_agreement("softmax", Softmax::kProbs, probs);
            for (int64_t r = 0; r < rows; ++r) {
              double sum = 0;
              for (int64_t c = 0; c < vocabulary; ++c) sum += probs.at(r * vocabulary + c);
              CHECK(sum == Approx(1).margin(1e-5));
            }
          }
}

TEST_CASE("top_p keeps the smallest set of tokens, the lower ids of equal ones") {
  const Tensor probs = softmax(row({std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(1.0f)}), 1, 0.7);
  CHECK(probs.at(0) == 0);
  CHECK(probs.at(1) == Approx(4.0 / 6));
  CHECK(probs.at(2) == Approx(2.0 / 6));
  CHECK(probs.at(3) == 0);
  const Tensor equal = softmax(row({0, 0, 0, 0}), 1, 0.5);
  CHECK(equal.at(0) == 0.5f);
  CHECK(equal.at(1) == 0.5f);
  CHECK(equal.at(2) == 0);
  const Tensor narrowest = softmax(row({0, 9, 0, 0}), 1, 1e-12);
  CHECK(narrowest.at(1) == 1);
}

TEST_CASE("a NaN, an infinite or an all -inf row of logits gives NaN, and a lone -inf gives 0") {
  const float inf = INFINITY;
  for (const double top_p : {0.9, 1.0}) {
    for (const Tensor& logits : {row({0, kNan, 1}), row({0, inf, 1}), row({-inf, -inf, -inf})}) {
      const Tensor probs = softmax(logits, 1, top_p);
      bool has_nan = false;
      for (int64_t c = 0; c < 3; ++c) has_nan |= std::isnan(probs.at(c));
      CHECK(has_nan);
    }
    const Tensor masked = softmax(row({0, -inf, 0}), 1, top_p);
    CHECK(masked.at(0) == 0.5f);
    CHECK(masked.at(1) == 0);
  }
}

TEST_CASE("both samplers agree with the reference") {
  Random random(2);
  for (const char* kernel : {"pytorch", "flashinfer"})
    for (const int64_t rows : {0, 1, 40})
      for (const int64_t vocabulary : {1, 300}) {
        const Tensor probs = softmax(random.values(Dtype::kF32, {rows, vocabulary}, 2), 1, 0.95);
        Tensor uniform(Dtype::kF32, {rows});
        for (int64_t r = 0; r < rows; ++r) uniform.view().store(r, static_cast<float>(random.below(1000)) / 1000.0f);
        Tensor tokens(Dtype::kI32, {rows});
        OpHarness op(Sample::kName);
        op.add(probs).add(uniform).add(tokens);
        op.require_agreement(kernel, Sample::kTokens, tokens);
      }
}

TEST_CASE("sampling takes the first token whose cumulative probability exceeds the draw") {
  const Tensor probs = row({0.25f, 0, 0.5f, 0.25f});
  CHECK(sample("pytorch", probs, 0).token == 0);
  CHECK(sample("pytorch", probs, 0.25f).token == 2);
  CHECK(sample("pytorch", probs, 0.74f).token == 2);
  CHECK(sample("pytorch", probs, 0.75f).token == 3);
  CHECK(sample("pytorch", row({0.5f, 0.4f}), 0.95f).token == 1);  // rounding left the row below the draw
}

TEST_CASE("pytorch asserts on NaN, infinite and negative probabilities, flashinfer does not") {
  for (const float bad : {kNan, INFINITY, -0.1f}) {
    const Tensor probs = row({0.5f, bad, 0.5f});
    const Sampling asserted = sample("pytorch", probs, 0.9f);
    REQUIRE(asserted.result);
    CHECK(asserted.result->verdict == "device-assert");
    CHECK(asserted.result->message == "probability tensor contains either `inf`, `nan` or element < 0");
    const Sampling silent = sample("flashinfer", probs, 0.9f);
    CHECK(!silent.result);
    CHECK(silent.token >= 0);
    CHECK(silent.token < 3);
  }
  CHECK(!sample("pytorch", row({0.5f, 0, 0.5f}), 0.9f).result);
}

TEST_CASE("argmax agrees with its reference") {
  Random random(3);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})  // bf16 has ties
    for (const int64_t rows : {0, 1, 20})
      for (const int64_t vocabulary : {1, 129, 2000}) {
        const Tensor logits = random.values(dtype, {rows, vocabulary});
        Tensor tokens(Dtype::kI32, {rows});
        OpHarness op(Argmax::kName);
        op.add(logits).add(tokens);
        op.require_agreement("argmax", Argmax::kTokens, tokens);
        CHECK(!op_kind(Argmax::kName).selection(op.call(), rows));
      }
}

TEST_CASE("argmax takes the lowest of the largest, and a NaN never wins") {
  CHECK(argmax(row({1, 3, 3, 2})) == 1);
  CHECK(argmax(row({kNan, -5, kNan, -4})) == 3);
  CHECK(argmax(row({kNan, -INFINITY, kNan})) == 1);
  CHECK(argmax(row({kNan, kNan})) == 0);
}

TEST_CASE("argmax's selection check fires for a smaller, a NaN or a missing token, and takes any of equal ones") {
  const Tensor logits = row({1, kNan, 3, 3});
  Tensor token(Dtype::kI32, {1});
  OpHarness op(Argmax::kName);
  op.add(logits).add(token);
  const auto problem = [&](int64_t chosen) {
    token.view().store_index(0, chosen);
    return op_kind(Argmax::kName).selection(op.call(), 1);
  };
  CHECK(!problem(2));
  CHECK(!problem(3));
  for (const int64_t wrong : {0, 1, -1, 4}) {
    REQUIRE(problem(wrong));
    CHECK(problem(wrong)->operand == Argmax::kTokens);
  }
  CHECK(!op_kind(Argmax::kName).selection(op.call(), 0));
}

TEST_CASE("samplers serve the sampling axis") {
  CHECK(kernel_serving("sampling_backend", "pytorch", Sample::kName) == find_kernel(Sample::kName, "pytorch"));
  CHECK(kernel_serving("sampling_backend", "flashinfer", Sample::kName) == find_kernel(Sample::kName, "flashinfer"));
}
