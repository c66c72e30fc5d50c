// Attention kernels that follow further backends of the server; the first five are in attention.cpp.
#include "kernels/dense_attention.h"
#include "kernels/flashmla_dense.h"
#include "kernels/native_attention.h"
#include "kernels/paged_attention.h"
#include "kernels/sparse_attention.h"
#include "kernels/sparse_mla_sm120.h"
#include "kernels/tilelang_attention.h"
#include "ops/attention_kernels.h"

namespace faultline {
namespace {

using namespace attention;
using ops::Attention;

void require_sparse(const OpCall& call) {
  FAULTLINE_CHECK(call.argument(Attention::kIndices).present());
  FAULTLINE_CHECK(call.argument(Attention::kLengths).present());
}

void require_dense(const OpCall& call) {
  const bool ragged = index_form(call) == IndexForm::kRagged;
  FAULTLINE_CHECK(call.argument(Attention::kLengths).present());
  FAULTLINE_CHECK(call.argument(ragged ? Attention::kRaggedOffsets : Attention::kPageTable).present());
  FAULTLINE_CHECK(ragged || call.argument(Attention::kRowToRequest).present());
}

// Rows of a contiguous buffer have no pages: what a backend's prefill without a prefix reads is the same for all.
template <class Build, class T>
void launch_ragged(Build /*build*/, const OpCall& call, const kernels::AttentionOperands<T>& operands) {
  kernels::launch_dense_attention<T, false, Build::kChecked>(call.launch, operands);
}

KernelResult run_fa3(const OpCall& call) {
  require_sparse(call);
  return launched(call, "fa3", [&](auto build, const auto& operands) {
    using Build = decltype(build);
    kernels::launch_sparse_attention<typename Build::Element, true, Build::kChecked>(call.launch, operands);
  });
}

KernelResult run_tilelang(const OpCall& call) {
  FAULTLINE_CHECK(call.argument(Attention::kIndices).present());
  return launched(call, "tilelang", [&](auto build, const auto& operands) {
    using Build = decltype(build);
    kernels::launch_tilelang_attention<typename Build::Element, Build::kChecked>(call.launch, operands);
  });
}

KernelResult run_sparse_mla(const OpCall& call) {
  require_sparse(call);
  return launched(call, "flashinfer_sparse_mla", [&](auto build, const auto& operands) {
    using Build = decltype(build);
    require_scratch(operands);
    kernels::launch_sparse_mla<typename Build::Element, Build::kChecked>(call.launch, operands);
  });
}

KernelResult run_paged(const OpCall& call, std::string_view name) {
  require_dense(call);
  return launched(call, name, [&](auto build, const auto& operands) {
    using Build = decltype(build);
    if (index_form(call) == IndexForm::kRagged)
      launch_ragged(build, call, operands);
    else
      kernels::launch_paged_attention<typename Build::Element, Build::kChecked>(call.launch, operands);
  });
}
KernelResult run_fa3_mla(const OpCall& call) {
  return run_paged(call, "fa3_mla");
}
KernelResult run_trtllm_mla(const OpCall& call) {
  return run_paged(call, "trtllm_mla");
}

KernelResult run_flashmla_dense(const OpCall& call) {
  require_dense(call);
  return launched(call, "flashmla_dense", [&](auto build, const auto& operands) {
    using Build = decltype(build);
    require_scratch(operands);
    if (index_form(call) == IndexForm::kRagged)
      launch_ragged(build, call, operands);
    else
      kernels::launch_flashmla_dense<typename Build::Element, Build::kChecked>(call.launch, operands);
  });
}

KernelResult run_torch_native(const OpCall& call) {
  require_dense(call);
  bool failed = false;
  KernelResult fault = launched(call, "torch_native", [&](auto build, const auto& operands) {
    using Build = decltype(build);
    if (index_form(call) == IndexForm::kRagged)
      launch_ragged(build, call, operands);
    else
      failed = kernels::launch_native_attention<typename Build::Element, Build::kChecked>(call.launch, operands);
  });
  // The checked build has recorded it.
  if (!fault && failed && !call.checked) return KernelFault{"device-assert", FAULTLINE_INDEX_MESSAGE};
  return fault;
}

std::vector<AxisBinding> both_phases(const std::string& value) {
  return {{"nsa_prefill_backend", value}, {"nsa_decode_backend", value}};
}

const std::vector<Format> kBf16 = {Format::kKvBf16, Format::kKvF32};
const std::vector<Format> kBf16OrPlain = {Format::kKvBf16, Format::kKvPlainFp8, Format::kKvF32};

Kernel fa3() {
  Kernel kernel =
      own_attention("fa3", "flash_attn_with_kvcache over a page table of single slots (qv form)", run_fa3, kBf16);
  kernel.own_shared_bytes = tile_bytes<kernels::kSparseKeys, kernels::kSparseHeads>;
  kernel.serves = both_phases("fa3");
  kernel.sparse = true;
  kernel.architectures = {90};
  kernel.source =
      "sglang 93109cc sgl-kernel/python/sgl_kernel/flash_attn.py:16-28 (SM8x and SM90), "
      "layers/attention/nsa_backend.py:1613-1649 (bf16 views of the pool)";
  return kernel;
}

Kernel tilelang() {
  Kernel kernel =
      own_attention("tilelang", "sglang layers/attention/nsa/tilelang_kernel.py, sparse_attention_fwd_kernel_v2",
                    run_tilelang, kBf16);
  kernel.own_shared_bytes = tile_bytes<kernels::kTilelangKeys, kernels::kTilelangHeads, kernels::MaskedKeys::kScored>;
  kernel.serves = both_phases("tilelang");
  kernel.sparse = true;
  kernel.architectures = {90};
  kernel.shared_memory_bytes = 230016;
  kernel.source =
      "sglang 93109cc layers/attention/nsa/tilelang_kernel.py:413-800 (wgmma waits; KV of bfloat16); shared memory "
      "computed from its buffers at 64 heads";
  return kernel;
}

Kernel flashinfer_sparse_mla() {
  Kernel kernel = own_attention("flashinfer_sparse_mla", "flashinfer flashinfer/mla/_sparse_mla_sm120.py (GLM_NSA)",
                                run_sparse_mla, {Format::kKvPacked, Format::kKvF32});
  kernel.own_shared_bytes =
      tile_bytes<kernels::kSparseMlaKeys, kernels::kSparseMlaHeads, kernels::MaskedKeys::kWeighed>;
  kernel.serves = both_phases("flashinfer_sparse_mla");
  kernel.sparse = true;
  kernel.architectures = {120};
  kernel.source =
      "sglang c863760 kernels/ops/attention/flash_mla_sm120.py:568-600 (SM120, FP8 cache); flashinfer fb28d72 "
      "flashinfer/mla/_sparse_mla_sm120.py: \"expects packed uint8 kv_cache\", rows of 656 bytes";
  return kernel;
}

Kernel fa3_mla() {
  Kernel kernel = own_attention("fa3_mla", "sglang layers/attention/flashattention_backend.py (qv form, pages of 64)",
                                run_fa3_mla, kBf16OrPlain);
  kernel.own_shared_bytes = tile_bytes<kernels::kPagedKeys, kernels::kPagedHeads>;
  kernel.serves = {{"attention_backend", "fa3"}};
  kernel.architectures = {90};
  kernel.source =
      "sglang d69c39b layers/attention/flashattention_backend.py:1335-1348; sglang 93109cc "
      "sgl-kernel/python/sgl_kernel/flash_attn.py:16-28 (SM8x and SM90)";
  return kernel;
}

Kernel trtllm_mla() {
  Kernel kernel = own_attention("trtllm_mla", "flashinfer trtllm_batch_decode_with_kv_cache_mla over block tables",
                                run_trtllm_mla, kBf16OrPlain);
  kernel.own_shared_bytes = tile_bytes<kernels::kPagedKeys, kernels::kPagedHeads>;
  kernel.serves = {{"attention_backend", "trtllm_mla"}};
  kernel.architectures = {100};
  kernel.source =
      "flashinfer fb28d72 include/flashinfer/trtllm/fmha/fmhaRunner.cuh:37-38: \"Unsupported architecture\"; sglang "
      "d69c39b layers/attention/trtllm_mla_backend.py:822-823";
  return kernel;
}

Kernel flashmla_dense() {
  Kernel kernel = own_attention("flashmla_dense", "FlashMLA csrc/sm90/decode/dense, csrc/smxx/decode/combine",
                                run_flashmla_dense, kBf16OrPlain);
  kernel.own_shared_bytes = tile_bytes<kernels::kSplitKeys, kernels::kSplitHeads>;
  kernel.serves = {{"attention_backend", "flashmla"}};
  kernel.architectures = {90};
  kernel.source =
      "FlashMLA README: dense decoding is for SM90; sglang d69c39b layers/attention/flashmla_backend.py:46, 413-484";
  return kernel;
}

Kernel torch_native() {
  Kernel kernel =
      own_attention("torch_native", "sglang layers/attention/torch_native_backend.py", run_torch_native, kBf16OrPlain);
  kernel.own_shared_bytes = tile_bytes<kernels::kNativeKeys, kernels::kNativeHeads>;
  kernel.serves = {{"attention_backend", "torch_native"}};
  kernel.source =
      "sglang d69c39b layers/attention/torch_native_backend.py:96-99, 170-173 (keys are cast to the query's dtype); "
      "sglang 93109cc mem_cache/memory_pool.py:1558 (set_kv_buffer refuses the packed pool)";
  return kernel;
}

const RegisterKernel kFa3{fa3()};
const RegisterKernel kTilelang{tilelang()};
const RegisterKernel kSparseMla{flashinfer_sparse_mla()};
const RegisterKernel kFa3Mla{fa3_mla()};
const RegisterKernel kTrtllmMla{trtllm_mla()};
const RegisterKernel kFlashMlaDense{flashmla_dense()};
const RegisterKernel kTorchNative{torch_native()};

}  // namespace
}  // namespace faultline
