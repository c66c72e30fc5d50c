// Dense attention over pages: fa3 and trtllm_mla.
//
// The server hands both a table of pages of 64, taken from every 64th entry of its table of slots: key c of a token is
// row c % 64 of page c / 64, whatever the slot table says of the page's other keys. One block takes 8 heads of one
// token and walks its keys c < length in blocks of 64. Lengths are trusted, no page is tested: a -1 is the page before
// the pool, and one past the pool is read. The maximum starts at -inf; a block is visited only if it has a key.
//   fa3         flash_attn_with_kvcache, its query as rope part and qv (SGLang, flashattention_backend.py); the sum of
//               the two products is one score, as here. Of a plain FP8 pool, the codes are taken without a scale
//   trtllm_mla  flashinfer trtllm_batch_decode_with_kv_cache_mla over block_tables and seq_lens (SGLang,
//               trtllm_mla_backend.py). Its tiles are inside NVIDIA's binaries; a page is taken here
// Operands: attention_tile.h.
#pragma once

#include "kernels/attention_tile.h"

namespace faultline::kernels {

inline constexpr int kPagedKeys = 64;
inline constexpr int kPagedHeads = 8;

template <class T, bool kChecked>
struct PagedAttentionBody {
  AttentionOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto page_table = open<kChecked>(operands.page_table, log, block);
    const int64_t token = block.index(0);
    const int64_t length = open<kChecked>(operands.lengths, log, block).load(token);
    const int64_t row = open<kChecked>(operands.row_to_request, log, block).load(token) * operands.page_table_stride;
    AttentionTile<T, kPagedKeys, kPagedHeads, kChecked, Block> tile(block, operands, log, token,
                                                                    block.index(1) * kPagedHeads, kMinusInfinity);
    for (int64_t first = 0; first < length; first += kPagedKeys) {
      const int64_t count = length - first < kPagedKeys ? length - first : kPagedKeys;
      tile.absorb(count,
                  [&](int64_t j) { return slot_in_page(page_table, row, first + j, operands.layout.page_size); });
    }
    tile.finish(log);
  }
};

template <class T, bool kChecked>
void launch_paged_attention(const LaunchContext& context, const AttentionOperands<T>& operands) {
  const size_t shared_bytes =
      AttentionTile<T, kPagedKeys, kPagedHeads, kChecked, HostBlock>::shared_bytes(operands.layout);
  const Grid grid{operands.tokens, (operands.heads + kPagedHeads - 1) / kPagedHeads};
  launch(context, grid, kAttentionThreads, shared_bytes, PagedAttentionBody<T, kChecked>{operands, context.log});
}

}  // namespace faultline::kernels
