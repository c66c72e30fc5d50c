// The attention kernels of further backends on a GPU: each build against the model reference and the kernel on the CPU.
#include "attention_case.h"
#include "gpu_twin.h"

using namespace faultline;
using namespace faultline::test;
using ops::Attention;
using Case = AttentionCase;

namespace {

struct Served {
  const char* kernel;
  std::vector<Format> formats;
};
const std::vector<Format> kBf16 = {Format::kKvBf16, Format::kKvF32};
const std::vector<Format> kBf16OrPlain = {Format::kKvBf16, Format::kKvPlainFp8, Format::kKvF32};
const std::vector<Served> kSparse = {
    {"fa3", kBf16}, {"tilelang", kBf16}, {"flashinfer_sparse_mla", {Format::kKvPacked, Format::kKvF32}}};
const std::vector<Served> kDense = {{"fa3_mla", kBf16OrPlain},
                                    {"trtllm_mla", kBf16OrPlain},
                                    {"flashmla_dense", kBf16OrPlain},
                                    {"torch_native", kBf16OrPlain}};
const std::vector<int32_t> kLengths = {1, 199, 200, 240, 63, 64, 65, 128, 31, 33};

void agree(Device& device, Case& c, const Served& served) {
  INFO(served.kernel << " " << format_name(c.geometry.format) << ", " << c.tokens << " tokens, " << c.shape.heads);
  require_gpu_agreement(device, c.op, Attention::kName, served.kernel, {{Attention::kOut, &c.out}});
}

}  // namespace

TEST_CASE("attention of further backends at small shapes on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  for (const std::vector<int32_t>& lengths : {kLengths, std::vector<int32_t>{}})
    for (const Dtype dtype : kActivations)
      for (const int64_t heads : {3, 8}) {
        const AttentionShape shape{.heads = heads, .topk = 200, .splits = 3};
        for (const Served& served : kSparse)
          for (const Format format : served.formats) {
            Case c(dtype, format, shape, lengths);
            agree(*device, c, served);
          }
        for (const Served& served : kDense)
          for (const Format format : served.formats)
            for (const int form : {kPaged, kRagged}) {
              Case c = dense_attention_case(dtype, format, shape, lengths, form);
              agree(*device, c, served);
            }
      }
}

TEST_CASE("attention of further backends at GLM-5's head sizes on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  const AttentionShape shape{.heads = 16, .latent = 512, .rope = 64, .topk = 200, .splits = 4};
  for (const Served& served : kSparse)
    for (const Format format : served.formats) {
      Case c(Dtype::kBF16, format, shape, kLengths);
      agree(*device, c, served);
    }
  for (const Served& served : kDense)
    for (const Format format : served.formats) {
      Case c = dense_attention_case(Dtype::kBF16, format, shape, kLengths);
      agree(*device, c, served);
    }
}

TEST_CASE("flashinfer_sparse_mla as a prefill, and with rows without a key, on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  std::vector<int32_t> lengths(70, 20);
  lengths[3] = 0;
  for (const size_t tokens : {lengths.size(), size_t{5}}) {
    lengths.resize(tokens);
    Case c(Dtype::kBF16, Format::kKvPacked, {.topk = 128, .splits = 2}, lengths);
    agree(*device, c, kSparse.back());
  }
}

TEST_CASE("what further attention kernels read past the pool is recorded on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  const auto first_record = [&](Case& c, const char* kernel) {
    const GpuRun run =
        run_on_gpu(*device, c.op, Attention::kName, kernel, GpuBuild::kChecked, {{Attention::kOut, &c.out}});
    REQUIRE(run.log.count > 0);
    return run.log.first[0];
  };
  for (const Served& served : kSparse) {
    Case c(Dtype::kBF16, served.formats.front(), {}, {16, 16});
    c.indices.view().store_index(5, static_cast<int32_t>(c.geometry.slots) + 2);
    CHECK(first_record(c, served.kernel).operand == Attention::kCache);
  }
  for (const Served& served : kDense) {
    Case c = dense_attention_case(Dtype::kBF16, Format::kKvBf16, {}, {16, 16});
    c.page_table.view().store_index(0, static_cast<int32_t>(c.geometry.slots) + 64);
    const bool asserts = std::string(served.kernel) == "torch_native";
    const kernels::BadAccess bad = first_record(c, served.kernel);
    CHECK(bad.operand == (asserts ? Attention::kPageTable : Attention::kCache));
    CHECK(bad.is_write == (asserts ? kernels::kFailedAssertion : kernels::kBadRead));
  }
}
