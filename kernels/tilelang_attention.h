// tilelang: sparse attention in one pass over a row's indices (SGLang, layers/attention/nsa/tilelang_kernel.py,
// sparse_attention_fwd_kernel_v2: the CUDA path).
//
// One block takes 8 heads of one token and walks all topk entries in blocks of 64 keys, an even number of blocks.
//   masks    an index below 0, and nothing else: one past the pool is read. Lengths are not looked at.
//   reads    a row for a masked entry too: of the last valid entry that the same producer thread copied (entries 16
//            apart: 128 threads copy a row by 8 threads each), and of slot 0 while there was none. Its score is
//            -inf + q . k, so that a NaN in slot 0 reaches rows shorter than a block.
//   maximum  starts at -2^30, of a score before its scale ("avoid -inf - inf to cause nan").
//   output   is divided by the sum without a test: a row without a key gives 0 / 0.
// Heads are padded to a power of two of at least 16 there, with what lies behind them in the query, and the output cut;
// no real head sees that, and it is left out here. Entries past topk, where topk is no multiple of 128 (the backend
// asserts that it is), count as masked. Operands: attention_tile.h.
#pragma once

#include "kernels/attention_tile.h"

namespace faultline::kernels {

inline constexpr int kTilelangKeys = 64;
inline constexpr int kTilelangHeads = 8;
inline constexpr int64_t kTilelangCopiers = 16;  // rows that the producer's threads copy side by side
inline constexpr float kTilelangInitialMax = -0x1p30f;

template <class T, bool kChecked, class Block>
using TilelangTile = AttentionTile<T, kTilelangKeys, kTilelangHeads, kChecked, Block, MaskedKeys::kScored>;

template <class T, bool kChecked>
struct TilelangBody {
  AttentionOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto indices = open<kChecked>(operands.indices, log, block);
    const int64_t row = block.index(0) * operands.index_stride;
    TilelangTile<T, kChecked, Block> tile(block, operands, log, block.index(0), block.index(1) * kTilelangHeads,
                                          kTilelangInitialMax * operands.scale);
    const auto key_of = [&](int64_t entry) -> int64_t {
      int64_t at = entry;
      while (at >= operands.topk) at -= kTilelangCopiers;
      for (; at >= 0; at -= kTilelangCopiers) {
        const int64_t slot = indices.load(row + at);
        if (slot >= 0) return at == entry ? slot : masked_key(slot);
      }
      return masked_key(0);
    };
    constexpr int64_t kStep = 2 * kTilelangKeys;
    const int64_t blocks = (operands.topk + kStep - 1) / kStep * 2;
    for (int64_t b = 0; b < blocks; ++b)
      tile.absorb(kTilelangKeys, [&](int64_t j) { return key_of(b * kTilelangKeys + j); });
    tile.template finish<false>(log);
  }
};

template <class T, bool kChecked>
void launch_tilelang_attention(const LaunchContext& context, const AttentionOperands<T>& operands) {
  const size_t shared_bytes = TilelangTile<T, kChecked, HostBlock>::shared_bytes(operands.layout);
  const Grid grid{operands.tokens, (operands.heads + kTilelangHeads - 1) / kTilelangHeads};
  launch(context, grid, kAttentionThreads, shared_bytes, TilelangBody<T, kChecked>{operands, context.log});
}

}  // namespace faultline::kernels
