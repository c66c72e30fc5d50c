// Shapes, arguments and shared memory of the kernel in cuda_attention.cuh.
#pragma once

#include "kernels/cuda_attention.h"

namespace faultline::kernels::mla {

constexpr int kThreads = 256;
constexpr int kWarps = 8;
constexpr int kKeys = 64;
constexpr int kLatent = 512;
constexpr int kWidth = 576;
constexpr int kRowBytes = kWidth * 2;
constexpr int kTileBytes = kKeys * kRowBytes;
constexpr int kChunk = 16;                           // bytes
constexpr int kRowChunks = kRowBytes / kChunk;       // 72
constexpr int kLatentChunks = kLatent * 2 / kChunk;  // 64: the rope part begins here
constexpr int kGroup = 128;                          // latent dims that share a scale in a packed row
constexpr int kProbabilityStride = kKeys + 4;        // floats; of the packed format
constexpr int kMostSplits = 16;                      // blocks of a cluster
constexpr float kLog2E = 1.44269504088896340736f;

enum class Rows : uint8_t { kBf16, kPlainFp8, kPacked };

struct Arguments {
  const uint16_t* q;
  const uint8_t* pool;
  const int32_t* indices;
  const int32_t* page_table;
  const int32_t* row_to_request;
  const int32_t* lengths;
  const int32_t* ragged_offsets;
  uint16_t* out;
  int64_t slots;
  int64_t row_stride;
  int64_t q_token_stride;
  int64_t q_head_stride;
  int64_t index_stride;
  int64_t page_table_stride;
  int64_t out_token_stride;
  int64_t out_head_stride;
  int topk;
  int heads;
  int splits;
  float scale;
  float initial_max;
  KeyRule rule;
};

__host__ __device__ constexpr int raw_row_bytes(Rows rows) {
  return rows == Rows::kPacked ? kLatent + kPackedGroups * 4 + (kWidth - kLatent) * 2 : kWidth;
}

// Shared memory, in bytes from its start.
template <int kRowTiles, Rows kRows>
struct Memory {
  static constexpr int kHeads = 16 * kRowTiles;
  static constexpr int kQueries = 0;
  static constexpr int kTiles = kQueries + kHeads * kRowBytes;
  static constexpr int kRaw = kTiles + (kRows == Rows::kBf16 ? 2 : 1) * kTileBytes;
  static constexpr int kProbabilities = kRaw + (kRows == Rows::kBf16 ? 0 : kKeys * raw_row_bytes(kRows));
  static constexpr int kScales =
      kProbabilities + (kRows == Rows::kPacked ? kHeads * kProbabilityStride * 4 : kHeads * kKeys * 2);
  static constexpr int kReduce = kScales + (kRows == Rows::kPacked ? kPackedGroups * kKeys * 4 : 0);
  static constexpr int kCorrection = kReduce + kWarps / kRowTiles * kHeads * 4;
  static constexpr int kMasks = kCorrection + kHeads * 4;
  static constexpr int kBytes = kMasks + 2 * kKeys;
  // After the last tile: the block's output, maxima and totals for its cluster, over queries and tiles.
  static constexpr int kOutput = 0;
  static constexpr int kOutputStride = kLatent + 4;                           // floats
  static constexpr int kMergeWeights = kOutput + kHeads * kOutputStride * 4;  // [head][split]
  static constexpr int kMergeInverses = kMergeWeights + kHeads * kMostSplits * 4;
  static_assert(kMergeInverses + kHeads * 4 <= kRaw);
};

}  // namespace faultline::kernels::mla
