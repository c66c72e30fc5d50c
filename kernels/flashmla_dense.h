// flashmla: dense decode split over the keys, and a combine step (FlashMLA, csrc/sm90/decode/dense/splitkv_mla.cuh).
//
// As flashmla_kv (split_attention.h), but over the keys c < length of a token, in blocks of one page of 64: the number
// of blocks, and of splits, follows the row's length. A row is never cut into a split without a block: one of a single
// block is written by its only split, and the combine step leaves it alone. Pages are those of paged_attention.h: taken
// from every 64th entry of the table, untested. The maximum starts at -1e30 (MAX_INIT_VAL_SM); keys past the length are
// filled with zeros there, and not read here. The split of a row into parts comes from a schedule over the
// multiprocessors; here their number is an attribute. Operands: attention_tile.h.
#pragma once

#include "kernels/split_attention.h"

namespace faultline::kernels {

template <class T, bool kChecked>
struct FlashMlaDenseBody {
  AttentionOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto page_table = open<kChecked>(operands.page_table, log, block);
    const int64_t token = block.index(0);
    const int64_t first_head = block.index(1) * kSplitHeads;
    const int64_t split = block.index(2);
    const int64_t length = open<kChecked>(operands.lengths, log, block).load(token);
    const int64_t row = open<kChecked>(operands.row_to_request, log, block).load(token) * operands.page_table_stride;
    const int64_t splits = dense_splits(length, operands.splits);
    if (split >= splits) return;
    AttentionTile<T, kSplitKeys, kSplitHeads, kChecked, Block> tile(block, operands, log, token, first_head,
                                                                    kFlashMlaInitialMax);
    const int64_t blocks = (length + kSplitKeys - 1) / kSplitKeys;
    const int64_t end = (split + 1) * blocks / splits;
    for (int64_t b = split * blocks / splits; b < end; ++b) {
      const int64_t first = b * kSplitKeys;
      const int64_t count = length - first < kSplitKeys ? length - first : kSplitKeys;
      tile.absorb(count,
                  [&](int64_t j) { return slot_in_page(page_table, row, first + j, operands.layout.page_size); });
    }
    if (splits == 1)
      tile.finish(log);
    else
      tile.finish_partial(
          log, ((token * operands.splits + split) * operands.heads + first_head) * (operands.layout.latent + 2));
  }
};

template <class T, bool kChecked>
void launch_flashmla_dense(const LaunchContext& context, const AttentionOperands<T>& operands) {
  const size_t shared_bytes =
      AttentionTile<T, kSplitKeys, kSplitHeads, kChecked, HostBlock>::shared_bytes(operands.layout);
  const Grid grid{operands.tokens, (operands.heads + kSplitHeads - 1) / kSplitHeads, operands.splits};
  launch(context, grid, kAttentionThreads, shared_bytes, FlashMlaDenseBody<T, kChecked>{operands, context.log});
  launch_combine<T, kChecked, true>(context, operands);
}

}  // namespace faultline::kernels
