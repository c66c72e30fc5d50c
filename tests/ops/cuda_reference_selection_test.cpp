// The device references of caches, attention and everything that chooses, against the host's; and the comparison there.
#ifdef FAULTLINE_HAVE_CUDA
#include "cuda_reference_twin.h"
#include "ops/kinds.h"

using namespace faultline;
using namespace faultline::test;

namespace {

constexpr Format kKvFormats[] = {Format::kKvF32, Format::kKvBf16, Format::kKvPacked, Format::kKvPlainFp8};
constexpr Format kIndexFormats[] = {Format::kIndexF32, Format::kIndexFp8};

Tensor few_values(Random& random, std::initializer_list<int64_t> shape, int64_t different) {
  Tensor tensor(Dtype::kF32, shape);
  for (int64_t i = 0; i < tensor.view().elements(); ++i)
    tensor.view().store(i, static_cast<float>(random.below(different)) - 2);
  return tensor;
}

}  // namespace

TEST_CASE("device reference: cache_write, byte by byte in every format", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(1);
  const auto write = [&](const CacheGeometry& geometry, Dtype dtype, const std::vector<int32_t>& into, bool floorless) {
    const auto rows = static_cast<int64_t>(into.size());
    const Tensor x = random.values(dtype, {rows, geometry.width()}, 300);
    if (rows > 2) {
      for (int64_t c = 0; c < geometry.width(); ++c) x.view().store(geometry.width() + c, 0);  // amax 0
      x.view().store(2 * geometry.width() + 1, kNan);
      x.view().store(2 * geometry.width() + 2, kInf);
    }
    const Tensor slots = integers({rows}, into);
    const Tensor pool(Dtype::kU8, {geometry.total_bytes()});
    OpHarness op(ops::CacheWrite::kName);
    op.add(x).add(slots).add_cache(pool, geometry).attributes().set("floorless", floorless);
    require_same(ops::CacheWrite::kName, op);
  };
  // Slots that do not exist, and one that several (padded) rows share.
  for (const std::vector<int32_t>& slots : {std::vector<int32_t>{}, {5}, {3, 15, 0, 8, 7}, {0, 16, -1, 9, 0, 12, 0}})
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
      for (const bool floorless : {false, true}) {
        for (const Format format : kKvFormats) write(geometry_of(format, 16, 32, 16, 8), dtype, slots, floorless);
        for (const Format format : kIndexFormats) write(geometry_of(format, 16, 32, 0, 8), dtype, slots, floorless);
      }
  write(geometry_of(Format::kKvPacked, 64, 512, 64), Dtype::kBF16, {63, 0, 17}, true);
  write(geometry_of(Format::kIndexFp8, 128, 128, 0), Dtype::kBF16, {127, 0, 64, 63}, false);
}

TEST_CASE("device reference: cache_gather, also with slots that do not exist and another reader's stride", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(2);
  for (const Format format : kKvFormats)
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
      for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{}, {1}, {7, 0, 20}, {60}}) {
        const CacheGeometry geometry = geometry_of(format, 64, 32, 16, 8);
        const Tensor pool = random_pool(geometry, random);
        std::vector<int32_t> listed = random.shuffled(64);
        listed.resize(40);
        listed[3] = -1;
        listed[5] = 64;
        const Tensor slots = integers({40}, listed);
        const Tensor seq_lens = integers({static_cast<int64_t>(lengths.size())}, lengths);
        const Tensor out(dtype, {40, geometry.width()});
        OpHarness op(ops::CacheGather::kName);
        require_same(ops::CacheGather::kName, op.add_cache(pool, geometry).add(slots).add(seq_lens).add(out));
      }
  CacheGeometry packed = geometry_of(Format::kKvPacked, 64, 32, 16, 8);
  const Tensor pool = random_pool(packed, random);
  CacheGeometry taken = packed;
  taken.format = Format::kKvPlainFp8;
  taken.row_stride_bytes = packed.row_bytes();
  const Tensor slots = integers({4}, {0, 63, 31, 2});
  const Tensor seq_lens = integers({1}, {4});
  const Tensor out(Dtype::kF32, {4, taken.width()});
  OpHarness op(ops::CacheGather::kName);
  require_same(ops::CacheGather::kName, op.add_cache(pool, taken).add(slots).add(seq_lens).add(out));
}

TEST_CASE("device references: cache_requantize, model and spec, with a slot of zeros", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(3);
  for (const Format format : {Format::kKvBf16, Format::kKvF32})
    for (const int64_t latent : {32, 512}) {
      const CacheGeometry from = geometry_of(format, 64, latent, 16);
      const CacheGeometry to = geometry_of(Format::kKvPacked, 64, latent, 16);
      const Tensor pool = random_pool(from, random);
      const std::vector<float> zeros(static_cast<size_t>(from.width()));
      encode_slot(from, pool.view().data, 9, zeros.data(), false);
      const Tensor slots = integers({3}, {1, 9, 63});
      const Tensor seq_lens = integers({1}, {3});
      const Tensor packed(Dtype::kU8, {to.total_bytes()});
      OpHarness op(ops::CacheRequantize::kName);
      op.add_cache(pool, from).add(slots).add(seq_lens).add_cache(packed, to);
      require_same(ops::CacheRequantize::kName, op);
      require_same(ops::CacheRequantize::kName, op, std::nullopt, "quantize_k_cache");
    }
}

TEST_CASE("device reference: index_scores", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(4);
  struct Size {
    int64_t heads, dim;
  };
  for (const Format format : kIndexFormats)
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
      for (const Size size : {Size{3, 20}, Size{32, 128}})
        for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{}, {70}, {1, 0, 64, 90, 65}}) {
          const auto tokens = static_cast<int64_t>(lengths.size());
          const CacheGeometry geometry = geometry_of(format, 128, size.dim, 0);
          const Tensor q = random.values(dtype, {tokens, size.heads, size.dim});
          const Tensor weights = random.values(Dtype::kF32, {tokens, size.heads});
          const Tensor pool = random_pool(geometry, random);
          const Tensor table = integers({2, 64}, random.shuffled(128));
          table.view().store_index(70, -1);
          table.view().store_index(80, 128);
          const Tensor map(Dtype::kI32, {tokens});
          for (int64_t t = 0; t < tokens; ++t) map.view().store_index(t, t % 3);  // request 2 does not exist
          const Tensor keys = integers({tokens}, lengths);
          const Tensor out(Dtype::kF32, {tokens, 64});
          OpHarness op(ops::IndexScores::kName);
          op.add(q).add(weights).add_cache(pool, geometry).add(table).add(map).add(keys).add(out);
          require_same(ops::IndexScores::kName, op);
        }
}

TEST_CASE("device reference: topk in the host's own order, with ties and NaN, for every transform", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(5);
  for (const int64_t k : {1, 16, 64})
    for (const int transform : {0, 1, 2})
      for (const bool ties : {false, true}) {
        constexpr int64_t kColumns = 150;
        const std::vector<int32_t> lengths = {0, 1, 15, 16, 17, 63, 64, 65, 150, 200, 150};
        const auto tokens = static_cast<int64_t>(lengths.size());
        const Tensor scores =
            ties ? few_values(random, {tokens, kColumns}, 5) : random.values(Dtype::kF32, {tokens, kColumns});
        for (int64_t i = 0; i < 40; ++i) scores.view().store(8 * kColumns + 3 * i, kNan);
        for (int64_t i = 0; i < kColumns; ++i) scores.view().store(10 * kColumns + i, kNan);
        scores.view().store(9 * kColumns + 20, kInf);
        scores.view().store(9 * kColumns + 21, -kInf);
        const Tensor keys = integers({tokens}, lengths);
        const Tensor table(Dtype::kI32, {4, 140});
        for (int64_t i = 0; i < table.view().elements(); ++i) table.view().store_index(i, random.below(1000));
        const Tensor map(Dtype::kI32, {tokens});
        const Tensor offsets(Dtype::kI32, {tokens});
        for (int64_t t = 0; t < tokens; ++t) {
          map.view().store_index(t, t % 5);  // request 4 does not exist
          offsets.view().store_index(t, 100 * t);
        }
        const Tensor out(Dtype::kI32, {tokens, k});
        OpHarness op(ops::TopK::kName);
        op.add(scores).add(keys).add(table).add(map).add(offsets).add(out);
        op.attributes().set("topk", k).set("transform", transform);
        require_same(ops::TopK::kName, op);
      }
  const Tensor none(Dtype::kF32, {0, 20});
  const Tensor no_keys(Dtype::kI32, {0});
  const Tensor out(Dtype::kI32, {0, 4});
  OpHarness op(ops::TopK::kName);
  op.add(none).add(no_keys).add_absent().add_absent().add_absent().add(out);
  op.attributes().set("topk", 4).set("transform", 0);
  require_same(ops::TopK::kName, op);
}

TEST_CASE("device reference: attention, sparse and dense, over every cache format", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(6);
  struct Size {
    int64_t heads, latent, rope, topk;
    std::vector<int32_t> lengths;
  };
  const Size sizes[] = {{3, 32, 16, 16, {}},
                        {1, 32, 16, 16, {40}},
                        {4, 32, 16, 16, {0, 1, 15, 16, 17, 63, 64, 65, 170}},
                        {2, 512, 64, 300, {290, 3}},
                        {2, 640, 64, 20, {31}}};
  for (const Size& size : sizes)
    for (const Format format : kKvFormats)
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
        for (const int form : {0, 1, 2}) {  // sparse, through the page table, a contiguous buffer
          const auto tokens = static_cast<int64_t>(size.lengths.size());
          const CacheGeometry geometry = geometry_of(format, 320, size.latent, size.rope);
          const Tensor q = random.values(dtype, {tokens, size.heads, geometry.width()}, 0.5f);
          const Tensor pool = random_pool(geometry, random);
          const Tensor indices(Dtype::kI32, {tokens, size.topk});
          const Tensor table(Dtype::kI32, {3, 160});
          for (int64_t i = 0; i < table.view().elements(); ++i) table.view().store_index(i, random.below(320));
          table.view().store_index(7, -1);
          table.view().store_index(9, 320);
          const Tensor map(Dtype::kI32, {tokens});
          const Tensor offsets(Dtype::kI32, {tokens});
          for (int64_t t = 0; t < tokens; ++t) {
            const std::vector<int32_t> slots = random.shuffled(320);
            for (int64_t i = 0; i < size.topk; ++i)
              indices.view().store_index(t * size.topk + i,
                                         i < size.lengths[static_cast<size_t>(t)] ? slots[static_cast<size_t>(i)] : -1);
            map.view().store_index(t, t % 4);  // request 3 does not exist
            offsets.view().store_index(t, 30 * t);
          }
          const Tensor keys = integers({tokens}, size.lengths);
          const Tensor out(dtype, {tokens, size.heads, size.latent});
          OpHarness op(ops::Attention::kName);
          op.add(q).add_cache(pool, geometry).add(indices).add(table).add(map).add(keys).add(offsets);
          op.add_absent().add(out);
          op.attributes().set("scale", 0.2).set("dense", form != 0).set("index_form", form == 0 ? 1 : form);
          op.attributes().set("topk", size.topk).set("splits", 4);
          require_same(ops::Attention::kName, op);
        }
}

TEST_CASE("device reference: a NaN in the cache is a NaN for the tokens that read it, and for no other", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(7);
  const CacheGeometry geometry = geometry_of(Format::kKvBf16, 64, 32, 16);
  const Tensor pool = random_pool(geometry, random);
  std::vector<float> row(static_cast<size_t>(geometry.width()), 1.0f);
  row[5] = kNan;
  encode_slot(geometry, pool.view().data, 3, row.data(), false);
  const Tensor q = random.values(Dtype::kF32, {2, 2, geometry.width()});
  const Tensor indices = integers({2, 3}, {1, 3, 4, 1, 2, 4});
  const Tensor out(Dtype::kF32, {2, 2, 32});
  OpHarness op(ops::Attention::kName);
  op.add(q).add_cache(pool, geometry).add(indices).add_absent().add_absent().add_absent().add_absent().add_absent();
  op.add(out).attributes().set("scale", 0.2).set("dense", false);
  require_same(ops::Attention::kName, op);
  CHECK(std::isnan(out.at(0)));
  CHECK(std::isfinite(out.at(64)));
}

TEST_CASE("device reference: router, with groups, ties and NaN", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(8);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const int64_t experts : {16, 256})
      for (const int64_t groups : {1, 4, 16})
        for (const int64_t rows : {0, 1, 19})
          for (const bool norm : {false, true}) {
            const int64_t kept = (groups + 1) / 2;
            const int64_t k = std::min<int64_t>(8, experts / groups * kept);
            const Tensor logits = random.values(dtype, {rows, experts}, 2);
            for (int64_t e = 0; rows > 1 && e < experts; ++e) logits.view().store(experts + e, 0.5f);
            for (int64_t e = 0; rows > 2 && e < experts; ++e) logits.view().store(2 * experts + e, kNan);
            if (rows > 3) logits.view().store(3 * experts + 1, kNan);
            Tensor bias = random.values(Dtype::kF32, {experts}, 0.1f);
            for (int64_t e = 0; rows > 1 && e < experts; ++e)
              bias.view().store(e, 7 + static_cast<float>(random.below(4)) * 0.25f);
            const Tensor ids(Dtype::kI32, {rows, k});
            const Tensor weights(Dtype::kF32, {rows, k});
            OpHarness op(ops::Router::kName);
            op.add(logits).add(bias).add(ids).add(weights);
            op.attributes().set("k", k).set("n_group", groups).set("topk_group", kept).set("norm_topk", norm);
            op.attributes().set("scaling", 2.5);
            require_same(ops::Router::kName, op);
          }
}

TEST_CASE("device reference: softmax, with a top-p cut among equal probabilities", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(9);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const int64_t vocabulary : {1, 37, 5000})
      for (const double top_p : {1.0, 0.95, 0.3, 0.0})
        for (const double temperature : {1.0, 0.5}) {
          const Tensor logits = random.values(dtype, {6, vocabulary}, 3);
          const Tensor coarse = few_values(random, {1, vocabulary}, 4);
          for (int64_t c = 0; c < vocabulary; ++c) {
            logits.view().store(vocabulary + c, coarse.at(c));
            logits.view().store(2 * vocabulary + c, 1);
            logits.view().store(3 * vocabulary + c, c % 3 == 0 ? -kInf : coarse.at(c));
          }
          logits.view().store(4 * vocabulary, kNan);
          logits.view().store(5 * vocabulary, kInf);
          const Tensor probs(Dtype::kF32, {6, vocabulary});
          OpHarness op(ops::Softmax::kName);
          op.add(logits).add(probs).attributes().set("temperature", temperature).set("top_p", top_p);
          require_same(ops::Softmax::kName, op, Tolerance{1e-9, 1e-5});
        }
}

TEST_CASE("device reference: sample and argmax", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(10);
  for (const int64_t rows : {0, 1, 40})
    for (const int64_t vocabulary : {1, 37, 3000}) {
      const Tensor probs(Dtype::kF32, {rows, vocabulary});
      for (int64_t i = 0; i < probs.view().elements(); ++i)
        probs.view().store(i, 2.0f * static_cast<float>(random.below(1000)) / 1000.0f / static_cast<float>(vocabulary));
      if (rows > 1) probs.view().store(vocabulary, kNan);
      const Tensor uniform(Dtype::kF32, {rows});
      for (int64_t r = 0; r < rows; ++r)
        uniform.view().store(r, r == 2 ? 5.0f : static_cast<float>(random.below(1000)) / 1000.0f);
      const Tensor tokens(Dtype::kI32, {rows});
      OpHarness sample(ops::Sample::kName);
      require_same(ops::Sample::kName, sample.add(probs).add(uniform).add(tokens));
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
        const Tensor logits = random.values(dtype, {rows, vocabulary}, 2);
        for (int64_t c = 0; rows > 3 && c < vocabulary; ++c) {
          logits.view().store(c, kNan);
          logits.view().store(vocabulary + c, 3);
          if (c % 2 == 0) logits.view().store(2 * vocabulary + c, kNan);
          logits.view().store(3 * vocabulary + c, c % 5 == 4 ? kInf : -kInf);
        }
        OpHarness argmax(ops::Argmax::kName);
        require_same(ops::Argmax::kName, argmax.add(logits).add(tokens));
      }
    }
}

TEST_CASE("closeness on the device: counts what is apart, names the first, and fails on NaN", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  Random random(11);
  const auto result = std::move(*device_of_tests().allocate_host(sizeof(Closeness)));
  const auto* closeness = reinterpret_cast<const Closeness*>(result->data());
  const auto compare = [&](const Tensor& out, const Tensor& ref, int64_t rows, const Tensor* lengths) {
    std::vector<std::unique_ptr<Buffer>> buffers;
    const auto upload = [&](const Tensor& tensor) {
      TensorView view = tensor.view();
      buffers.push_back(std::move(*device_of_tests().allocate(tensor.bytes())));
      view.data = buffers.back()->data();
      device_of_tests().copy(view.data, tensor.view().data, tensor.bytes());
      return view;
    };
    std::memset(result->data(), 0x77, sizeof(Closeness));
    compare_on_cuda(upload(out), upload(ref), rows, lengths == nullptr ? TensorView{} : upload(*lengths),
                    Tolerance{1e-3, 1e-2}, reinterpret_cast<Closeness*>(result->data()), device_of_tests().stream());
    REQUIRE(kernels::take_launch_error() == nullptr);
    REQUIRE_FALSE(device_of_tests().wait());
    return *closeness;
  };
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    const Tensor ref = random.values(dtype, {301, 7, 50});
    ref.view().store(12, kNan);
    ref.view().store(13, kInf);
    const Tensor out(ref);
    CHECK(compare(out, ref, 301, nullptr).count == 0);
    CHECK(compare(out, ref, 301, nullptr).first == -1);
    CHECK(compare(out, ref, 0, nullptr).count == 0);
    out.view().store(300 * 350 + 3, 100);
    out.view().store(2 * 350 + 349, kNan);
    out.view().store(2 * 350 + 348, ref.at(2 * 350 + 348) * 1.001f);  // close
    const Closeness all = compare(out, ref, 301, nullptr);
    CHECK(all.count == 2);
    CHECK(all.first == 2 * 350 + 349);
    CHECK(std::isnan(all.out));
    CHECK(all.ref == ref.at(all.first));
    CHECK(compare(out, ref, 300, nullptr).count == 1);
    CHECK(compare(out, ref, 2, nullptr).count == 0);
  }
  const Tensor ref = random.values(Dtype::kF32, {3, 40});
  const Tensor out(ref);
  const Tensor lengths = integers({3}, {10, 50, 0});
  for (const int64_t apart : {10, 79, 80}) out.view().store(apart, 1000);
  const Closeness live = compare(out, ref, 3, &lengths);
  CHECK(live.count == 1);
  CHECK(live.first == 79);
  CHECK(live.out == 1000);
}
#endif
