// Sparse attention in one pass over a row's indices: flashmla_sparse, trtllm and fa3.
//
// One block takes 8 heads of one token and walks the row's entries in blocks of 64 keys.
//   flashmla_sparse  visits all topk entries; masks an index below 0 or past the pool; the maximum starts at -1e30. The
//                    server pads heads to 64 or 128 with zeros, which no real head sees; it is left out here.
//                    FlashMLA, csrc/sm90/prefill/sparse
//   trtllm, fa3      trust lengths: they read exactly the first min(length, topk) entries and mask none of them, so
//                    that a -1 among them is an address before the pool. The maximum starts at -inf. SGLang v0.5.9,
//                    nsa_backend.py, _forward_trtllm and _forward_fa3 (a page table of pages of one slot)
// Operands: attention_tile.h.
#pragma once

#include "kernels/attention_tile.h"
#include "kernels/cuda_attention.h"

namespace faultline::kernels {

inline constexpr int kSparseKeys = 64;
inline constexpr int kSparseHeads = 8;

template <class T, bool kTrustsLengths, bool kChecked>
struct SparseAttentionBody {
  AttentionOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto indices = open<kChecked>(operands.indices, log, block);
    const auto lengths = open<kChecked>(operands.lengths, log, block);
    const int64_t token = block.index(0);
    const float initial_max = kTrustsLengths ? kMinusInfinity : kFlashMlaInitialMax;
    AttentionTile<T, kSparseKeys, kSparseHeads, kChecked, Block> tile(block, operands, log, token,
                                                                      block.index(1) * kSparseHeads, initial_max);
    int64_t entries = operands.topk;
    if constexpr (kTrustsLengths) {
      const int64_t length = lengths.load(token);
      entries = length < entries ? length : entries;
    }
    for (int64_t first = 0; first < entries; first += kSparseKeys) {
      const int64_t count = entries - first < kSparseKeys ? entries - first : kSparseKeys;
      tile.absorb(count, [&](int64_t j) {
        const int64_t slot = indices.load(token * operands.index_stride + first + j);
        if constexpr (kTrustsLengths) return slot;
        return slot < 0 || slot >= operands.layout.slots ? kMaskedSlot : slot;
      });
    }
    tile.finish(log);
  }
};

template <class T, bool kTrustsLengths, bool kChecked>
void launch_sparse_attention(const LaunchContext& context, const AttentionOperands<T>& operands) {
  if constexpr (!kChecked) {
    if (cuda_attention_taken<T>(context, operands, kTrustsLengths ? KeyRule::kTrustLengths : KeyRule::kMaskOutside))
      return;
  }
  const size_t shared_bytes =
      AttentionTile<T, kSparseKeys, kSparseHeads, kChecked, HostBlock>::shared_bytes(operands.layout);
  const Grid grid{operands.tokens, (operands.heads + kSparseHeads - 1) / kSparseHeads};
  launch(context, grid, kAttentionThreads, shared_bytes,
         SparseAttentionBody<T, kTrustsLengths, kChecked>{operands, context.log});
}

}  // namespace faultline::kernels
