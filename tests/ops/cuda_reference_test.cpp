#ifdef FAULTLINE_HAVE_CUDA
#include "cuda_reference_twin.h"
#include "ops/kinds.h"

using namespace faultline;
using namespace faultline::test;

TEST_CASE("every op kind has its references on the device, and every kernel its spec") {
  CHECK(op_kinds().size() >= 26);
  for (const OpKind* kind : op_kinds()) {
    INFO(kind->name);
    CHECK(has_cuda_reference(*kind, nullptr, ReferenceOf::kModel));
    for (const Kernel* kernel : kernels_of(kind->name)) {
      INFO(kernel->name);
      CHECK(has_cuda_reference(*kind, kernel, ReferenceOf::kSpec));
    }
  }
}

TEST_CASE("a kernel whose spec is nobody's on the device is left to the host") {
  Kernel stranger;
  stranger.name = "stranger";
  stranger.kind = ops::Linear::kName;
  stranger.spec = op_kind(ops::Linear::kName).model;
  const OpKind& kind = op_kind(ops::Linear::kName);
  CHECK_FALSE(has_cuda_reference(kind, &stranger, ReferenceOf::kSpec));
  CHECK(has_cuda_reference(kind, &stranger, ReferenceOf::kModel));
  CHECK_FALSE(run_cuda_reference(kind, &stranger, ReferenceOf::kSpec, OpCall{}));
}

TEST_CASE("device reference: prepare", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(1);
  for (const int64_t requests : {0, 1, 3, 40}) {
    constexpr int64_t kColumns = 70;
    const int64_t pool = requests + 2;
    Tensor table(Dtype::kI32, {pool, kColumns});
    for (int64_t i = 0; i < table.view().elements(); ++i) table.view().store_index(i, random.below(10000));
    std::vector<int32_t> rows = random.shuffled(pool);
    rows.resize(static_cast<size_t>(requests));
    std::vector<int32_t> lengths;
    std::vector<int32_t> starts = {0};
    for (int64_t r = 0; r < requests; ++r) {
      lengths.push_back(static_cast<int32_t>(1 + random.below(kColumns)));
      starts.push_back(starts.back() + static_cast<int32_t>(random.below(lengths.back() + 1)));
    }
    const int64_t tokens = starts.back();
    const Tensor req_pool = integers({requests}, rows);
    const Tensor seq_lens = integers({requests}, lengths);
    const Tensor cu = integers({requests + 1}, starts);
    const Tensor positions(Dtype::kI32, {tokens + 2});
    const Tensor map(Dtype::kI32, {tokens + 2});
    const Tensor keys(Dtype::kI32, {tokens + 2});
    const Tensor pages(Dtype::kI32, {requests, kColumns});
    const Tensor offsets(Dtype::kI32, {tokens + 2});
    const Tensor flat(Dtype::kI32, {requests * kColumns});
    OpHarness op(ops::Prepare::kName);
    op.add(table).add(req_pool).add(seq_lens).add(cu).add(positions).add(map).add(keys).add(pages).add(offsets);
    const Tensor live = integers({1}, {static_cast<int32_t>(requests)});
    op.add(flat).add(live);
    require_same(ops::Prepare::kName, op);
  }
}

TEST_CASE("device reference: embed, gather_rows, add, silu_mul", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(2);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const int64_t rows : {0, 1, 77}) {
      constexpr int64_t kColumns = 37;
      std::vector<int32_t> picked;
      for (int64_t r = 0; r < rows; ++r) picked.push_back(static_cast<int32_t>(random.below(20)));
      const Tensor ids = integers({rows}, picked);
      const Tensor out(dtype, {rows, kColumns});
      for (const Dtype table_dtype : {Dtype::kF32, Dtype::kBF16}) {
        const Tensor source = random.values(table_dtype, {20, kColumns});
        OpHarness embed(ops::Embed::kName);
        require_same(ops::Embed::kName, embed.add(ids).add(source).add(out));
        OpHarness gather(ops::GatherRows::kName);
        require_same(ops::GatherRows::kName, gather.add(source).add(ids).add(out));
      }
      const Tensor a = random.values(dtype, {rows, kColumns});
      const Tensor b = random.values(dtype, {rows, kColumns});
      OpHarness add(ops::Add::kName);
      require_same(ops::Add::kName, add.add(a).add(b).add(out));
      const Tensor both = random.values(dtype, {rows, 2 * kColumns}, 6);
      OpHarness silu(ops::SiluMul::kName);
      require_same(ops::SiluMul::kName, silu.add(both).add(out));
    }
}

TEST_CASE("device reference: norms, also of columns of wider rows", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(3);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const int64_t rows : {0, 1, 9})
      for (const int64_t columns : {1, 32, 300, 6144}) {
        const Tensor x = random.values(dtype, {rows, columns + 5}, 3);
        const Tensor out(dtype, {rows, columns + 7});
        const Tensor weight = random.values(Dtype::kBF16, {columns});
        const Tensor bias = random.values(Dtype::kF32, {columns});
        OpHarness rms(ops::RmsNorm::kName);
        rms.add_list({slice_last(x.view(), 5, columns)}).add(weight).add_list({slice_last(out.view(), 3, columns)});
        rms.attributes().set("eps", 1e-5);
        require_same(ops::RmsNorm::kName, rms);
        OpHarness layer(ops::LayerNorm::kName);
        layer.add_list({slice_last(x.view(), 5, columns)}).add(weight).add(bias);
        layer.add_list({slice_last(out.view(), 3, columns)});
        layer.attributes().set("eps", 1e-6);
        require_same(ops::LayerNorm::kName, layer);
      }
}

TEST_CASE("device reference: rope", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(4);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const int64_t tokens : {0, 1, 5})
      for (const bool interleaved : {false, true})
        for (const bool enabled : {false, true}) {
          std::vector<int32_t> at;
          for (int64_t t = 0; t < tokens; ++t) at.push_back(static_cast<int32_t>(t == 0 ? 0 : random.below(200000)));
          const Tensor x = random.values(dtype, {tokens, 3, 96});
          const Tensor positions = integers({tokens}, at);
          const Tensor out(dtype, {tokens, 3, 96});
          OpHarness op(ops::Rope::kName);
          op.add(x).add(positions).add(out);
          op.attributes().set("theta", 1e6).set("rope_dim", 64).set("interleaved", interleaved).set("enabled", enabled);
          require_same(ops::Rope::kName, op);
        }
}

TEST_CASE("device reference: linear with weights of every precision, stacked", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(5);
  for (const Precision precision : kEveryPrecision)
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
      for (const int64_t rows : {0, 1, 17}) {
        constexpr int64_t kColumns = 144;  // more than one FP8 block, a whole number of FP4 blocks
        const WeightList weights(precision, random, {5, 1, 130}, kColumns);
        const Tensor x = random.values(dtype, {rows, kColumns});
        const Tensor out(dtype, {rows, 140});
        OpHarness op(ops::Linear::kName);
        op.add(x);
        weights.add_to(op);
        op.add_list({slice_last(out.view(), 2, 136)});
        require_same(ops::Linear::kName, op, table(ops::Linear::kName));
      }
}

TEST_CASE("device references: linear_w4a4, model and spec", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(6);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const int64_t rows : {0, 1, 17})
      for (const int64_t columns : {16, 144, 1024}) {
        const WeightList weights(Precision::kNvfp4, random, {9, 40}, columns);
        const Tensor codes = random_codes(random, rows, columns);
        const Tensor scales = random_scales(random, rows, columns);
        const Tensor small = scalar(0.01f);
        const Tensor large = scalar(0.03f);
        const Tensor out(dtype, {rows, 49});
        OpHarness op(ops::LinearW4A4::kName);
        op.add(codes).add(scales);
        weights.add_to(op);
        op.add_list({small.view(), large.view()}).add(out);
        require_same(ops::LinearW4A4::kName, op, table(ops::LinearW4A4::kName));
        require_same(ops::LinearW4A4::kName, op, table(ops::LinearW4A4::kName), "flashinfer_cutlass");
      }
}

TEST_CASE("device reference: quantize_fp4, equal codes and scales", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(7);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const int64_t rows : {0, 1, 33})
      for (const float input_scale : {0.02f, 1e-4f, 0.0f, kNan}) {
        const Tensor x = random.values(dtype, {rows, 96}, 4);
        if (rows > 1) {
          for (int64_t c = 0; c < 16; ++c) x.view().store(c, 0);
          for (int64_t c = 16; c < 32; ++c) x.view().store(c, kNan);
          x.view().store(40, kNan);
          x.view().store(50, -kInf);
          x.view().store(70, 1e-30f);
        }
        const Tensor first = scalar(input_scale);
        const Tensor second = scalar(1e-5f);
        const Tensor codes(Dtype::kU8, {rows, 48});
        const Tensor scales(Dtype::kF8E4M3, {rows, 6});
        OpHarness op(ops::QuantizeFp4::kName);
        // A zero among others is not the largest; a NaN always is.
        const TensorView around = input_scale == 0 ? first.view() : second.view();
        op.add(x).add_list({around, first.view(), around}).add(codes).add(scales);
        require_same(ops::QuantizeFp4::kName, op);
      }
}

TEST_CASE("device reference: batched_linear, both ways around", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(8);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const int64_t rows : {0, 1, 6})
      for (const bool weight_kn : {false, true}) {
        constexpr int64_t kHeads = 3, kK = 50, kN = 70;
        const Tensor x = random.values(dtype, {rows, kHeads, kK});
        // As in kv_b_proj, a head's matrix lies among other rows.
        const Tensor whole = random.values(Dtype::kBF16, {kHeads, 100, weight_kn ? kN : kK});
        TensorView w = whole.view();
        w.shape[1] = weight_kn ? kK : kN;
        const Tensor out(dtype, {rows, kHeads, kN});
        OpHarness op(ops::BatchedLinear::kName);
        op.add(x).add_list({w}).add(out).attributes().set("weight_kn", weight_kn);
        require_same(ops::BatchedLinear::kName, op, table(ops::BatchedLinear::kName));
      }
}

namespace {

constexpr int64_t kExperts = 5;

// Ids of tokens, and their order by expert as the host's reference makes it. Expert 2 never has a row.
struct Routing {
  Routing(Random& random, int64_t tokens, int64_t k)
      : ids(Dtype::kI32, {tokens, k}), order(Dtype::kI32, {tokens * k}), offsets(Dtype::kI32, {kExperts + 1}) {
    constexpr int32_t kUsable[] = {4, 0, 3, 1};
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t first = random.below(4);
      for (int64_t j = 0; j < k; ++j) ids.view().store_index(t * k + j, kUsable[(first + j) % 4]);
    }
    op.add(ids).add(order).add(offsets);
    op.run_model();
  }
  Tensor ids;
  Tensor order;
  Tensor offsets;
  OpHarness op{ops::MoePermute::kName};
};

}  // namespace

TEST_CASE("device references: moe_permute, expert_linear, moe_combine", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(9);
  for (const int64_t tokens : {0, 1, 23})
    for (const int64_t k : {1, 3}) {
      const Routing routing(random, tokens, k);
      require_same(ops::MoePermute::kName, routing.op);
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
        const Tensor x = random.values(dtype, {tokens * k, 33});
        const Tensor weights = random.values(Dtype::kF32, {tokens, k});
        const Tensor out(dtype, {tokens, 33});
        OpHarness op(ops::MoeCombine::kName);
        require_same(ops::MoeCombine::kName, op.add(x).add(weights).add(out));
      }
      for (const Precision precision : kEveryPrecision)
        for (const int64_t stacked : {1, 2}) {
          const bool per_token = stacked == 2;
          const Dtype dtype = k == 1 ? Dtype::kF32 : Dtype::kBF16;
          constexpr int64_t kColumns = 144;
          WeightList weights(precision, random, {}, kColumns);
          for (int64_t i = 0; i < kExperts * stacked; ++i) weights.add(random, 21, kColumns);
          const Tensor x = random.values(dtype, {per_token ? tokens : tokens * k, kColumns});
          const Tensor out(dtype, {tokens * k, 21 * stacked});
          OpHarness op(ops::ExpertLinear::kName);
          op.add(x).add(routing.order).add(routing.offsets);
          weights.add_to(op);
          op.add(out).attributes().set("k", k).set("stacked", stacked).set("x_per_token", per_token);
          require_same(ops::ExpertLinear::kName, op, table(ops::ExpertLinear::kName));
        }
    }
}

TEST_CASE("device references: expert_linear_w4a4, model and spec", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(10);
  for (const int64_t tokens : {0, 1, 23})
    for (const int64_t stacked : {1, 2}) {
      constexpr int64_t kTopK = 2, kColumns = 96;
      const bool per_token = stacked == 2;
      const Routing routing(random, tokens, kTopK);
      WeightList weights(Precision::kNvfp4, random, {}, kColumns);
      std::vector<Tensor> input_scales;
      for (int64_t i = 0; i < kExperts * stacked; ++i) {
        weights.add(random, 21, kColumns);
        input_scales.push_back(scalar(0.01f * static_cast<float>(1 + i)));
      }
      const int64_t rows = per_token ? tokens : tokens * kTopK;
      const Tensor codes = random_codes(random, rows, kColumns);
      const Tensor scales = random_scales(random, rows, kColumns);
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
        const Tensor out(dtype, {tokens * kTopK, 21 * stacked});
        OpHarness op(ops::ExpertLinearW4A4::kName);
        op.add(codes).add(scales).add(routing.order).add(routing.offsets);
        weights.add_to(op);
        op.add_list(views_of(input_scales)).add(out);
        op.attributes().set("k", kTopK).set("stacked", stacked).set("x_per_token", per_token);
        require_same(ops::ExpertLinearW4A4::kName, op, table(ops::ExpertLinearW4A4::kName));
        require_same(ops::ExpertLinearW4A4::kName, op, table(ops::ExpertLinearW4A4::kName), "flashinfer_cutlass");
      }
    }
}
#endif
