#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/dense_attention.h"
#include "kernels/sparse_attention.h"
#include "kernels/split_attention.h"
#include "ops/attention_kernels.h"

namespace faultline {
namespace {

using namespace attention;
using ops::Attention;

bool is_dense(const OpCall& call) {
  return call.attr().integer_or("dense", 0) != 0;
}

// The slots (or rows of a contiguous buffer) that one token attends to. Entries that point nowhere are left out: those
// checks of indices speak about.
std::vector<int64_t> slots_of(const OpCall& call, int64_t token, int64_t capacity) {
  std::vector<int64_t> slots;
  const auto add = [&](int64_t slot) {
    if (slot >= 0 && slot < capacity) slots.push_back(slot);
  };
  if (!is_dense(call)) {
    const TensorView& indices = call.view(Attention::kIndices);
    for (int64_t i = 0; i < indices.dim(1); ++i) add(indices.load_index(indices.offset(token, i)));
    return slots;
  }
  const TensorView& lengths = call.view(Attention::kLengths);
  const int64_t length = lengths.load_index(lengths.offset(token));
  if (index_form(call) == IndexForm::kRagged) {
    const TensorView& offsets = call.view(Attention::kRaggedOffsets);
    for (int64_t c = 0; c < length; ++c) add(offsets.load_index(offsets.offset(token)) + c);
    return slots;
  }
  const TensorView& map = call.view(Attention::kRowToRequest);
  const TensorView& table = call.view(Attention::kPageTable);
  const int64_t request = map.load_index(map.offset(token));
  if (request < 0 || request >= table.dim(0)) return slots;
  for (int64_t c = 0; c < std::min(length, table.dim(1)); ++c) add(table.load_index(table.offset(request, c)));
  return slots;
}

void attention_model(const OpCall& call) {
  const TensorView& q = call.view(Attention::kQ);
  const TensorView& out = call.view(Attention::kOut);
  const Argument& cache = call.argument(Attention::kCache);
  const CacheGeometry& geometry = *cache.geometry;
  const double scale = call.attr().real("scale");
  const auto width = static_cast<size_t>(geometry.width());
  const auto latent = static_cast<size_t>(geometry.latent);
  std::vector<double> query(width);
  std::vector<double> sums(latent);
  for (int64_t t = 0; t < q.dim(0); ++t) {
    const std::vector<int64_t> slots = slots_of(call, t, geometry.slots);
    std::vector<float> keys(slots.size() * width);
    for (size_t j = 0; j < slots.size(); ++j)
      decode_slot(geometry, cache.view().data, slots[j], keys.data() + j * width);
    std::vector<double> weights(slots.size());
    for (int64_t h = 0; h < q.dim(1); ++h) {
      for (size_t d = 0; d < width; ++d) query[d] = q.load(q.offset(t, h, static_cast<int64_t>(d)));
      double largest = -std::numeric_limits<double>::infinity();
      for (size_t j = 0; j < slots.size(); ++j) {
        double score = 0;
        for (size_t d = 0; d < width; ++d) score += query[d] * keys[j * width + d];
        weights[j] = score * scale;
        largest = std::max(largest, weights[j]);
      }
      double total = 0;
      for (double& weight : weights) total += weight = std::exp(weight - largest);
      std::fill(sums.begin(), sums.end(), 0.0);
      for (size_t j = 0; j < slots.size(); ++j)
        for (size_t c = 0; c < latent; ++c) sums[c] += weights[j] * keys[j * width + c];
      for (size_t c = 0; c < latent; ++c)
        out.store(out.offset(t, h, static_cast<int64_t>(c)),
                  slots.empty() ? 0.0f : static_cast<float>(sums[c] / total));
    }
  }
}

template <bool kTrustsLengths>
void run_sparse(const OpCall& call) {
  FAULTLINE_CHECK(call.argument(Attention::kIndices).present());
  FAULTLINE_CHECK(!kTrustsLengths || call.argument(Attention::kLengths).present());
  with_build(call, call.view(Attention::kQ).dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::launch_sparse_attention<T, kTrustsLengths, decltype(build)::kChecked>(call.launch, operands_of<T>(call));
  });
}

KernelResult run_flashmla_sparse(const OpCall& call) {
  if (KernelResult fault = refused(call, "flashmla_sparse")) return fault;
  run_sparse<false>(call);
  return std::nullopt;
}

KernelResult run_trtllm(const OpCall& call) {
  if (KernelResult fault = refused(call, "trtllm")) return fault;
  run_sparse<true>(call);
  return std::nullopt;
}

KernelResult run_flashmla_kv(const OpCall& call) {
  if (KernelResult fault = refused(call, "flashmla_kv")) return fault;
  FAULTLINE_CHECK(call.argument(Attention::kIndices).present());
  with_build(call, call.view(Attention::kQ).dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    const auto operands = operands_of<T>(call);
    require_scratch(operands);
    kernels::launch_split_attention<T, decltype(build)::kChecked>(call.launch, operands);
  });
  return std::nullopt;
}

void run_dense(const OpCall& call) {
  const bool paged = index_form(call) == IndexForm::kPageTable;
  FAULTLINE_CHECK(call.argument(Attention::kLengths).present());
  FAULTLINE_CHECK(call.argument(paged ? Attention::kPageTable : Attention::kRaggedOffsets).present());
  with_build(call, call.view(Attention::kQ).dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    const auto operands = operands_of<T>(call);
    if (paged)
      kernels::launch_dense_attention<T, true, decltype(build)::kChecked>(call.launch, operands);
    else
      kernels::launch_dense_attention<T, false, decltype(build)::kChecked>(call.launch, operands);
  });
}

KernelResult run_triton(const OpCall& call) {
  if (KernelResult fault = refused(call, "triton")) return fault;
  run_dense(call);
  return std::nullopt;
}

// No test of the format: an 8-bit pool's bytes are plain e4m3 to it, however they were written.
KernelResult run_flashinfer(const OpCall& call) {
  if (call.argument(Attention::kCache).geometry->format != Format::kKvPacked) {
    run_dense(call);
    return std::nullopt;
  }
  CacheGeometry plain = *call.argument(Attention::kCache).geometry;
  plain.row_stride_bytes = plain.stride_bytes();
  plain.format = Format::kKvPlainFp8;
  std::vector<Argument> arguments(call.arguments.begin(), call.arguments.end());
  arguments[Attention::kCache].format = plain.format;
  arguments[Attention::kCache].geometry = &plain;
  OpCall taken = call;
  taken.arguments = arguments;
  run_dense(taken);
  return std::nullopt;
}

// Ownership holds for slots of a pool; the engine drops it for rows of a gathered buffer.
const IndexRule kEntries{.minus_one_tail = true,
                         .unique = true,
                         .count_lengths_operand = Attention::kLengths,
                         .page_table_operand = Attention::kPageTable,
                         .row_to_request_operand = Attention::kRowToRequest,
                         .owner_lengths_operand = Attention::kLengths};

const RegisterKind kAttention{OpKind{
    .name = Attention::kName,
    .operands = {input("q"), input("cache", Region{.slots_operand = Attention::kIndices}, Content::kCache),
                 index_input("indices", kTokenRows, kEntries), input("page_table", kRequestRows, Content::kMetadata),
                 input("row_to_request", kTokenRows, Content::kMetadata),
                 input("lengths", kTokenRows, Content::kMetadata),
                 input("ragged_offsets", kTokenRows, Content::kMetadata),
                 output("scratch", kAllRows, Content::kScratch), output("out")},
    .model = attention_model,
    .structure = {"dense"}}};

constexpr auto sparse_bytes = tile_bytes<kernels::kSparseKeys, kernels::kSparseHeads>;
constexpr auto split_bytes = tile_bytes<kernels::kSplitKeys, kernels::kSplitHeads>;
constexpr auto dense_bytes = tile_bytes<kernels::kDenseKeys, kernels::kDenseHeads>;

Kernel flashmla_sparse() {
  Kernel kernel = own_attention("flashmla_sparse", "FlashMLA csrc/sm90/prefill/sparse, csrc/sm100/prefill/sparse",
                                run_flashmla_sparse, {Format::kKvBf16, Format::kKvF32});
  kernel.own_shared_bytes = sparse_bytes;
  kernel.serves = {{"nsa_prefill_backend", "flashmla_sparse"}, {"nsa_decode_backend", "flashmla_sparse"}};
  kernel.sparse = true;
  kernel.architectures = {90, 100};
  kernel.shared_memory_bytes = 230784;
  kernel.source =
      "FlashMLA csrc/api/sparse_fwd.h:115-239: \"Sparse Attention Forward Kernel is only supported on SM90a and SM100f "
      "architectures.\", kv must be BF16; shared memory computed from its SM90 tiles";
  return kernel;
}

Kernel flashmla_kv() {
  Kernel kernel = own_attention("flashmla_kv", "FlashMLA csrc/sm90/decode/sparse_fp8, csrc/smxx/decode/combine",
                                run_flashmla_kv, {Format::kKvPacked, Format::kKvF32});
  kernel.own_shared_bytes = split_bytes;
  kernel.serves = {{"nsa_prefill_backend", "flashmla_kv"}, {"nsa_decode_backend", "flashmla_kv"}};
  kernel.sparse = true;
  kernel.architectures = {90, 100};
  kernel.shared_memory_bytes = 230528;
  kernel.source =
      "FlashMLA csrc/api/sparse_decode.h:231-380: \"Unsupported architecture for sparse decode fwd\", FP8 rows of 656 "
      "bytes; shared memory computed from its SM90 tiles";
  return kernel;
}

Kernel trtllm() {
  Kernel kernel = own_attention("trtllm", "flashinfer trtllm_batch_decode_with_kv_cache_mla (sparse_mla_top_k)",
                                run_trtllm, {Format::kKvBf16, Format::kKvPlainFp8, Format::kKvF32});
  kernel.own_shared_bytes = sparse_bytes;
  kernel.serves = {{"nsa_prefill_backend", "trtllm"}, {"nsa_decode_backend", "trtllm"}};
  kernel.sparse = true;
  kernel.architectures = {100};
  kernel.source = "flashinfer include/flashinfer/trtllm/fmha/fmhaRunner.cuh:37-38: \"Unsupported architecture\"";
  return kernel;
}

Kernel triton() {
  Kernel kernel = own_attention("triton", "sglang layers/attention/triton_ops (extend_attention, decode_attention)",
                                run_triton, {Format::kKvBf16, Format::kKvPlainFp8, Format::kKvF32});
  kernel.own_shared_bytes = dense_bytes;
  kernel.serves = {{"attention_backend", "triton"}};
  kernel.source =
      "sglang v0.5.9 mem_cache/memory_pool.py:1498: assert not self.nsa_kv_cache_store_fp8 (set_kv_buffer refuses the "
      "packed pool)";
  return kernel;
}

Kernel flashinfer() {
  Kernel kernel = own_attention("flashinfer", "sglang v0.5.9 layers/attention/flashinfer_mla_backend.py",
                                run_flashinfer, {Format::kKvBf16, Format::kKvPlainFp8, Format::kKvF32});
  kernel.own_shared_bytes = dense_bytes;
  kernel.serves = {{"attention_backend", "flashinfer"}};
  kernel.source =
      "sglang v0.5.9 layers/attention/flashinfer_mla_backend.py:639-650: get_key_buffer().to(q.dtype), no test of the "
      "pool's format";
  return kernel;
}

const RegisterKernel kFlashMlaSparse{flashmla_sparse()};
const RegisterKernel kFlashMlaKv{flashmla_kv()};
const RegisterKernel kTrtllm{trtllm()};
const RegisterKernel kTriton{triton()};
const RegisterKernel kFlashInfer{flashinfer()};

}  // namespace
}  // namespace faultline
