// Dense attention over all keys c < lengths[t] of a token: triton and flashinfer.
//
// One block takes 4 heads of one token and walks its keys in blocks of 32, through the page table (slots), or through
// ragged_offsets (rows of a contiguous buffer). 32 keys is the block of Triton's grouped decode kernel, and of its
// extend kernel at the absorbed head size (SGLang, layers/attention/triton_ops); with 4 heads the block fits in the 99
// KiB of shared memory of sm_120. The maximum starts at -inf, as in Triton: a block of keys is visited only if it has
// one. FlashInfer's MLA kernel differs in tiles and in its split, not in what it computes; what sets the two apart here
// is which cache each accepts (ops/attention.cpp). Operands: attention_tile.h.
#pragma once

#include "kernels/attention_tile.h"
#include "kernels/cuda_attention.h"

namespace faultline::kernels {

inline constexpr int kDenseKeys = 32;
inline constexpr int kDenseHeads = 4;

template <class T, bool kPaged, bool kChecked>
struct DenseAttentionBody {
  AttentionOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto page_table = open<kChecked>(operands.page_table, log, block);
    const auto row_to_request = open<kChecked>(operands.row_to_request, log, block);
    const auto lengths = open<kChecked>(operands.lengths, log, block);
    const auto ragged_offsets = open<kChecked>(operands.ragged_offsets, log, block);
    const int64_t token = block.index(0);
    AttentionTile<T, kDenseKeys, kDenseHeads, kChecked, Block> tile(block, operands, log, token,
                                                                    block.index(1) * kDenseHeads, kMinusInfinity);
    const int64_t length = lengths.load(token);
    int64_t base = 0;
    if constexpr (kPaged)
      base = row_to_request.load(token) * operands.page_table_stride;
    else
      base = ragged_offsets.load(token);
    for (int64_t first = 0; first < length; first += kDenseKeys) {
      const int64_t count = length - first < kDenseKeys ? length - first : kDenseKeys;
      tile.absorb(count, [&](int64_t j) -> int64_t {
        if constexpr (kPaged) return page_table.load(base + first + j);
        return base + first + j;
      });
    }
    tile.finish(log);
  }
};

template <class T, bool kPaged, bool kChecked>
void launch_dense_attention(const LaunchContext& context, const AttentionOperands<T>& operands) {
  if constexpr (!kChecked) {
    if (cuda_attention_taken<T>(context, operands, kPaged ? KeyRule::kPageTable : KeyRule::kRagged)) return;
  }
  const size_t shared_bytes =
      AttentionTile<T, kDenseKeys, kDenseHeads, kChecked, HostBlock>::shared_bytes(operands.layout);
  const Grid grid{operands.tokens, (operands.heads + kDenseHeads - 1) / kDenseHeads};
  launch(context, grid, kAttentionThreads, shared_bytes,
         DenseAttentionBody<T, kPaged, kChecked>{operands, context.log});
}

}  // namespace faultline::kernels
