// The inner part that all attention kernels share: MLA in absorbed form over blocks of keys, with an online softmax.
//
//   score[h][j] = q[h] . k[j] * scale over latent + rope dims;  out[h] = sum_j p[h][j] * k[j][0:latent]
//
// A block of threads holds kHeads heads of one token: their queries, one block of kKeys decoded rows, the scores, and
// the running maximum, sum and output of each head, all in float. A masked key scores -inf. The kernels differ in which
// keys they visit, in what they mask, and in where the running maximum starts.
#pragma once

#include <cmath>

#include "kernels/cache_rows.h"
#include "kernels/dot.h"

namespace faultline::kernels {

inline constexpr int kAttentionThreads = 128;
// Start of the running maximum in FlashMLA ("to avoid (-inf) - (-inf) = NaN": csrc/sm100/decode/head64/config.h) …
inline constexpr float kFlashMlaInitialMax = -1e30f;
// … and in Triton's decode and extend kernels, which rely on a block having a key.
inline constexpr float kMinusInfinity = -INFINITY;

// The slot of key c where a table row of slots is read as one of pages, as backends over pages of 64 do: only the first
// slot of each page is looked at. The division is rounded down, so that a -1 is the page before the pool.
template <class Table>
FAULTLINE_HD int64_t slot_in_page(const Table& page_table, int64_t row, int64_t c, int64_t page_size) {
  const int64_t first = page_table.load(row + c / page_size * page_size);
  const int64_t page = first >= 0 ? first / page_size : -((-first + page_size - 1) / page_size);
  return page * page_size + c % page_size;
}

// q: [tokens, heads, width]; pool: a cache; indices: [tokens, topk] slots or rows of a contiguous buffer; page_table:
// [requests, columns] slots; row_to_request, lengths, ragged_offsets: [tokens]; scratch: see split_attention.h; out:
// [tokens, heads, latent]. Strides in elements. Operands that a kernel does not read may be absent.
template <class T>
struct AttentionOperands {
  Operand<T> q;
  Operand<uint8_t> pool;
  Operand<int32_t> indices;
  Operand<int32_t> page_table;
  Operand<int32_t> row_to_request;
  Operand<int32_t> lengths;
  Operand<int32_t> ragged_offsets;
  Operand<float> scratch;
  Operand<T> out;
  CacheLayout layout;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t topk = 0;    // entries of a row of indices
  int64_t splits = 1;  // split_attention.h
  int64_t q_token_stride = 0;
  int64_t q_head_stride = 0;
  int64_t index_stride = 0;
  int64_t page_table_stride = 0;
  int64_t out_token_stride = 0;
  int64_t out_head_stride = 0;
  float scale = 0;
};

// What becomes of a masked key. Backends that clamp its index instead of skipping it still read a row for it, and a NaN
// there reaches the output: 0 * NaN, or -inf + NaN.
enum class MaskedKeys : uint8_t {
  kSkipped,  // not read: counts as zeros
  kWeighed,  // its row is read, its score replaced by -inf; the row is multiplied by the weight of 0
  kScored    // its row is read, and its score is -inf + q . k
};
// What slot_of answers for a masked key of which a row is read all the same (kWeighed, kScored).
FAULTLINE_HD inline int64_t masked_key(int64_t slot) {
  return kMaskedSlot + 1 + slot;
}

template <class T, int kKeys, int kHeads, bool kChecked, class Block, MaskedKeys kMasked = MaskedKeys::kSkipped>
class AttentionTile {
 public:
  // Loads the queries of heads [first_head, first_head + kHeads) of `token`.
  FAULTLINE_HD AttentionTile(Block& block, const AttentionOperands<T>& operands, AccessLog* log, int64_t token,
                             int64_t first_head, float initial_max)
      : block_(block),
        operands_(operands),
        pool_(open<kChecked>(operands.pool, log, block)),
        token_(token),
        first_head_(first_head),
        heads_(operands.heads - first_head < kHeads ? operands.heads - first_head : kHeads) {
    const auto q = open<kChecked>(operands.q, log, block);
    const int64_t width = operands.layout.width();
    slots_ = block.template shared<int64_t>(kKeys);
    queries_ = block.template shared<float>(kHeads * width);
    rows_ = block.template shared<float>(kKeys * width);
    weights_ = block.template shared<float>(kHeads * kKeys);
    sums_ = block.template shared<float>(kHeads * operands.layout.latent);
    largest_ = block.template shared<float>(kHeads);
    total_ = block.template shared<float>(kHeads);
    correction_ = block.template shared<float>(kHeads);
    if constexpr (kMasked != MaskedKeys::kSkipped) masked_ = block.template shared<uint8_t>(kKeys);
    block.for_each_thread([&](int t) {
      for (int64_t h = t; h < heads_; h += block.threads()) {
        largest_[h] = initial_max;
        total_[h] = 0;
      }
      for (int64_t i = t; i < heads_ * operands.layout.latent; i += block.threads()) sums_[i] = 0;
      for (int64_t i = t; i < heads_ * width; i += block.threads()) {
        const int64_t row = token * operands.q_token_stride + (first_head + i / width) * operands.q_head_stride;
        queries_[i] = to_float(q.load(row + i % width));
      }
    });
  }

  static size_t shared_bytes(const CacheLayout& layout) {
    const int64_t floats =
        kHeads * layout.width() + kKeys * layout.width() + kHeads * kKeys + kHeads * layout.latent + 3 * kHeads;
    const size_t flags = kMasked == MaskedKeys::kSkipped ? 0 : kKeys;
    return kKeys * sizeof(int64_t) + static_cast<size_t>(floats) * sizeof(float) + flags;
  }

  // Only raises the running maximum by `count` keys: the first of two passes, after which absorb() is a plain softmax.
  template <class SlotOf>
  FAULTLINE_HD void raise_maximum(int64_t count, const SlotOf& slot_of) {
    score(count, slot_of);
    block_.for_each_thread([&](int t) {
      for (int64_t h = t; h < heads_; h += block_.threads())
        for (int64_t j = 0; j < count; ++j)
          if (weights_[h * kKeys + j] > largest_[h]) largest_[h] = weights_[h * kKeys + j];
    });
  }

  // Takes in `count` keys; slot_of(j) gives the slot of the j-th, or kMaskedSlot, or masked_key(slot).
  template <class SlotOf>
  FAULTLINE_HD void absorb(int64_t count, const SlotOf& slot_of) {
    score(count, slot_of);
    const int64_t width = operands_.layout.width();
    const int64_t latent = operands_.layout.latent;
    block_.for_each_thread([&](int t) {
      for (int64_t h = t; h < heads_; h += block_.threads()) {
        float* weights = weights_ + h * kKeys;
        float largest = largest_[h];
        for (int64_t j = 0; j < count; ++j)
          if (weights[j] > largest) largest = weights[j];
        float sum = 0;
        for (int64_t j = 0; j < count; ++j) {
          weights[j] = expf(weights[j] - largest);
          sum += weights[j];
        }
        correction_[h] = expf(largest_[h] - largest);
        total_[h] = total_[h] * correction_[h] + sum;
        largest_[h] = largest;
      }
    });
    const int64_t pieces = (latent + kPiece - 1) / kPiece;
    block_.for_each_thread([&](int t) {
      for (int64_t item = t; item < heads_ * pieces; item += block_.threads()) {
        const int64_t h = item / pieces;
        const int64_t begin = item % pieces * kPiece;
        const int64_t columns = latent - begin < kPiece ? latent - begin : kPiece;
        float* sums = sums_ + h * latent + begin;
        for (int64_t c = 0; c < columns; ++c) sums[c] *= correction_[h];
        for (int64_t j = 0; j < count; ++j)
          add_scaled(sums, weights_[h * kKeys + j], rows_ + j * width + begin, columns);
      }
    });
  }

  // Writes the heads' outputs, rounded once. A row without a key gives 0, or, unguarded, 0 / 0.
  template <bool kGuarded = true>
  FAULTLINE_HD void finish(AccessLog* log) {
    const auto out = open<kChecked>(operands_.out, log, block_);
    const int64_t latent = operands_.layout.latent;
    block_.for_each_thread([&](int t) {
      for (int64_t i = t; i < heads_ * latent; i += block_.threads()) {
        const int64_t h = i / latent;
        const float value = kGuarded && total_[h] == 0 ? 0.0f : sums_[i] / total_[h];
        out.store(token_ * operands_.out_token_stride + (first_head_ + h) * operands_.out_head_stride + i % latent,
                  narrow<T>(value));
      }
    });
  }

  // Writes the running sums, maxima and totals, for a combine step: head h's record begins at `at + h * (latent + 2)`.
  // A split without a key may leave the sums as they are in memory.
  template <bool kSums = true>
  FAULTLINE_HD void finish_partial(AccessLog* log, int64_t at) {
    const auto scratch = open<kChecked>(operands_.scratch, log, block_);
    const int64_t latent = operands_.layout.latent;
    block_.for_each_thread([&](int t) {
      for (int64_t i = t; kSums && i < heads_ * latent; i += block_.threads())
        scratch.store(at + i / latent * (latent + 2) + i % latent, sums_[i]);
      for (int64_t h = t; h < heads_; h += block_.threads()) {
        scratch.store(at + h * (latent + 2) + latent, largest_[h]);
        scratch.store(at + h * (latent + 2) + latent + 1, total_[h]);
      }
    });
  }

 private:
  // Stages the rows of `count` keys and leaves their scores in weights_.
  template <class SlotOf>
  FAULTLINE_HD void score(int64_t count, const SlotOf& slot_of) {
    block_.for_each_thread([&](int t) {
      for (int64_t j = t; j < count; j += block_.threads()) {
        slots_[j] = slot_of(j);
        if constexpr (kMasked != MaskedKeys::kSkipped) {
          // The slots of masked keys lie in [kMaskedSlot + 1, kMaskedSlot + 1 + INT32_MAX]; no int32 index does.
          masked_[j] = slots_[j] < INT32_MIN ? 1 : 0;
          if (slots_[j] < INT32_MIN && slots_[j] != kMaskedSlot) slots_[j] -= kMaskedSlot + 1;
        }
      }
    });
    stage_rows<kChecked>(block_, pool_, operands_.layout, slots_, count, rows_);
    const int64_t width = operands_.layout.width();
    block_.for_each_thread([&](int t) {
      for (int64_t item = t; item < heads_ * count; item += block_.threads()) {
        const int64_t h = item / count;
        const int64_t j = item % count;
        const auto product = [&] { return dot(queries_ + h * width, rows_ + j * width, width) * operands_.scale; };
        if constexpr (kMasked == MaskedKeys::kSkipped)
          weights_[h * kKeys + j] = slots_[j] == kMaskedSlot ? kMinusInfinity : product();
        else if (masked_[j] == 0)
          weights_[h * kKeys + j] = product();
        else
          weights_[h * kKeys + j] = kMasked == MaskedKeys::kScored ? kMinusInfinity + product() : kMinusInfinity;
      }
    });
  }

  static constexpr int64_t kPiece = 64;  // columns of the output that one thread sums up

  Block& block_;
  const AttentionOperands<T>& operands_;
  View<uint8_t, kChecked> pool_;
  int64_t token_;
  int64_t first_head_;
  int64_t heads_;
  int64_t* slots_;             // [kKeys]
  float* queries_;             // [kHeads][width]
  float* rows_;                // [kKeys][width]
  float* weights_;             // [kHeads][kKeys]: scores, then exp(score - largest)
  float* sums_;                // [kHeads][latent]
  float* largest_;             // [kHeads]
  float* total_;               // [kHeads]
  float* correction_;          // [kHeads]
  uint8_t* masked_ = nullptr;  // [kKeys], where masked keys are read
};

}  // namespace faultline::kernels
