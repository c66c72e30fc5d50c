// The kernels that transform or round activations on a GPU, with the bodies that nothing faster stands in for: each
// build against the spec reference and the kernel on the CPU.
#include "gpu_twin.h"
#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;

TEST_CASE("the Hadamard transform on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  using H = ops::Hadamard;
  Random random(51);
  for (const Dtype dtype : kActivations)
    for (const int64_t dim : {1, 2, 32, 64, 128, 512})
      for (const int64_t tokens : {0, 1, 65}) {
        CAPTURE(dtype_name(dtype), dim, tokens);
        Tensor x = random.values(dtype, {tokens, 3, dim}, 4);
        if (tokens > 1) x.view().store(random.below(3 * dim), kNan);  // spoils its head alone
        Tensor out(dtype, {tokens, 3, dim});
        poison(out);
        OpHarness op(H::kName);
        op.add(x).add(out);
        require_gpu_agreement(*device, op, H::kName, "hadamard", {{H::kOut, &out}});
      }
}

TEST_CASE("queries rounded to FP8 on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  using R = ops::RoundFp8;
  Random random(52);
  const float special[] = {1000, -1000, 448, -448, 464, 0, -0.0f, INFINITY, -INFINITY, kNan, 0.001953125f, 1e-9f};
  for (const Dtype dtype : kActivations)
    for (const int64_t dim : {1, 48, 576})
      for (const int64_t tokens : {0, 1, 65}) {
        CAPTURE(dtype_name(dtype), dim, tokens);
        Tensor x = random.values(dtype, {tokens, 5, dim}, 40);
        if (tokens > 1)
          for (const float value : special) x.view().store(random.below(tokens * 5 * dim), value);
        Tensor out(dtype, {tokens, 5, dim});
        poison(out);
        OpHarness op(R::kName);
        op.add(x).add(out);
        require_gpu_agreement(*device, op, R::kName, "quantize_q", {{R::kOut, &out}});
      }
}

TEST_CASE("the FP4 quantiser with a scale an expert on a GPU gives the reference's bytes", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  using Q = ops::QuantizeFp4Experts;
  constexpr int64_t kExperts = 256;
  constexpr int64_t kTopK = 8;
  Random random(53);
  std::vector<Tensor> scalars;
  for (int64_t i = 0; i < 2 * kExperts; ++i)
    scalars.push_back(scalar(0.001f + 0.003f * static_cast<float>(random.below(1000)) / 999));
  for (const Dtype dtype : kActivations)
    for (const int64_t stacked : {1, 2})
      for (const bool x_per_token : {true, false})
        for (const int64_t tokens : {0, 1, 33})
          for (const int64_t columns : {16, 2048}) {
            CAPTURE(dtype_name(dtype), stacked, x_per_token, tokens, columns);
            const int64_t rows = tokens * kTopK;
            Tensor x = random.values(dtype, {x_per_token ? tokens : rows, columns}, 3);
            if (tokens > 1)
              for (int i = 0; i < 20; ++i) x.view().store(random.below(tokens * columns), i < 10 ? kNan : 1e30f);
            Tensor ids(Dtype::kI32, {tokens, kTopK});
            for (int64_t i = 0; i < rows; ++i) ids.view().store_index(i, random.below(kExperts));
            std::vector<TensorView> list = views_of(scalars);
            list.resize(static_cast<size_t>(stacked * kExperts));
            Tensor codes(Dtype::kU8, {rows, columns / 2});
            Tensor scales(Dtype::kF8E4M3, {rows, columns / 16});
            poison(codes);
            poison(scales);
            OpHarness op(Q::kName);
            op.add(x).add(ids).add_list(list).add(codes).add(scales);
            op.attributes().set("k", kTopK).set("stacked", stacked).set("x_per_token", x_per_token);
            require_gpu_agreement(*device, op, Q::kName, "scaled_fp4_experts_quant",
                                  {{Q::kCodes, &codes}, {Q::kScales, &scales}});
          }
}

TEST_CASE("the checked quantiser of experts' rows on a GPU records an expert that does not exist", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  using Q = ops::QuantizeFp4Experts;
  Random random(54);
  const Tensor x = random.values(Dtype::kBF16, {2, 32});
  const Tensor ids = integers({2, 2}, {0, 1, 7, 0});
  const Tensor one = scalar(0.001f);
  const Tensor two = scalar(0.002f);
  Tensor codes(Dtype::kU8, {4, 16});
  Tensor scales(Dtype::kF8E4M3, {4, 2});
  OpHarness op(Q::kName);
  op.add(x).add(ids).add_list({one.view(), two.view()}).add(codes).add(scales);
  op.attributes().set("k", 2).set("stacked", 1).set("x_per_token", true);
  const GpuRun run = run_on_gpu(*device, op, Q::kName, "scaled_fp4_experts_quant", GpuBuild::kChecked,
                                {{Q::kCodes, &codes}, {Q::kScales, &scales}});
  REQUIRE(run.log.count > 0);
  CHECK(run.log.first[0].operand == Q::kIds);
  CHECK(run.log.first[0].index == 7);
  CHECK(run.log.first[0].extent == 2);
  CHECK(run.log.first[0].block == 2);
}
