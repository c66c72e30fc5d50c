// MLA attention on tensor cores: the CUDA-only body behind the attention kernels at GLM-5's head sizes (latent 512,
// rope 64), for bf16 activations over bf16, packed and plain fp8 rows. What is masked, what is trusted and where the
// running maximum starts is each kernel's own, as in its single-source body (sparse_attention.h, split_attention.h,
// dense_attention.h), which stays its twin in tests.
#pragma once

#include <type_traits>

#include "kernels/attention_tile.h"

namespace faultline::kernels {

// Which keys a token visits, and which of them are masked.
enum class KeyRule : uint8_t {
  kMaskOutside,   // flashmla_sparse: every entry of indices; below 0 or past the pool is masked
  kMaskMinusOne,  // flashmla_kv: every entry of indices; -1 is masked, all else read
  kTrustLengths,  // trtllm: the first min(length, topk) entries of indices, none masked
  kPageTable,     // triton, flashinfer: slots of all keys c < length
  kRagged         // the same over rows of a contiguous buffer
};

// Launches it, or returns false where the shapes, the format, the alignment or the device are not its own.
bool cuda_attention(const LaunchContext& context, const AttentionOperands<Bf16>& operands, KeyRule rule);

// The same for any element type and any build of the program: false where the launch is not for a GPU, or is to be the
// single-source body's.
template <class T>
bool cuda_attention_taken([[maybe_unused]] const LaunchContext& context,
                          [[maybe_unused]] const AttentionOperands<T>& operands, [[maybe_unused]] KeyRule rule) {
#ifdef FAULTLINE_HAVE_CUDA
  if constexpr (std::is_same_v<T, Bf16>)
    return context.cuda && !context.plain && cuda_attention(context, operands, rule);
#endif
  return false;
}

}  // namespace faultline::kernels
