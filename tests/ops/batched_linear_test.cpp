#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;
using ops::BatchedLinear;

TEST_CASE("batched products agree with the reference in both weight layouts") {
  Random random(1);
  for (const bool weight_kn : {false, true})
    for (const Dtype weight_dtype : {Dtype::kBF16, Dtype::kF32})
      for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
        for (const int64_t tokens : {0, 1, 2, 5, 129})
          for (const int64_t k : {1, 24, 33})
            for (const int64_t n : {1, 19, 96}) {
              const Tensor x = random.values(dtype, {tokens, 3, k});
              const Tensor w = weight_kn ? random.values(weight_dtype, {3, k, n}, 0.2f)
                                         : random.values(weight_dtype, {3, n, k}, 0.2f);
              Tensor out(dtype, {tokens, 3, n});
              OpHarness op(BatchedLinear::kName);
              op.add(x).add(w).add(out).attributes().set("weight_kn", weight_kn);
              op.require_agreement("bmm", BatchedLinear::kOut, out);
            }
}

TEST_CASE("batched products read half-precision weights") {
  Random random(2);
  for (const bool weight_kn : {false, true}) {
    Tensor w(Dtype::kF16, {2, 8, 8});
    for (int64_t i = 0; i < 128; ++i) w.view().as<F16>()[i] = F16{static_cast<uint16_t>(random.below(0x3C00))};
    const Tensor x = random.values(Dtype::kF32, {3, 2, 8});
    Tensor out(Dtype::kF32, {3, 2, 8});
    OpHarness op(BatchedLinear::kName);
    op.add(x).add(w).add(out).attributes().set("weight_kn", weight_kn);
    op.require_agreement("bmm", BatchedLinear::kOut, out);
  }
}

TEST_CASE("a batched product works on a part of each head, with a view into kv_b_proj as its weight") {
  Random random(3);
  constexpr int64_t kTokens = 4, kHeads = 2, kNope = 6, kRope = 4, kValue = 5, kLatent = 16;
  const Tensor q = random.values(Dtype::kBF16, {kTokens, kHeads, kNope + kRope});
  const Tensor kv_b = random.values(Dtype::kBF16, {kHeads, kNope + kValue, kLatent}, 0.2f);
  TensorView w_uk = kv_b.view();
  w_uk.shape[1] = kNope;
  Tensor out(Dtype::kF32, {kTokens, kHeads, kLatent + kRope});
  OpHarness op(BatchedLinear::kName);
  op.add_list({slice_last(q.view(), 0, kNope)}).add_list({w_uk}).add_list({slice_last(out.view(), 0, kLatent)});
  op.attributes().set("weight_kn", true);
  REQUIRE(!op.run("bmm"));
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t n = 0; n < kLatent + kRope; ++n) {
        double expected = 0;
        for (int64_t k = 0; n < kLatent && k < kNope; ++k)
          expected += static_cast<double>(q.at(q.view().offset(t, h, k))) * kv_b.at(kv_b.view().offset(h, k, n));
        CHECK(out.at(out.view().offset(t, h, n)) == Approx(expected).margin(1e-5));
      }
}
