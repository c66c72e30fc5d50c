// The kernel behind cuda_attention.h.
//
// One thread block of 8 warps takes 16 * kRowTiles heads of one token (64 or 16) and walks the token's keys in tiles of
// 64; the blocks of a cluster share a token's tiles and merge their results at the end through distributed shared
// memory. A tile lies in shared memory as bf16 rows of 576 (512 latent, 64 rope), 16-byte chunks XORed with row % 8, so
// that no access meets another in a bank.
//
//   scores   [heads, 64] = q k^T over 576 dims. Warps split heads by 16 and keys by what is left.
//   softmax  online, in float; probabilities go to shared memory.
//   output   [heads, 512] += p k[:, 0:512]. Warp w takes columns [64 w, 64 w + 64) of all heads, in registers.
//
// Precision is that of the single-source body: q and the stored keys are bf16 or e4m3 exactly; a probability enters its
// product as two bf16 terms (16 bits); the scales of a packed row multiply float sums of one group of 128 dims (scores)
// or the probabilities (output), never a rounded key.
//
// bf16 rows are copied straight into one of two tiles while the other is worked on; fp8 rows are copied as they are
// into a staging area, and decoded into the only tile.
#pragma once

#include <cooperative_groups.h>

#include <cmath>

#include "kernels/cuda_attention_memory.cuh"
#include "kernels/cuda_dependent.cuh"
#include "kernels/cuda_mma.cuh"

namespace faultline::kernels::mla {

__device__ __forceinline__ uint32_t swizzled(uint32_t base, int row, int chunk) {
  return base + static_cast<uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
}

template <int kRowTiles, Rows kRows>
class Worker {
 public:
  using M = Memory<kRowTiles, kRows>;
  static constexpr int kHeads = M::kHeads;
  static constexpr int kKeyWarps = kWarps / kRowTiles;     // warps side by side over the keys of a tile
  static constexpr int kKeyTiles = kKeys / 8 / kKeyWarps;  // 8-key tiles of a warp
  static constexpr bool kHolds = kRowTiles == 1;

  __device__ Worker(const Arguments& a, unsigned char* memory)
      : a_(a),
        memory_(memory),
        base_(shared_address(memory)),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(thread_ / 32),
        rank_(static_cast<int>(blockIdx.x) % a.splits),
        token_(static_cast<int>(blockIdx.x) / a.splits),
        first_head_(static_cast<int>(blockIdx.y) * kHeads) {}

  __device__ void run() {
    load_queries();
    const int tiles = (count_entries() + kKeys - 1) / kKeys;
    int tile = static_cast<int>(static_cast<int64_t>(rank_) * tiles / a_.splits);
    const int end = static_cast<int>(static_cast<int64_t>(rank_ + 1) * tiles / a_.splits);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      largest_[i] = a_.initial_max;
      total_[i] = 0;
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) out_[i][j][c] = 0;

    int64_t slot = 0;     // of the tile to fetch next
    bool present = true;  // whether this thread's row of the tile at hand is a key
    if (tile < end) {
      slot = slot_of(tile);
      present = slot != kMaskedSlot;
      fetch(slot, 0);
      slot = slot_of(tile + 1);
    }
    bool fresh = true;
    for (int buffer = 0; tile < end; ++tile) {
      wait_for_copies();
      // The tile has arrived, and the last one is done with. A tile without a key changes nothing.
      const bool keys = __syncthreads_or(present ? 1 : 0) != 0;
      if (fresh) hold_queries();
      fresh = false;
      if constexpr (kRows == Rows::kBf16) {
        if (tile + 1 < end) fetch(slot, buffer ^ 1);
      } else {
        if (keys) decode();
        __syncthreads();
        if (tile + 1 < end) fetch(slot, buffer ^ 1);
      }
      present = slot != kMaskedSlot;
      if (tile + 2 < end) slot = slot_of(tile + 2);
      if (keys) absorb(buffer);
      buffer ^= 1;
    }
    finish();
  }

 private:
  __device__ float* floats(int at) const {
    return reinterpret_cast<float*>(memory_ + at);
  }

  __device__ void load_queries() {
    for (int i = thread_; i < kHeads * kRowChunks; i += kThreads) {
      const int row = i / kRowChunks;
      const int chunk = i % kRowChunks;
      const bool present = first_head_ + row < a_.heads;
      const uint16_t* from =
          a_.q + token_ * a_.q_token_stride + (present ? first_head_ + row : 0) * a_.q_head_stride + chunk * 8;
      copy_async(swizzled(base_ + M::kQueries, row, chunk), from, present);
    }
    commit_copies();
  }

  // One row tile's queries are few enough to stay in registers.
  __device__ void hold_queries() {
    if constexpr (kHolds) {
      const uint32_t row = base_ + M::kQueries + static_cast<uint32_t>((lane_ & 15) * kRowBytes);
#pragma unroll
      for (int s = 0; s < kWidth / 16; ++s)
        load_matrices(queries_[s], row + static_cast<uint32_t>(((2 * s + (lane_ >> 4)) ^ (lane_ & 7)) << 4));
    }
  }

  // Entries to visit: all that may hold a key, so that a tail of masked entries costs nothing.
  __device__ int count_entries() {
    if (a_.rule == KeyRule::kPageTable)
      row_at_ = a_.page_table + a_.row_to_request[token_] * a_.page_table_stride;
    else
      row_at_ = a_.indices + token_ * a_.index_stride;
    if (a_.rule == KeyRule::kRagged) first_row_ = a_.ragged_offsets[token_];
    if (a_.rule != KeyRule::kMaskOutside && a_.rule != KeyRule::kMaskMinusOne) {
      const int length = a_.lengths[token_];
      entries_ = a_.rule == KeyRule::kTrustLengths && length > a_.topk ? a_.topk : length;
      return entries_ < 0 ? 0 : entries_;
    }
    entries_ = a_.topk;
    if (a_.splits > 1) return entries_;  // where few tokens are split, looking first costs more than it saves
    int last = 0;
#pragma unroll 8
    for (int i = thread_; i < a_.topk; i += kThreads)
      if (masked_or_slot(row_at_[i]) != kMaskedSlot) last = i + 1;
    last = __reduce_max_sync(0xFFFFFFFFu, last);
    int* partial = reinterpret_cast<int*>(memory_ + M::kReduce);
    if (lane_ == 0) partial[warp_] = last;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) last = max(last, partial[w]);
    __syncthreads();
    return last;
  }

  __device__ int64_t masked_or_slot(int32_t slot) const {
    if (a_.rule == KeyRule::kMaskOutside && (slot < 0 || slot >= a_.slots)) return kMaskedSlot;
    if (a_.rule == KeyRule::kMaskMinusOne && slot == -1) return kMaskedSlot;
    return slot;
  }

  // The slot of this thread's row of a tile: four threads share a row.
  __device__ int64_t slot_of(int tile) const {
    const int entry = tile * kKeys + thread_ / 4;
    if (entry >= entries_) return kMaskedSlot;
    if (a_.rule == KeyRule::kRagged) return first_row_ + entry;
    return masked_or_slot(row_at_[entry]);
  }

  // Begins to copy the row of `slot` into tile (or staging area) `buffer`.
  __device__ void fetch(int64_t slot, int buffer) {
    const int row = thread_ / 4;
    const bool present = slot != kMaskedSlot;
    const uint8_t* from = a_.pool + (present ? slot : 0) * a_.row_stride;
    if (thread_ % 4 == 0) memory_[M::kMasks + buffer * kKeys + row] = present ? 0 : 1;
    if constexpr (kRows == Rows::kBf16) {
      const uint32_t tile = base_ + M::kTiles + static_cast<uint32_t>(buffer * kTileBytes);
#pragma unroll
      for (int i = 0; i < kRowChunks / 4; ++i) {
        const int chunk = thread_ % 4 + 4 * i;
        copy_async(swizzled(tile, row, chunk), from + chunk * kChunk, present);
      }
    } else {
      constexpr int kRawBytes = raw_row_bytes(kRows);
      const uint32_t to = base_ + M::kRaw + static_cast<uint32_t>(row * kRawBytes);
#pragma unroll
      for (int i = 0; i < (kRawBytes / kChunk + 3) / 4; ++i) {
        const int chunk = thread_ % 4 + 4 * i;
        if (chunk < kRawBytes / kChunk)
          copy_async(to + static_cast<uint32_t>(chunk * kChunk), from + chunk * kChunk, present);
      }
    }
    commit_copies();
  }

  // Staging area -> tile: codes as bf16, without their scales.
  __device__ void decode() {
    constexpr int kRawBytes = raw_row_bytes(kRows);
    constexpr int kCodes = kRows == Rows::kPacked ? kLatent : kWidth;
    const int row = thread_ / 4;
    const unsigned char* raw = memory_ + M::kRaw + row * kRawBytes;
    unsigned char* tile = memory_ + M::kTiles + row * kRowBytes;
    const auto chunk_of = [&](int chunk) { return reinterpret_cast<uint4*>(tile + ((chunk ^ (row & 7)) << 4)); };
#pragma unroll 4
    for (int i = 0; i < kCodes / kChunk / 4; ++i) {
      const int chunk = thread_ % 4 + 4 * i;
      const uint4 codes = *reinterpret_cast<const uint4*>(raw + chunk * kChunk);
      const uint2 a = decode_e4m3_to_bf16(codes.x);
      const uint2 b = decode_e4m3_to_bf16(codes.y);
      const uint2 c = decode_e4m3_to_bf16(codes.z);
      const uint2 d = decode_e4m3_to_bf16(codes.w);
      *chunk_of(2 * chunk) = uint4{a.x, a.y, b.x, b.y};
      *chunk_of(2 * chunk + 1) = uint4{c.x, c.y, d.x, d.y};
    }
    if constexpr (kRows == Rows::kPacked) {
      constexpr int kRope = kLatent + kPackedGroups * 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int chunk = thread_ % 4 + 4 * i;
        *chunk_of(kLatentChunks + chunk) = *reinterpret_cast<const uint4*>(raw + kRope + chunk * kChunk);
      }
      const int group = thread_ % 4;
      floats(M::kScales)[group * kKeys + row] = *reinterpret_cast<const float*>(raw + kLatent + group * 4);
    }
  }

  __device__ void absorb(int buffer) {
    const uint32_t tile = base_ + M::kTiles + (kRows == Rows::kBf16 ? static_cast<uint32_t>(buffer * kTileBytes) : 0u);
    float scores[kKeyTiles][4];
    score(tile, scores);
    mask_and_scale(buffer, scores);
    rescale(scores);
    store_probabilities(tile, scores);
    __syncthreads();
    accumulate(tile);
  }

  __device__ int row_warp() const {
    return warp_ / kKeyWarps;
  }
  __device__ int key_warp() const {
    return warp_ % kKeyWarps;
  }

  __device__ void score(uint32_t tile, float (&scores)[kKeyTiles][4]) {
    const int flip = lane_ & 7;
    const uint32_t q_row = base_ + M::kQueries + static_cast<uint32_t>((row_warp() * 16 + (lane_ & 15)) * kRowBytes);
    const int first_key = key_warp() * kKeyTiles * 8;
    constexpr int kSteps = 4;                        // of 16 dims
    constexpr int kChains = kKeyTiles == 1 ? 2 : 1;  // sums side by side, so that no product waits for the last
    float group[kChains][kKeyTiles][4];
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[n][c] = 0;
#pragma unroll
        for (int i = 0; i < kChains; ++i) group[i][n][c] = 0;
      }
    const auto chains = [&](int n, int c) {
      float sum = group[0][n][c];
#pragma unroll
      for (int i = 1; i < kChains; ++i) sum += group[i][n][c];
      return sum;
    };
    constexpr int kRounds = kWidth / 16 / kSteps;  // 9 rounds of 64 dims; the last is the rope part
#pragma unroll(kHolds ? kRounds : 3)
    for (int round = 0; round < kRounds; ++round) {
      const auto dims = static_cast<uint32_t>(round * kSteps * 32);
      uint32_t b[kSteps][kKeyTiles][2];
      if constexpr (kKeyTiles == 1) {
        const uint32_t row = tile + dims + static_cast<uint32_t>((first_key + (lane_ & 7)) * kRowBytes);
#pragma unroll
        for (int s = 0; s < kSteps; s += 2) {
          uint32_t four[4];
          load_matrices(four, row + static_cast<uint32_t>(((2 * s + (lane_ >> 3)) ^ flip) << 4));
          b[s][0][0] = four[0];
          b[s][0][1] = four[1];
          b[s + 1][0][0] = four[2];
          b[s + 1][0][1] = four[3];
        }
      } else {
        const int key = first_key + (lane_ & 7) + ((lane_ >> 4) << 3);
        const uint32_t row = tile + dims + static_cast<uint32_t>(key * kRowBytes);
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
#pragma unroll
          for (int n = 0; n < kKeyTiles; n += 2) {
            uint32_t four[4];
            load_matrices(four, row + static_cast<uint32_t>(n * 8 * kRowBytes) +
                                    static_cast<uint32_t>(((2 * s + ((lane_ >> 3) & 1)) ^ flip) << 4));
            b[s][n][0] = four[0];
            b[s][n][1] = four[1];
            b[s][n + 1][0] = four[2];
            b[s][n + 1][1] = four[3];
          }
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if constexpr (kHolds) {
          multiply_add(group[s % kChains][0], queries_[round * kSteps + s], b[s][0][0], b[s][0][1]);
        } else {
          uint32_t a[4];
          load_matrices(a, q_row + dims + static_cast<uint32_t>(((2 * s + (lane_ >> 4)) ^ flip) << 4));
#pragma unroll
          for (int n = 0; n < kKeyTiles; ++n) multiply_add(group[s % kChains][n], a, b[s][n][0], b[s][n][1]);
        }
      }
      if constexpr (kRows == Rows::kPacked) {
        if (round % 2 == 1) {
          const float* scale = floats(M::kScales) + round / 2 * kKeys + first_key + 2 * (lane_ & 3);
#pragma unroll
          for (int n = 0; n < kKeyTiles; ++n) {
            const float2 pair = *reinterpret_cast<const float2*>(scale + n * 8);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              scores[n][c] += chains(n, c) * (c % 2 == 0 ? pair.x : pair.y);
#pragma unroll
              for (int i = 0; i < kChains; ++i) group[i][n][c] = 0;
            }
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) scores[n][c] += chains(n, c);
  }

  __device__ void mask_and_scale(int buffer, float (&scores)[kKeyTiles][4]) const {
    const unsigned char* masks = memory_ + M::kMasks + buffer * kKeys + key_warp() * kKeyTiles * 8 + 2 * (lane_ & 3);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      const uint16_t pair = *reinterpret_cast<const uint16_t*>(masks + n * 8);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const bool masked = ((c % 2 == 0 ? pair : pair >> 8) & 0xFF) != 0;
        scores[n][c] = masked ? kMinusInfinity : scores[n][c] * a_.scale;
      }
    }
  }

  // Scores become exp(score - maximum); a NaN never is the maximum, and makes its row's total NaN.
  __device__ void rescale(float (&scores)[kKeyTiles][4]) {
    float* reduce = floats(M::kReduce);
    const int row = row_warp() * 16 + lane_ / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float best = kMinusInfinity;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) best = fmaxf(best, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
      best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFu, best, 2));
      if ((lane_ & 3) == 0) reduce[key_warp() * kHeads + row + 8 * i] = best;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = largest_[i];
#pragma unroll
      for (int w = 0; w < kKeyWarps; ++w) largest = fmaxf(largest, reduce[w * kHeads + row + 8 * i]);
      const float correction = exp2f((largest_[i] - largest) * kLog2E);
      largest_[i] = largest;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int c = 2 * i; c < 2 * i + 2; ++c) {
          scores[n][c] = exp2f((scores[n][c] - largest) * kLog2E);
          sum += scores[n][c];
        }
      total_[i] = total_[i] * correction + sum;
      if (key_warp() == 0 && (lane_ & 3) == 0) floats(M::kCorrection)[row + 8 * i] = correction;
    }
  }

  // As two bf16 terms: the larger in its own place, the smaller over the tile's rope part, which no one needs any more.
  // Probabilities of packed rows stay float: they meet a scale first.
  __device__ void store_probabilities(uint32_t tile, const float (&scores)[kKeyTiles][4]) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = row_warp() * 16 + lane_ / 4 + 8 * i;
        const int key = (key_warp() * kKeyTiles + n) * 8 + 2 * (lane_ & 3);
        const float first = scores[n][2 * i];
        const float second = scores[n][2 * i + 1];
        if constexpr (kRows == Rows::kPacked) {
          *reinterpret_cast<float2*>(floats(M::kProbabilities) + row * kProbabilityStride + key) =
              float2{first, second};
        } else {
          const uint32_t high = pack_bf16(first, second);
          const uint32_t low = pack_bf16(first - low_bf16(high), second - high_bf16(high));
          const int place = ((key / 8 ^ (row & 7)) << 4) + (key % 8) * 2;
          *reinterpret_cast<uint32_t*>(memory_ + M::kProbabilities + row * kKeys * 2 + place) = high;
          *reinterpret_cast<uint32_t*>(memory_ + (tile - base_) + row * kRowBytes + kLatentChunks * kChunk + place) =
              low;
        }
      }
  }

  __device__ void accumulate(uint32_t tile) {
    const float* correction = floats(M::kCorrection) + lane_ / 4;
    bool changed = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
      changed = changed || correction[m * 16] != 1.0f || correction[m * 16 + 8] != 1.0f;
    if (__any_sync(0xFFFFFFFFu, changed)) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float factor = correction[m * 16 + (c / 2) * 8];
#pragma unroll
          for (int n = 0; n < 8; ++n) out_[m][n][c] *= factor;
        }
    }
    const int flip = lane_ & 7;
    const int first_chunk = warp_ * 8;
#pragma unroll 1
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t b[8][2];
      const uint32_t keys = tile + static_cast<uint32_t>((step * 16 + (lane_ & 15)) * kRowBytes);
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        uint32_t four[4];
        load_matrices_transposed(four, keys + static_cast<uint32_t>(((first_chunk + n + (lane_ >> 4)) ^ flip) << 4));
        b[n][0] = four[0];
        b[n][1] = four[1];
        b[n + 1][0] = four[2];
        b[n + 1][1] = four[3];
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        uint32_t high[4];
        uint32_t low[4];
        if constexpr (kRows == Rows::kPacked) {
          scaled_probabilities(step, m, high, low);
        } else {
          const int row = m * 16 + (lane_ & 15);
          const auto place = static_cast<uint32_t>(((2 * step + (lane_ >> 4)) ^ flip) << 4);
          load_matrices(high, base_ + M::kProbabilities + static_cast<uint32_t>(row * kKeys * 2) + place);
          load_matrices(low, tile + static_cast<uint32_t>(row * kRowBytes + kLatentChunks * kChunk) + place);
        }
#pragma unroll
        for (int n = 0; n < 8; ++n) multiply_add(out_[m][n], high, b[n][0], b[n][1]);
#pragma unroll
        for (int n = 0; n < 8; ++n) multiply_add(out_[m][n], low, b[n][0], b[n][1]);
      }
    }
  }

  // Probabilities times the scale of this warp's group of columns, as an operand of 16 rows and 16 keys.
  __device__ void scaled_probabilities(int step, int m, uint32_t (&high)[4], uint32_t (&low)[4]) const {
    const int group = warp_ * 64 / kGroup;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = step * 16 + half * 8 + 2 * (lane_ & 3);
      const float2 scale = *reinterpret_cast<const float2*>(floats(M::kScales) + group * kKeys + key);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = m * 16 + lane_ / 4 + 8 * i;
        const float2 pair =
            *reinterpret_cast<const float2*>(floats(M::kProbabilities) + row * kProbabilityStride + key);
        const float first = pair.x * scale.x;
        const float second = pair.y * scale.y;
        const uint32_t packed = pack_bf16(first, second);
        high[half * 2 + i] = packed;
        low[half * 2 + i] = pack_bf16(first - low_bf16(packed), second - high_bf16(packed));
      }
    }
  }

  __device__ void finish() {
    float* reduce = floats(M::kReduce);
    const int row = row_warp() * 16 + lane_ / 4;
    wait_for_copies();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = total_[i];
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      if ((lane_ & 3) == 0) reduce[key_warp() * kHeads + row + 8 * i] = sum;
      if (key_warp() == 0 && (lane_ & 3) == 0) floats(M::kCorrection)[row + 8 * i] = largest_[i];
    }
    __syncthreads();
    if (thread_ < kHeads) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kKeyWarps; ++w) sum += reduce[w * kHeads + thread_];
      reduce[thread_] = sum;  // the first row of the array, which only this thread reads
    }
    if (a_.splits > 1) {
      merge();
      return;
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = m * 16 + lane_ / 4 + 8 * i;
        if (first_head_ + head >= a_.heads) continue;
        const float total = reduce[head];
        uint16_t* to = a_.out + token_ * a_.out_token_stride + (first_head_ + head) * a_.out_head_stride + warp_ * 64 +
                       2 * (lane_ & 3);
#pragma unroll
        for (int n = 0; n < 8; ++n)
          *reinterpret_cast<uint32_t*>(to + n * 8) = pack_bf16(total == 0 ? 0.0f : out_[m][n][2 * i] / total,
                                                               total == 0 ? 0.0f : out_[m][n][2 * i + 1] / total);
      }
  }

  // The blocks of the cluster weigh their outputs by exp(maximum - largest maximum), each for its own columns.
  __device__ void merge() {
    namespace cg = cooperative_groups;
    const cg::cluster_group cluster = cg::this_cluster();
    float* output = floats(M::kOutput);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int n = 0; n < 8; ++n)
          *reinterpret_cast<float2*>(output + (m * 16 + lane_ / 4 + 8 * i) * M::kOutputStride + warp_ * 64 + n * 8 +
                                     2 * (lane_ & 3)) = float2{out_[m][n][2 * i], out_[m][n][2 * i + 1]};
    cluster.sync();
    // Sixteen lanes share a head: a lane a split.
    float* weights = floats(M::kMergeWeights);
    float* inverses = floats(M::kMergeInverses);
#pragma unroll
    for (int item = thread_; item < kHeads * kMostSplits; item += kThreads) {
      const int head = item / kMostSplits;
      const int split = item % kMostSplits;
      const bool present = split < a_.splits;
      const float part = present ? cluster.map_shared_rank(floats(M::kReduce), split)[head] : 0.0f;
      const float maximum = present ? cluster.map_shared_rank(floats(M::kCorrection), split)[head] : kMinusInfinity;
      float largest = fmaxf(a_.initial_max, maximum);
#pragma unroll
      for (int step = kMostSplits / 2; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
      const float factor = part == 0 ? 0.0f : exp2f((maximum - largest) * kLog2E);  // a split without keys
      float total = factor * part;
#pragma unroll
      for (int step = kMostSplits / 2; step > 0; step /= 2) total += __shfl_xor_sync(0xFFFFFFFFu, total, step);
      weights[item] = factor;
      if (split == 0) inverses[head] = total == 0 ? 0.0f : 1.0f / total;
    }
    __syncthreads();
    constexpr int kPairs = kLatent / 2;
    for (int item = rank_ * kThreads + thread_; item < kHeads * kPairs; item += a_.splits * kThreads) {
      const int head = item / kPairs;
      const int column = item % kPairs * 2;
      if (first_head_ + head >= a_.heads) continue;
      float2 parts[kMostSplits];
#pragma unroll
      for (int s = 0; s < kMostSplits; ++s)
        if (s < a_.splits)
          parts[s] =
              *reinterpret_cast<const float2*>(cluster.map_shared_rank(output, s) + head * M::kOutputStride + column);
      float2 sum{0, 0};
#pragma unroll
      for (int s = 0; s < kMostSplits; ++s)
        if (s < a_.splits) {
          sum.x += weights[head * kMostSplits + s] * parts[s].x;
          sum.y += weights[head * kMostSplits + s] * parts[s].y;
        }
      const float inverse = inverses[head];
      *reinterpret_cast<uint32_t*>(a_.out + token_ * a_.out_token_stride + (first_head_ + head) * a_.out_head_stride +
                                   column) = pack_bf16(sum.x * inverse, sum.y * inverse);
    }
    cluster.sync();  // no block leaves while another reads from it
  }

  const Arguments& a_;
  unsigned char* memory_;
  uint32_t base_;
  int thread_;
  int lane_;
  int warp_;
  int rank_;
  int token_;
  int first_head_;
  int entries_ = 0;
  int64_t first_row_ = 0;
  const int32_t* row_at_ = nullptr;
  float largest_[2];  // of rows lane / 4 and lane / 4 + 8 of the warp's 16
  float total_[2];    // this lane's share
  float out_[kRowTiles][8][4];
  uint32_t queries_[kHolds ? kWidth / 16 : 1][4];
};

template <int kRowTiles, Rows kRows>
__global__ void __launch_bounds__(kThreads, 1) mla_attention(const __grid_constant__ Arguments arguments) {
  extern __shared__ __align__(128) unsigned char memory[];
  begin_dependent();
  Worker<kRowTiles, kRows>(arguments, memory).run();
}

}  // namespace faultline::kernels::mla
