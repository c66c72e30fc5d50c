#include "attention_case.h"

using namespace faultline;
using namespace faultline::test;
using ops::Attention;
using Case = AttentionCase;

namespace {

struct Served {
  const char* kernel;
  std::vector<Format> formats;
  std::vector<const char*> axes;
  const char* value;
};
const std::vector<Format> kBf16 = {Format::kKvBf16, Format::kKvF32};
const std::vector<Format> kBf16OrPlain = {Format::kKvBf16, Format::kKvPlainFp8, Format::kKvF32};
const std::vector<const char*> kSparseAxes = {"nsa_prefill_backend", "nsa_decode_backend"};
const std::vector<const char*> kDenseAxes = {"attention_backend"};
const std::vector<Served> kSparse = {
    {"fa3", kBf16, kSparseAxes, "fa3"},
    {"tilelang", kBf16, kSparseAxes, "tilelang"},
    {"flashinfer_sparse_mla", {Format::kKvPacked, Format::kKvF32}, kSparseAxes, "flashinfer_sparse_mla"},
};
const std::vector<Served> kDense = {
    {"fa3_mla", kBf16OrPlain, kDenseAxes, "fa3"},
    {"trtllm_mla", kBf16OrPlain, kDenseAxes, "trtllm_mla"},
    {"flashmla_dense", kBf16OrPlain, kDenseAxes, "flashmla"},
    {"torch_native", kBf16OrPlain, kDenseAxes, "torch_native"},
};
constexpr int64_t kOutOfRow = 4 * 32;  // elements of one token's output in the default shape

void spoil_slot(Case& c, int64_t slot, int column) {
  std::vector<float> row(static_cast<size_t>(c.geometry.width()), 1.0f);
  row[static_cast<size_t>(column)] = std::nanf("");
  encode_slot(c.geometry, c.pool.view().data, slot, row.data(), false);
}

// Gives every entry that names slot 0 another slot, so that only a masked entry can lead there.
void avoid_slot_zero(Case& c) {
  for (int64_t i = 0; i < c.indices.view().elements(); ++i)
    if (c.indices.integer(i) == 0) c.indices.view().store_index(i, static_cast<int32_t>(c.geometry.slots) - 1);
}

bool row_is_nan(const Case& c, int64_t token) {
  for (int64_t i = 0; i < kOutOfRow; ++i)
    if (!std::isnan(c.out.at(token * kOutOfRow + i))) return false;
  return true;
}
bool row_is_finite(const Case& c, int64_t token) {
  for (int64_t i = 0; i < kOutOfRow; ++i)
    if (!std::isfinite(c.out.at(token * kOutOfRow + i))) return false;
  return true;
}

}  // namespace

TEST_CASE("further sparse kernels agree with the model reference for every format they take") {
  for (const Served& served : kSparse)
    for (const Format format : served.formats)
      for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
        for (const int64_t topk : {12, 64, 100, 200})
          for (const int64_t splits : {1, 4}) {
            INFO(served.kernel << " " << format_name(format) << " " << topk << " " << splits);
            const auto k = static_cast<int32_t>(topk);
            Case c(dtype, format, {.topk = topk, .splits = splits}, {1, k - 1, k, k + 40, 5, 63, 64, 65});
            c.op.require_agreement(served.kernel, Attention::kOut, c.out);
          }
}

TEST_CASE("further dense kernels agree with the model reference, through pages and in a contiguous buffer") {
  for (const Served& served : kDense)
    for (const Format format : served.formats)
      for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
        for (const int form : {kPaged, kRagged})
          for (const int64_t splits : {1, 3}) {
            INFO(served.kernel << " " << format_name(format) << " " << form << " " << splits);
            Case c = dense_attention_case(dtype, format, {.splits = splits},
                                          {1, 31, 32, 33, 63, 64, 65, 0, 150, 128, 260}, form);
            c.op.require_agreement(served.kernel, Attention::kOut, c.out);
          }
}

TEST_CASE("further kernels: the heads need not fill a block, and one token or none runs") {
  for (const int64_t heads : {1, 3, 8, 17})
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{}, std::vector<int32_t>{40}}) {
      for (const Served& served : kSparse) {
        INFO(served.kernel << " " << heads);
        Case c(Dtype::kF32, served.formats.front(), {.heads = heads, .topk = 70, .splits = 3}, lengths);
        c.op.require_agreement(served.kernel, Attention::kOut, c.out);
      }
      for (const Served& served : kDense) {
        INFO(served.kernel << " " << heads);
        Case c = dense_attention_case(Dtype::kF32, Format::kKvBf16, {.heads = heads, .splits = 3}, lengths);
        c.op.require_agreement(served.kernel, Attention::kOut, c.out);
      }
    }
}

TEST_CASE("further kernels agree with the reference at the real head sizes") {
  const AttentionShape shape{.heads = 8, .latent = 512, .rope = 64, .topk = 64, .splits = 2};
  for (const Served& served : kSparse) {
    INFO(served.kernel);
    Case c(Dtype::kBF16, served.formats.front(), shape, {40, 100});
    c.op.require_agreement(served.kernel, Attention::kOut, c.out);
  }
  for (const Served& served : kDense) {
    INFO(served.kernel);
    Case c = dense_attention_case(Dtype::kBF16, Format::kKvBf16, shape, {40, 100});
    c.op.require_agreement(served.kernel, Attention::kOut, c.out);
  }
}

TEST_CASE("further kernels: large scores do not overflow") {
  for (const Served& served : kSparse) {
    Case c(Dtype::kF32, Format::kKvF32, {.topk = 100, .splits = 2}, {100});
    c.op.attributes().set("scale", 300.0);
    c.op.require_agreement(served.kernel, Attention::kOut, c.out);
  }
  for (const Served& served : kDense) {
    Case c = dense_attention_case(Dtype::kF32, Format::kKvF32, {.splits = 2}, {130});
    c.op.attributes().set("scale", 300.0);
    c.op.require_agreement(served.kernel, Attention::kOut, c.out);
  }
}

TEST_CASE("-1 inside the prefix: fa3 reads before the pool, tilelang and flashinfer_sparse_mla mask it") {
  Case c(Dtype::kF32, Format::kKvF32, {}, {16, 16});
  c.indices.view().store_index(3, -1);
  const kernels::AccessLog log = c.op.run_checked("fa3");
  CHECK(log.count > 0);
  CHECK(log.first[0].operand == Attention::kCache);
  CHECK(log.first[0].index == -c.geometry.row_bytes());
  CHECK(std::isnan(c.out.at(0)));
  CHECK(row_is_finite(c, 1));
  for (const char* kernel : {"tilelang", "flashinfer_sparse_mla"}) {
    c.op.require_agreement(kernel, Attention::kOut, c.out);
    c.indices.view().store_index(3, -7);
    c.op.require_agreement(kernel, Attention::kOut, c.out);
    c.indices.view().store_index(3, -1);
  }
}

TEST_CASE("an index past the pool is read by fa3, tilelang and flashinfer_sparse_mla") {
  for (const Served& served : kSparse) {
    INFO(served.kernel);
    Case c(Dtype::kF32, Format::kKvF32, {}, {16, 16});
    CHECK(c.op.run_checked(served.kernel).count == 0);
    c.indices.view().store_index(5, static_cast<int32_t>(c.geometry.slots) + 2);
    const kernels::AccessLog log = c.op.run_checked(served.kernel);
    CHECK(log.count > 0);
    CHECK(log.first[0].operand == Attention::kCache);
    CHECK(log.first[0].is_write == kernels::kBadRead);
    CHECK(log.first[0].index / c.geometry.row_bytes() == c.geometry.slots + 2);
    CHECK(std::isnan(c.out.at(0)));
    CHECK(row_is_finite(c, 1));
  }
}

TEST_CASE("a row without a key: 0 / 0 from tilelang, zeros from the others") {
  for (const int64_t splits : {1, 4}) {
    Case tilelang(Dtype::kBF16, Format::kKvBf16, {.splits = splits}, {0, 5});
    REQUIRE(!tilelang.op.run("tilelang"));
    CHECK(row_is_nan(tilelang, 0));
    CHECK(row_is_finite(tilelang, 1));
    for (const char* kernel : {"fa3", "flashinfer_sparse_mla"}) {
      Case c(Dtype::kF32, Format::kKvF32, {.splits = splits}, {0, 5});
      c.op.require_agreement(kernel, Attention::kOut, c.out);
      CHECK(c.out.at(0) == 0.0f);
    }
    for (const Served& served : kDense) {
      Case c = dense_attention_case(Dtype::kF32, Format::kKvF32, {.splits = splits}, {0, 5});
      c.op.require_agreement(served.kernel, Attention::kOut, c.out);
      CHECK(c.out.at(0) == 0.0f);
    }
  }
}

TEST_CASE("all entries masked within a trusted length") {
  for (const char* kernel : {"tilelang", "flashinfer_sparse_mla"}) {
    Case c(Dtype::kF32, Format::kKvF32, {.splits = 2}, {16, 16});
    for (int64_t i = 0; i < 16; ++i) c.indices.view().store_index(i, -1);
    CHECK(c.op.run_checked(kernel).count == 0);
    CHECK(row_is_nan(c, 0) == (std::string(kernel) == "tilelang"));
    CHECK(row_is_finite(c, 1));
  }
}

TEST_CASE("fa3 and flashinfer_sparse_mla read as many entries as the length says, tilelang all of them") {
  for (const Served& served : kSparse) {
    INFO(served.kernel);
    Case c(Dtype::kF32, Format::kKvF32, {.splits = 2}, {16});
    REQUIRE(!c.op.run(served.kernel));
    Tensor whole(c.out);
    c.lengths.view().store_index(0, 7);
    REQUIRE(!c.op.run(served.kernel));
    CHECK(c.out.same_bytes(whole) == (std::string(served.kernel) == "tilelang"));
    c.lengths.view().store_index(0, 16 + 100);  // past topk: clamped
    REQUIRE(!c.op.run(served.kernel));
    CHECK(c.out.same_bytes(whole));
  }
}

TEST_CASE("a NaN in slot 0 reaches rows with masked entries through kernels that read slot 0 for them") {
  for (const int column : {3, 40}) {  // of the latent, of the rope part
    for (const char* kernel : {"tilelang", "flashinfer_sparse_mla"}) {
      INFO(kernel << " " << column);
      Case c(Dtype::kF32, Format::kKvF32, {.topk = 64, .splits = 1}, {5, 64});
      avoid_slot_zero(c);
      spoil_slot(c, 0, column);
      REQUIRE(!c.op.run(kernel));
      // A score that is replaced does not carry the NaN of the rope part; one that is added to does.
      const bool scored = std::string(kernel) == "tilelang";
      CHECK(std::isnan(c.out.at(3)) == (column == 3 || scored));
      CHECK(std::isfinite(c.out.at(4)) == !scored);
      if (!scored) CHECK(row_is_finite(c, 1));
    }
    Case skipping(Dtype::kF32, Format::kKvF32, {.topk = 64}, {5, 64});
    avoid_slot_zero(skipping);
    spoil_slot(skipping, 0, column);
    for (const char* kernel : {"fa3", "flashmla_sparse"}) {
      REQUIRE(!skipping.op.run(kernel));
      CHECK(row_is_finite(skipping, 0));
    }
  }
}

TEST_CASE("tilelang reads the last valid entry of the same copying thread for a masked one") {
  // 128 entries, of which 100 are valid: each of the 16 copiers has had one, and slot 0 is not read.
  Case c(Dtype::kF32, Format::kKvF32, {.topk = 128}, {100});
  avoid_slot_zero(c);
  spoil_slot(c, 0, 3);
  c.op.require_agreement("tilelang", Attention::kOut, c.out);
}

TEST_CASE("flashinfer_sparse_mla: any number of splits gives the output of one, whatever the scratch held") {
  Case one(Dtype::kF32, Format::kKvPacked, {.topk = 300}, {300, 10, 70, 0});
  REQUIRE(!one.op.run("flashinfer_sparse_mla"));
  for (const int64_t splits : {2, 3, 5, 9}) {
    Case many(Dtype::kF32, Format::kKvPacked, {.topk = 300, .splits = splits}, {300, 10, 70, 0});
    many.op.require_agreement("flashinfer_sparse_mla", Attention::kOut, many.out);
    for (int64_t i = 0; i < one.out.view().elements(); ++i) CHECK(many.out.at(i) == Approx(one.out.at(i)).margin(1e-5));
  }
}

TEST_CASE("flashinfer_sparse_mla leaves the scratch alone past 64 tokens, which are a prefill") {
  for (const size_t tokens : {size_t{64}, size_t{65}}) {
    Case c(Dtype::kF32, Format::kKvPacked, {.heads = 1, .splits = 2}, std::vector<int32_t>(tokens, 9));
    REQUIRE(!c.op.run("flashinfer_sparse_mla"));
    CHECK(std::isnan(c.scratch.at(0)) == (tokens > 64));
  }
}

TEST_CASE("flashinfer_sparse_mla and torch_native fit in the shared memory of SM120 at GLM-5's sizes") {
  constexpr size_t kSm120 = 99 * 1024;
  for (const char* kernel : {"flashinfer_sparse_mla", "torch_native"}) {
    const Kernel* found = find_kernel(Attention::kName, kernel);
    const size_t bytes = found->own_shared_bytes(geometry_of(found->cache_formats.front(), 64, 512, 64));
    CHECK(bytes > 0);
    CHECK(bytes <= kSm120);
  }
  // The others ask for what the followed kernels' targets have.
  for (const char* kernel : {"fa3", "tilelang", "fa3_mla", "trtllm_mla", "flashmla_dense"}) {
    const Kernel* found = find_kernel(Attention::kName, kernel);
    CHECK(found->own_shared_bytes(geometry_of(Format::kKvBf16, 64, 512, 64)) <= 227 * 1024);
  }
}

TEST_CASE("kernels over pages read the first slot of each page of the table, torch_native every slot") {
  for (const Served& served : kDense) {
    INFO(served.kernel);
    Case c = dense_attention_case(Dtype::kF32, Format::kKvBf16, {}, {100});
    REQUIRE(!c.op.run(served.kernel));
    Tensor before(c.out);
    c.page_table.view().store_index(70, static_cast<int32_t>(c.geometry.slots) - 1);  // not a page's first
    c.page_table.view().store_index(71, static_cast<int32_t>(c.geometry.slots) - 1);
    REQUIRE(!c.op.run(served.kernel));
    CHECK(c.out.same_bytes(before) == (std::string(served.kernel) != "torch_native"));
  }
}

TEST_CASE("kernels over pages test no page: one past the pool and a -1 are read where they point") {
  for (const char* kernel : {"fa3_mla", "trtllm_mla", "flashmla_dense"}) {
    INFO(kernel);
    Case c = dense_attention_case(Dtype::kBF16, Format::kKvBf16, {.splits = 2}, {100, 20});
    CHECK(c.op.run_checked(kernel).count == 0);
    const int64_t first = c.rows.integer(0) * c.columns;
    const int32_t good = static_cast<int32_t>(c.page_table.integer(first));
    c.page_table.view().store_index(first, static_cast<int32_t>(c.geometry.slots) + 64);
    kernels::AccessLog log = c.op.run_checked(kernel);
    CHECK(log.count > 0);
    CHECK(log.first[0].operand == Attention::kCache);
    CHECK(log.first[0].index >= c.geometry.total_bytes() + 64 * c.geometry.row_bytes());
    CHECK(std::isnan(c.out.at(0)));
    CHECK(row_is_finite(c, 1));
    c.page_table.view().store_index(first, -1);
    log = c.op.run_checked(kernel);
    CHECK(log.count > 0);
    CHECK(log.first[0].index < 0);
    CHECK(log.first[0].index >= -64 * c.geometry.row_bytes());
    c.page_table.view().store_index(first, good);
    CHECK(c.op.run_checked(kernel).count == 0);
  }
}

TEST_CASE("torch_native takes a negative index from the pool's end and asserts on one past it") {
  Case c = dense_attention_case(Dtype::kF32, Format::kKvBf16, {}, {20, 20});
  const int64_t entry = c.rows.integer(0) * c.columns + 4;
  const auto last = static_cast<int32_t>(c.geometry.slots) - 1;
  c.page_table.view().store_index(entry, last);
  REQUIRE(!c.op.run("torch_native"));
  Tensor from_last(c.out);
  c.page_table.view().store_index(entry, -1);
  CHECK(c.op.run_checked("torch_native").count == 0);
  CHECK(c.out.same_bytes(from_last));

  for (const int32_t bad : {last + 1, -last - 2}) {
    c.page_table.view().store_index(entry, bad);
    const KernelResult fault = c.op.run("torch_native");
    REQUIRE(fault);
    CHECK(fault->verdict == "device-assert");
    CHECK_THAT(fault->message, Catch::Contains("index out of bounds"));
    const kernels::AccessLog log = c.op.run_checked("torch_native");
    CHECK(log.count > 0);
    CHECK(log.first[0].operand == Attention::kPageTable);
    CHECK(log.first[0].is_write == kernels::kFailedAssertion);
    CHECK(log.first[0].index == entry);
    CHECK(row_is_finite(c, 1));
  }
}

TEST_CASE("flashmla_dense cuts a row into no more splits than it has blocks") {
  Case one = dense_attention_case(Dtype::kF32, Format::kKvBf16, {}, {300, 64, 65, 1});
  REQUIRE(!one.op.run("flashmla_dense"));
  for (const int64_t splits : {2, 4, 9}) {
    Case many = dense_attention_case(Dtype::kF32, Format::kKvBf16, {.splits = splits}, {300, 64, 65, 1});
    many.op.require_agreement("flashmla_dense", Attention::kOut, many.out);
    for (int64_t i = 0; i < one.out.view().elements(); ++i) CHECK(many.out.at(i) == Approx(one.out.at(i)).margin(1e-5));
    // The scratch began as NaN: a row of one block leaves its records alone, one of two blocks fills two.
    const int64_t record = many.shape.latent + 2;
    const auto first_of = [&](int64_t token, int64_t split) {
      return many.scratch.at((token * splits + split) * many.shape.heads * record);
    };
    CHECK(std::isnan(first_of(1, 0)));
    CHECK(!std::isnan(first_of(2, 0)));
    CHECK(!std::isnan(first_of(2, 1)));
    if (splits > 2) CHECK(std::isnan(first_of(2, 2)));
  }
}

TEST_CASE("a NaN in a key of the row makes the row NaN and leaves the others") {
  for (const Served& served : kDense) {
    INFO(served.kernel);
    Case c = dense_attention_case(Dtype::kF32, Format::kKvF32, {.splits = 2}, {70, 70});
    const int64_t slot = c.page_table.integer(c.rows.integer(0) * c.columns + 66);
    for (int64_t k = 0; k < 70; ++k) REQUIRE(c.page_table.integer(c.rows.integer(1) * c.columns + k) >= 0);
    bool shared = false;
    for (int64_t k = 0; k < 70; ++k) shared = shared || c.page_table.integer(c.rows.integer(1) * c.columns + k) == slot;
    spoil_slot(c, slot, 40);
    REQUIRE(!c.op.run(served.kernel));
    CHECK(std::isnan(c.out.at(0)));
    if (!shared) CHECK(row_is_finite(c, 1));
  }
}

TEST_CASE("further kernels refuse every cache format that the followed backend refuses") {
  const auto check = [](const std::vector<Served>& kernels, bool dense) {
    for (const Served& served : kernels)
      for (const Format format : {Format::kKvF32, Format::kKvBf16, Format::kKvPacked, Format::kKvPlainFp8}) {
        INFO(served.kernel << " " << format_name(format));
        Case c(Dtype::kBF16, format, {}, {16});
        c.op.attributes().set("dense", dense);
        const KernelResult fault = c.op.run(served.kernel);
        const bool taken = std::find(served.formats.begin(), served.formats.end(), format) != served.formats.end();
        CHECK(fault.has_value() != taken);
        if (fault) CHECK(fault->verdict == "launch-failure");
      }
  };
  check(kSparse, false);
  check(kDense, true);
}

TEST_CASE("further attention kernels are found by the axis values that they serve") {
  const auto check = [](const std::vector<Served>& kernels, bool sparse) {
    for (const Served& served : kernels)
      for (const char* axis : served.axes) {
        const Kernel* kernel = kernel_serving(axis, served.value, Attention::kName);
        REQUIRE(kernel != nullptr);
        CHECK(kernel->name == served.kernel);
        CHECK(kernel->sparse == sparse);
        CHECK(kernel->cache_formats.size() == served.formats.size());
        CHECK(!kernel->source.empty());
        CHECK(!kernel->follows.empty());
      }
  };
  check(kSparse, true);
  check(kDense, false);
}
