#include "attention_case.h"

using namespace faultline;
using namespace faultline::test;
using ops::Attention;
using Case = AttentionCase;
using Shape = AttentionShape;

namespace {

struct Served {
  const char* kernel;
  std::vector<Format> formats;
};
const std::vector<Served> kSparse = {
    {"flashmla_sparse", {Format::kKvBf16, Format::kKvF32}},
    {"flashmla_kv", {Format::kKvPacked, Format::kKvF32}},
    {"trtllm", {Format::kKvBf16, Format::kKvPlainFp8, Format::kKvF32}},
};
const std::vector<Served> kDense = {
    {"triton", {Format::kKvBf16, Format::kKvPlainFp8, Format::kKvF32}},
    {"flashinfer", {Format::kKvBf16, Format::kKvPlainFp8, Format::kKvF32}},
};

}  // namespace

TEST_CASE("sparse kernels agree with the model reference for every format they take") {
  for (const Served& served : kSparse)
    for (const Format format : served.formats)
      for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
        for (const int64_t topk : {12, 64, 100}) {
          INFO(served.kernel << " " << format_name(format) << " " << topk);
          const auto k = static_cast<int32_t>(topk);
          Case c(dtype, format, {.topk = topk}, {1, k - 1, k, k + 40, 0, 63, 64, 65});
          c.op.require_agreement(served.kernel, Attention::kOut, c.out);
        }
}

TEST_CASE("dense kernels agree with the model reference, through the page table and in a contiguous buffer") {
  for (const Served& served : kDense)
    for (const Format format : served.formats)
      for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
        for (const int form : {1, 2}) {
          INFO(served.kernel << " " << format_name(format) << " " << form);
          Case c(dtype, format, {}, {1, 31, 32, 33, 63, 64, 65, 0, 150});
          c.op.attributes().set("dense", true).set("index_form", form);
          c.op.require_agreement(served.kernel, Attention::kOut, c.out);
        }
}

TEST_CASE("the number of heads need not fill a block, and one token or none runs") {
  for (const int64_t heads : {1, 3, 6, 16})
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{}, std::vector<int32_t>{40}}) {
      Case sparse(Dtype::kF32, Format::kKvBf16, {.heads = heads}, lengths);
      sparse.op.require_agreement("flashmla_sparse", Attention::kOut, sparse.out);
      Case split(Dtype::kF32, Format::kKvPacked, {.heads = heads, .topk = 200, .splits = 3}, lengths);
      split.op.require_agreement("flashmla_kv", Attention::kOut, split.out);
      Case dense(Dtype::kF32, Format::kKvBf16, {.heads = heads}, lengths);
      dense.op.attributes().set("dense", true);
      dense.op.require_agreement("triton", Attention::kOut, dense.out);
    }
}

TEST_CASE("kernels agree with the reference at the real head sizes") {
  const Shape shape{.heads = 8, .latent = 512, .rope = 64, .topk = 64, .splits = 1};
  Case sparse(Dtype::kBF16, Format::kKvBf16, shape, {40, 100});
  sparse.op.require_agreement("flashmla_sparse", Attention::kOut, sparse.out);
  Case split(Dtype::kBF16, Format::kKvPacked, shape, {40, 100});
  split.op.require_agreement("flashmla_kv", Attention::kOut, split.out);
}

TEST_CASE("any number of splits gives the output of one, also with more splits than blocks") {
  Case one(Dtype::kF32, Format::kKvPacked, {.topk = 300}, {300, 10, 70, 0});
  REQUIRE(!one.op.run("flashmla_kv"));
  for (const int64_t splits : {2, 3, 5, 9}) {
    Case many(Dtype::kF32, Format::kKvPacked, {.topk = 300, .splits = splits}, {300, 10, 70, 0});
    many.op.require_agreement("flashmla_kv", Attention::kOut, many.out);
    for (int64_t i = 0; i < one.out.view().elements(); ++i) CHECK(many.out.at(i) == Approx(one.out.at(i)).margin(1e-5));
  }
}

TEST_CASE("a row without a key gives zeros") {
  for (const int64_t splits : {1, 3}) {
    Case split(Dtype::kBF16, Format::kKvPacked, {.topk = 130, .splits = splits}, {0, 5});
    REQUIRE(!split.op.run("flashmla_kv"));
    Case sparse(Dtype::kBF16, Format::kKvBf16, {}, {0, 5});
    REQUIRE(!sparse.op.run("flashmla_sparse"));
    Case trusting(Dtype::kBF16, Format::kKvBf16, {}, {0, 5});
    REQUIRE(!trusting.op.run("trtllm"));
    Case dense(Dtype::kBF16, Format::kKvBf16, {}, {0, 5});
    dense.op.attributes().set("dense", true);
    REQUIRE(!dense.op.run("triton"));
    for (const Case* c : {&split, &sparse, &trusting, &dense})
      for (int64_t i = 0; i < 4 * 32; ++i) {
        CHECK(c->out.at(i) == 0.0f);
        CHECK(c->out.at(4 * 32 + i) != 0.0f);
      }
  }
}

TEST_CASE("attention is the softmax average of the keys' latent part") {
  Case c(Dtype::kF32, Format::kKvF32, {.heads = 1, .latent = 4, .rope = 4, .topk = 2}, {2});
  const float first[] = {1, 2, 3, 4, 1, 0, 0, 0};
  const float second[] = {5, 6, 7, 8, 0, 0, 0, 0};
  encode_slot(c.geometry, c.pool.view().data, c.indices.integer(0), first, false);
  encode_slot(c.geometry, c.pool.view().data, c.indices.integer(1), second, false);
  for (int64_t i = 0; i < 8; ++i) c.q.view().store(i, i == 4 ? 5.0f : 0.0f);  // only the rope part scores: 5 * scale
  for (const char* kernel : {"flashmla_sparse", "flashmla_kv", "trtllm"}) {
    REQUIRE(!c.op.run(kernel));
    const double p = std::exp(1.0) / (std::exp(1.0) + 1);
    for (int64_t i = 0; i < 4; ++i) CHECK(c.out.at(i) == Approx(p * first[i] + (1 - p) * second[i]));
  }
}

TEST_CASE("-1 inside the prefix: FlashMLA masks it, trtllm reads before the pool") {
  Case c(Dtype::kF32, Format::kKvF32, {}, {16, 16});
  c.indices.view().store_index(3, -1);
  for (const char* kernel : {"flashmla_sparse", "flashmla_kv"}) c.op.require_agreement(kernel, Attention::kOut, c.out);
  const kernels::AccessLog log = c.op.run_checked("trtllm");
  CHECK(log.count > 0);
  CHECK(log.first[0].operand == Attention::kCache);
  CHECK(log.first[0].index == -c.geometry.row_bytes());
  CHECK(std::isnan(c.out.at(0)));
  CHECK(std::isfinite(c.out.at(4 * 32)));
}

TEST_CASE("an index past the pool: flashmla_sparse masks it, flashmla_kv and trtllm read it") {
  for (const char* kernel : {"flashmla_kv", "trtllm"}) {
    Case c(Dtype::kF32, Format::kKvF32, {}, {16, 16});
    CHECK(c.op.run_checked(kernel).count == 0);
    c.indices.view().store_index(5, static_cast<int32_t>(c.geometry.slots) + 2);
    const kernels::AccessLog log = c.op.run_checked(kernel);
    CHECK(log.count > 0);
    CHECK(log.first[0].operand == Attention::kCache);
    CHECK(log.first[0].is_write == 0);
    CHECK(log.first[0].extent == c.geometry.total_bytes());
    CHECK(log.first[0].index / c.geometry.row_bytes() == c.geometry.slots + 2);
    CHECK(std::isnan(c.out.at(0)));
    CHECK(std::isfinite(c.out.at(4 * 32)));
  }
  Case c(Dtype::kF32, Format::kKvF32, {}, {16, 16});
  c.indices.view().store_index(5, static_cast<int32_t>(c.geometry.slots) + 2);
  c.op.require_agreement("flashmla_sparse", Attention::kOut, c.out);
}

TEST_CASE("a page index past the pool is recorded by the dense kernels") {
  Case c(Dtype::kBF16, Format::kKvBf16, {}, {16, 16});
  c.op.attributes().set("dense", true);
  c.page_table.view().store_index(4, 100000);
  for (const char* kernel : {"triton", "flashinfer"}) {
    const kernels::AccessLog log = c.op.run_checked(kernel);
    CHECK(log.count > 0);
    CHECK(log.first[0].operand == Attention::kCache);
  }
}

TEST_CASE("trtllm reads as many entries as the length says") {
  Case c(Dtype::kF32, Format::kKvF32, {}, {16});
  REQUIRE(!c.op.run("trtllm"));
  Tensor whole(c.out);
  c.lengths.view().store_index(0, 7);
  REQUIRE(!c.op.run("trtllm"));
  CHECK(!c.out.same_bytes(whole));
  for (int64_t i = 7; i < 16; ++i) c.indices.view().store_index(i, -1);
  c.op.require_agreement("trtllm", Attention::kOut, c.out);
}

TEST_CASE("a NaN in a row's key makes the row NaN and leaves the others") {
  for (const Served& served : kSparse) {
    Case c(Dtype::kF32, Format::kKvF32, {}, {16, 16});
    std::vector<float> row(48, 1.0f);
    row[40] = std::nanf("");  // a rope column: it spoils the score
    const int64_t slot = c.indices.integer(2);
    for (int64_t i = 0; i < 16; ++i)
      if (c.indices.integer(16 + i) == slot) c.indices.view().store_index(16 + i, c.indices.integer(16 + (i + 1) % 16));
    encode_slot(c.geometry, c.pool.view().data, slot, row.data(), false);
    REQUIRE(!c.op.run(served.kernel));
    CHECK(std::isnan(c.out.at(0)));
    CHECK(std::isfinite(c.out.at(4 * 32)));
  }
}

TEST_CASE("large scores do not overflow, and scores of any size keep the best key") {
  Case c(Dtype::kF32, Format::kKvF32, {.topk = 100}, {100});
  for (const double scale : {300.0, -300.0}) {
    c.op.attributes().set("scale", scale);
    for (const char* kernel : {"flashmla_sparse", "flashmla_kv", "trtllm"})
      c.op.require_agreement(kernel, Attention::kOut, c.out);
  }
}

TEST_CASE("kernels refuse a cache format that the followed backend refuses") {
  const auto verdict = [](const char* kernel, Format format, bool dense) {
    Case c(Dtype::kBF16, format, {}, {16});
    c.op.attributes().set("dense", dense);
    const KernelResult fault = c.op.run(kernel);
    return fault ? fault->verdict : std::string();
  };
  CHECK(verdict("flashmla_sparse", Format::kKvPacked, false) == "launch-failure");
  CHECK(verdict("flashmla_sparse", Format::kKvPlainFp8, false) == "launch-failure");
  CHECK(verdict("flashmla_kv", Format::kKvBf16, false) == "launch-failure");
  CHECK(verdict("trtllm", Format::kKvPacked, false) == "launch-failure");
  CHECK(verdict("triton", Format::kKvPacked, true) == "launch-failure");
  CHECK(verdict("triton", Format::kKvBf16, true).empty());
  CHECK(verdict("flashinfer", Format::kKvPacked, true).empty());
}

TEST_CASE("flashinfer takes packed rows for plain codes, whichever way it is told") {
  Case c(Dtype::kF32, Format::kKvPacked, {}, {50});
  c.op.attributes().set("dense", true);
  REQUIRE(!c.op.run("flashinfer"));
  Tensor from_packed(c.out);
  REQUIRE(c.op.run_checked("flashinfer").count == 0);

  CacheGeometry plain = c.geometry;
  plain.format = Format::kKvPlainFp8;
  plain.row_stride_bytes = c.geometry.row_bytes();
  OpHarness reader(Attention::kName);
  Tensor out(c.out);
  reader.add(c.q).add_cache(c.pool, plain).add_absent().add(c.page_table).add(c.rows).add(c.lengths).add_absent();
  reader.add_absent().add(out);
  reader.attributes() = c.op.attributes();
  REQUIRE(!reader.run("flashinfer"));
  CHECK(out.same_bytes(from_packed));

  // What it computes is not what the packed rows mean.
  Tensor meant(c.out);
  c.op.replace(Attention::kOut, meant);
  c.op.run_model();
  double largest = 0;
  bool nan = false;
  for (int64_t i = 0; i < meant.view().elements(); ++i) {
    nan = nan || std::isnan(from_packed.at(i));
    largest = std::max(largest, static_cast<double>(std::abs(meant.at(i) - from_packed.at(i))));
  }
  CHECK((nan || largest > 1));
}

TEST_CASE("attention kernels are found by the axis values that they serve") {
  for (const char* value : {"flashmla_sparse", "flashmla_kv", "trtllm"})
    for (const char* axis : {"nsa_prefill_backend", "nsa_decode_backend"}) {
      const Kernel* kernel = kernel_serving(axis, value, Attention::kName);
      REQUIRE(kernel != nullptr);
      CHECK(kernel->name == value);
      CHECK(kernel->sparse);
      CHECK(!kernel->source.empty());
    }
  for (const char* value : {"triton", "flashinfer"}) {
    const Kernel* kernel = kernel_serving("attention_backend", value, Attention::kName);
    REQUIRE(kernel != nullptr);
    CHECK(!kernel->sparse);
  }
  CHECK(kernel_serving("nsa_decode_backend", "triton", Attention::kName) == nullptr);
}
