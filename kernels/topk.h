// fast_topk: the topk best-scored keys of each token, and the transform of their positions into indices.
//
// One block selects for one token. Up to topk keys the scores are not looked at: entry i is key i, the rest -1 (the
// server's naive path). Otherwise a radix selection on the float's bits in an order-preserving form, 8 bits a pass from
// the top: a histogram of the digit, the bin in which the k-th key lies, keys above it emitted, keys in it looked at
// again by their next digit. After the last digit the bin's keys are equal, and the first to arrive are taken. Entries
// land in the order of an atomic counter, so the order within a row means nothing and varies. A NaN sorts by its bits:
// above all numbers, or below them if its sign is set. Follows SGLang, sgl-kernel/csrc/elementwise/topk.cu (8-bit
// histogram and refinement), without its buffer of 4096 candidates, whose overflow drops keys (sglang #36807). scores:
// [tokens, columns] F32; lengths, row_to_request, ragged_offsets: [tokens]; page_table: [requests, columns]; out:
// [tokens, topk] I32. Row strides in elements.
#pragma once

#include "kernels/operand.h"

namespace faultline::kernels {

inline constexpr int kTopKThreads = 128;
inline constexpr int kRadixBins = 256;

enum class IndexTransform : uint8_t { kPositions, kPaged, kRagged };

struct TopKOperands {
  Operand<float> scores;
  Operand<int32_t> lengths;
  Operand<int32_t> page_table;      // kPaged only
  Operand<int32_t> row_to_request;  // kPaged only
  Operand<int32_t> ragged_offsets;  // kRagged only
  Operand<int32_t> out;
  IndexTransform transform = IndexTransform::kPositions;
  int64_t tokens = 0;
  int64_t topk = 0;
  int64_t score_stride = 0;
  int64_t page_table_stride = 0;
  int64_t out_stride = 0;
};

// Larger floats have larger keys.
FAULTLINE_HD inline uint32_t ordered_key(float value) {
  const uint32_t bits = float_bits(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

template <bool kChecked>
struct TopKBody {
  TopKOperands operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto scores = open<kChecked>(operands.scores, log, block);
    const auto lengths = open<kChecked>(operands.lengths, log, block);
    const auto page_table = open<kChecked>(operands.page_table, log, block);
    const auto row_to_request = open<kChecked>(operands.row_to_request, log, block);
    const auto ragged_offsets = open<kChecked>(operands.ragged_offsets, log, block);
    const auto out = open<kChecked>(operands.out, log, block);
    const int64_t token = block.index(0);
    const int64_t topk = operands.topk;
    const int64_t length = lengths.load(token);
    const int64_t score_row = token * operands.score_stride;
    const int64_t out_row = token * operands.out_stride;
    const int64_t page_row =
        operands.transform == IndexTransform::kPaged ? row_to_request.load(token) * operands.page_table_stride : 0;
    const int32_t offset = operands.transform == IndexTransform::kRagged ? ragged_offsets.load(token) : 0;
    const auto index_of = [&](int64_t key) {
      return operands.transform == IndexTransform::kPaged ? page_table.load(page_row + key)
                                                          : static_cast<int32_t>(key) + offset;
    };

    if (length <= topk) {
      block.for_each_thread([&](int t) {
        for (int64_t i = t; i < topk; i += block.threads()) out.store(out_row + i, i < length ? index_of(i) : -1);
      });
      return;
    }

    int32_t* histogram = block.template shared<int32_t>(kRadixBins);
    int32_t* threshold = block.template shared<int32_t>(1);  // the bin in which the k-th key lies
    int32_t* wanted = block.template shared<int32_t>(1);     // keys still to be found among those with the prefix
    int32_t* emitted = block.template shared<int32_t>(1);    // entries written
    int32_t* ties = block.template shared<int32_t>(1);       // keys equal to the k-th that came by
    uint32_t* prefix = block.template shared<uint32_t>(1);   // the k-th key's digits so far
    block.for_each_thread([&](int t) {
      if (t != 0) return;
      wanted[0] = static_cast<int32_t>(topk);
      emitted[0] = 0;
      ties[0] = 0;
      prefix[0] = 0;
    });
    for (int shift = 24; shift >= 0; shift -= 8) {
      const auto in_play = [&](uint32_t key) { return shift == 24 || key >> (shift + 8) == prefix[0]; };
      const auto digit = [&](uint32_t key) { return static_cast<int>(key >> shift & (kRadixBins - 1)); };
      block.for_each_thread([&](int t) {
        for (int bin = t; bin < kRadixBins; bin += block.threads()) histogram[bin] = 0;
      });
      block.for_each_thread([&](int t) {
        for (int64_t c = t; c < length; c += block.threads()) {
          const uint32_t key = ordered_key(scores.load(score_row + c));
          if (in_play(key)) block.atomic_add(&histogram[digit(key)], 1);
        }
      });
      block.for_each_thread([&](int t) {
        if (t != 0) return;
        int bin = kRadixBins - 1;
        int32_t above = 0;
        while (bin > 0 && above + histogram[bin] < wanted[0]) above += histogram[bin--];
        wanted[0] -= above;
        threshold[0] = bin;
      });
      block.for_each_thread([&](int t) {
        for (int64_t c = t; c < length; c += block.threads()) {
          const uint32_t key = ordered_key(scores.load(score_row + c));
          if (!in_play(key) || digit(key) < threshold[0]) continue;
          if (digit(key) == threshold[0] && (shift > 0 || block.atomic_add(ties, 1) >= wanted[0])) continue;
          out.store(out_row + block.atomic_add(emitted, 1), index_of(c));
        }
      });
      block.for_each_thread([&](int t) {
        if (t == 0) prefix[0] = prefix[0] << 8 | static_cast<uint32_t>(threshold[0]);
      });
    }
  }
};

#ifdef FAULTLINE_HAVE_CUDA
bool cuda_faster(const LaunchContext& context, Grid grid, const TopKBody<false>& body);  // cuda_topk.cu
#endif

template <bool kChecked>
void launch_topk(const LaunchContext& context, const TopKOperands& operands) {
  constexpr size_t kSharedBytes = (kRadixBins + 5) * sizeof(int32_t);
  launch(context, Grid{operands.tokens}, kTopKThreads, kSharedBytes, TopKBody<kChecked>{operands, context.log});
}

}  // namespace faultline::kernels
