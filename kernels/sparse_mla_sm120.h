// flashinfer_sparse_mla: sparse attention for SM120 (FlashInfer, flashinfer/mla/_sparse_mla_sm120.py and
// include/flashinfer/attention/sparse_mla_sm120; SGLang passes the row's length and kv_scale_format arbitrary_fp32).
//
// A row's first min(length, topk) entries (none for a length below 0) make chunks of 64. Up to 64 tokens, a decode,
// split s takes chunks [s * per, (s + 1) * per), per = ceil(ceil(topk / 64) / splits): a split behind the row's end
// writes its maximum of -1e30 and leaves its sums as the scratch has them, which is why the server allocates it as
// zeros; it is zeroed first here. More tokens, a prefill, are one pass.
//   masks    an index below 0; one past the pool is read.
//   reads    slot 0 for a masked entry, and for the rest of the last chunk: the score is replaced, and the row enters
//   the
//            output with weight 0, so that a NaN in slot 0 spreads (sglang #39288 is of that kind).
//   maximum  starts at -1e30.
// One block takes 8 heads of one token and stages 16 keys at a time, so that it fits in the 99 KiB of SM120. Not
// followed: the backend's products in FP8 (queries and probabilities as codes with scales) and its bf16 partial
// outputs. scratch and the combine step: split_attention.h. Other operands: attention_tile.h.
#pragma once

#include "kernels/split_attention.h"

namespace faultline::kernels {

inline constexpr int kSparseMlaChunk = 64;
inline constexpr int kSparseMlaKeys = 16;  // staged at a time
inline constexpr int kSparseMlaHeads = 8;
inline constexpr int64_t kSparseMlaDecodeTokens = 64;  // _DECODE_MAX_TOKENS

template <class T, bool kChecked, class Block>
using SparseMlaTile = AttentionTile<T, kSparseMlaKeys, kSparseMlaHeads, kChecked, Block, MaskedKeys::kWeighed>;

template <class T, bool kChecked>
struct SparseMlaBody {
  AttentionOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto indices = open<kChecked>(operands.indices, log, block);
    const int64_t token = block.index(0);
    const int64_t first_head = block.index(1) * kSparseMlaHeads;
    const int64_t split = block.index(2);
    const int64_t length = open<kChecked>(operands.lengths, log, block).load(token);
    const int64_t entries = length < operands.topk ? length : operands.topk;
    const int64_t chunks = entries > 0 ? (entries + kSparseMlaChunk - 1) / kSparseMlaChunk : 0;
    const int64_t per = (chunks_of_a_row() + operands.splits - 1) / operands.splits;
    const int64_t end = (split + 1) * per < chunks ? (split + 1) * per : chunks;
    SparseMlaTile<T, kChecked, Block> tile(block, operands, log, token, first_head, kFlashMlaInitialMax);
    for (int64_t first = split * per * kSparseMlaChunk; first < end * kSparseMlaChunk; first += kSparseMlaKeys) {
      tile.absorb(kSparseMlaKeys, [&](int64_t j) -> int64_t {
        if (first + j >= entries) return masked_key(0);
        const int64_t slot = indices.load(token * operands.index_stride + first + j);
        return slot < 0 ? masked_key(0) : slot;
      });
    }
    const int64_t record =
        ((token * operands.splits + split) * operands.heads + first_head) * (operands.layout.latent + 2);
    if (operands.splits == 1)
      tile.finish(log);
    else if (split * per < end)
      tile.finish_partial(log, record);
    else
      tile.template finish_partial<false>(log, record);
  }

  FAULTLINE_HD int64_t chunks_of_a_row() const { return (operands.topk + kSparseMlaChunk - 1) / kSparseMlaChunk; }
};

// Scratch as torch.zeros leaves it.
template <bool kChecked>
struct ZeroScratchBody {
  static constexpr int64_t kBlock = 4096;  // elements
  Operand<float> scratch;
  int64_t count = 0;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto view = open<kChecked>(scratch, log, block);
    const int64_t begin = block.index(0) * kBlock;
    const int64_t end = begin + kBlock < count ? begin + kBlock : count;
    block.for_each_thread([&](int t) {
      for (int64_t i = begin + t; i < end; i += block.threads()) view.store(i, 0.0f);
    });
  }
};

template <class T, bool kChecked>
void launch_sparse_mla(const LaunchContext& context, AttentionOperands<T> operands) {
  if (operands.tokens > kSparseMlaDecodeTokens) operands.splits = 1;
  const size_t shared_bytes = SparseMlaTile<T, kChecked, HostBlock>::shared_bytes(operands.layout);
  const Grid grid{operands.tokens, (operands.heads + kSparseMlaHeads - 1) / kSparseMlaHeads, operands.splits};
  if (operands.splits > 1) {
    using Zero = ZeroScratchBody<kChecked>;
    const int64_t count = operands.tokens * operands.splits * operands.heads * (operands.layout.latent + 2);
    launch(context, Grid{(count + Zero::kBlock - 1) / Zero::kBlock}, kAttentionThreads, 0,
           Zero{operands.scratch, count, context.log});
  }
  launch(context, grid, kAttentionThreads, shared_bytes, SparseMlaBody<T, kChecked>{operands, context.log});
  launch_combine<T, kChecked, false>(context, operands);
}

}  // namespace faultline::kernels
