// flashmla_kv: sparse attention split over the keys, and a combine step in a second launch.
//
// The row's topk entries make ceil(topk / 64) blocks of 64 keys (at least one), whatever the sequence's length; split s
// of a token takes blocks [s * blocks / splits, (s + 1) * blocks / splits). One thread block runs one split of 8 heads
// of one token and leaves partial results in scratch; with one split it writes the output itself and nothing is
// combined. The combine block of a token and head weighs the splits by exp(max - largest max). Only an index of exactly
// -1 is masked: one past the pool is read, as in FlashMLA (csrc/sm90/decode/sparse_fp8, csrc/smxx/decode/combine). Its
// splits come from a schedule over the multiprocessors; here their number is an attribute. scratch:
// [tokens][splits][heads][latent + 2] F32: running sums, maximum, total. Other operands: attention_tile.h.
#pragma once

#include "kernels/attention_tile.h"
#include "kernels/cuda_attention.h"

namespace faultline::kernels {

inline constexpr int kSplitKeys = 64;
inline constexpr int kSplitHeads = 8;
inline constexpr int kCombineThreads = 64;

template <class T, bool kChecked>
struct SplitAttentionBody {
  AttentionOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto indices = open<kChecked>(operands.indices, log, block);
    const int64_t token = block.index(0);
    const int64_t first_head = block.index(1) * kSplitHeads;
    const int64_t split = block.index(2);
    AttentionTile<T, kSplitKeys, kSplitHeads, kChecked, Block> tile(block, operands, log, token, first_head,
                                                                    kFlashMlaInitialMax);
    const int64_t needed = (operands.topk + kSplitKeys - 1) / kSplitKeys;
    const int64_t blocks = needed > 0 ? needed : 1;
    const int64_t end = (split + 1) * blocks / operands.splits;
    for (int64_t b = split * blocks / operands.splits; b < end; ++b) {
      tile.absorb(kSplitKeys, [&](int64_t j) {
        const int64_t entry = b * kSplitKeys + j;
        if (entry >= operands.topk) return kMaskedSlot;
        const int64_t slot = indices.load(token * operands.index_stride + entry);
        return slot == -1 ? kMaskedSlot : slot;
      });
    }
    if (operands.splits == 1)
      tile.finish(log);
    else
      tile.finish_partial(
          log, ((token * operands.splits + split) * operands.heads + first_head) * (operands.layout.latent + 2));
  }
};

// Into how many splits a dense kernel cuts a row of `length` keys: never into one without a block.
FAULTLINE_HD inline int64_t dense_splits(int64_t length, int64_t splits) {
  const int64_t blocks = (length + kSplitKeys - 1) / kSplitKeys;
  if (blocks < 1) return 1;
  return blocks < splits ? blocks : splits;
}

// kDense: rows have dense_splits() splits, and one with a single split was written already (flashmla_dense.h).
template <class T, bool kChecked, bool kDense = false>
struct CombineBody {
  AttentionOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto scratch = open<kChecked>(operands.scratch, log, block);
    const auto out = open<kChecked>(operands.out, log, block);
    const int64_t token = block.index(0);
    const int64_t head = block.index(1);
    const int64_t latent = operands.layout.latent;
    int64_t splits = operands.splits;
    if constexpr (kDense) {
      splits = dense_splits(open<kChecked>(operands.lengths, log, block).load(token), splits);
      if (splits == 1) return;
    }
    const auto record = [&](int64_t split) {
      return ((token * operands.splits + split) * operands.heads + head) * (latent + 2);
    };
    float* factors = block.template shared<float>(operands.splits);
    float* total = block.template shared<float>(1);
    block.for_each_thread([&](int t) {
      if (t != 0) return;
      float largest = kFlashMlaInitialMax;
      for (int64_t s = 0; s < splits; ++s) {
        const float value = scratch.load(record(s) + latent);
        if (value > largest) largest = value;
      }
      float sum = 0;
      for (int64_t s = 0; s < splits; ++s) {
        factors[s] = expf(scratch.load(record(s) + latent) - largest);
        sum += factors[s] * scratch.load(record(s) + latent + 1);
      }
      total[0] = sum;
    });
    block.for_each_thread([&](int t) {
      for (int64_t c = t; c < latent; c += block.threads()) {
        float sum = 0;
        for (int64_t s = 0; s < splits; ++s) sum += factors[s] * scratch.load(record(s) + c);
        out.store(token * operands.out_token_stride + head * operands.out_head_stride + c,
                  narrow<T>(total[0] == 0 ? 0.0f : sum / total[0]));
      }
    });
  }
};

template <class T, bool kChecked, bool kDense>
void launch_combine(const LaunchContext& context, const AttentionOperands<T>& operands) {
  if (operands.splits == 1) return;
  const size_t shared_bytes = static_cast<size_t>(operands.splits + 1) * sizeof(float);
  launch(context, Grid{operands.tokens, operands.heads}, kCombineThreads, shared_bytes,
         CombineBody<T, kChecked, kDense>{operands, context.log});
}

template <class T, bool kChecked>
void launch_split_attention(const LaunchContext& context, const AttentionOperands<T>& operands) {
  if constexpr (!kChecked) {
    if (cuda_attention_taken<T>(context, operands, KeyRule::kMaskMinusOne)) return;
  }
  const size_t shared_bytes =
      AttentionTile<T, kSplitKeys, kSplitHeads, kChecked, HostBlock>::shared_bytes(operands.layout);
  const Grid grid{operands.tokens, (operands.heads + kSplitHeads - 1) / kSplitHeads, operands.splits};
  launch(context, grid, kAttentionThreads, shared_bytes, SplitAttentionBody<T, kChecked>{operands, context.log});
  launch_combine<T, kChecked, false>(context, operands);
}

}  // namespace faultline::kernels
