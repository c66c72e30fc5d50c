// Memory as the check kernels see it: loads of any alignment, poison, live rows, and going over a tensor.
#pragma once

#include <climits>
#include <cstring>

#include "check/device_tasks.h"

namespace faultline::device_checks {

inline constexpr uint32_t kFloatPoison = 0x7FA1F00Du;  // poison.h, which is not for a .cu file's compiler
inline constexpr uint16_t kBf16Poison = 0x7FA1u;
inline constexpr int32_t kIntPoison = 0x7FA1F00D;
inline constexpr int kWarp = 32;
inline constexpr int kWarps = kThreads / kWarp;
inline constexpr int64_t kVectorElements = kVectorBytes / 4;  // of 4 bytes
inline constexpr uint64_t kNowhere = ~0ull;

// SplitMix64's finaliser: every bit of the result depends on every bit of x.
__device__ inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// What the aligned 8 bytes at an address are poisoned with in this pass.
__device__ inline uint64_t code_poison(uint64_t address, uint64_t pass) {
  return mix((address >> 3) + pass * 0x9E3779B97F4A7C15ull);
}

__device__ inline uint64_t address_of(const void* at) {
  return reinterpret_cast<uint64_t>(at);
}

__device__ inline uint8_t code_poison_byte(const std::byte* at, uint64_t pass) {
  const uint64_t address = address_of(at);
  return static_cast<uint8_t>(code_poison(address, pass) >> (8 * (address & 7)));
}

__device__ inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
__device__ inline int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : (value > high ? high : value);
}
__device__ inline int64_t at(const Integers& list, int64_t i) {
  return list.data[i * list.stride];
}

// Of any alignment; where it is not the type's own, byte by byte.
__device__ __noinline__ uint32_t load_bytes(const std::byte* from, unsigned count) {
  uint32_t value = 0;
#pragma unroll 1
  for (unsigned i = 0; i < count; ++i) value |= static_cast<uint32_t>(static_cast<uint8_t>(from[i])) << (8 * i);
  return value;
}
__device__ __noinline__ void store_bytes(std::byte* to, uint32_t value, unsigned count) {
#pragma unroll 1
  for (unsigned i = 0; i < count; ++i) to[i] = static_cast<std::byte>(static_cast<uint8_t>(value >> (8 * i)));
}

template <class T>
__device__ inline T load_any(const std::byte* from) {
  if (address_of(from) % sizeof(T) == 0) return *reinterpret_cast<const T*>(from);
  return static_cast<T>(load_bytes(from, sizeof(T)));
}
template <class T>
__device__ inline void store_any(std::byte* to, T value) {
  if (address_of(to) % sizeof(T) == 0)
    *reinterpret_cast<T*>(to) = value;
  else
    store_bytes(to, value, sizeof(T));
}

__device__ inline uint32_t element_bits(const std::byte* from, int bytes) {
  return bytes == 4 ? load_any<uint32_t>(from)
                    : (bytes == 2 ? load_any<uint16_t>(from) : static_cast<uint32_t>(from[0]));
}

// --- how many rows there are

// The sum over the block's threads, the same for each. 64-bit atomics on shared memory are loops of compare-and-swap,
// which take turns.
__device__ __noinline__ uint64_t block_sum(uint64_t mine) {
  constexpr unsigned kPartial = 16;
  __shared__ uint64_t values[kThreads];
  __shared__ uint64_t partial[kPartial];
  __syncthreads();
  values[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x < kPartial) {
    uint64_t sum = 0;
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < kThreads; i += kPartial) sum += values[i];
    partial[threadIdx.x] = sum;
  }
  __syncthreads();
  uint64_t total = 0;
  for (const uint64_t sum : partial) total += sum;
  return total;
}

// The sum of a list's first `count` entries, by all threads of the block alike.
__device__ inline int64_t sum_of(const Integers& list, int64_t count) {
  int64_t mine = 0;
#pragma unroll 1
  for (int64_t i = threadIdx.x; i < count; i += kThreads) mine += at(list, i);
  return static_cast<int64_t>(block_sum(static_cast<uint64_t>(mine)));
}

__device__ inline int64_t live_rows(const Task& task, const Live& live, int64_t rows) {
  if (task.sum.data != nullptr) return clamp(sum_of(task.sum, smaller(live.requests, task.sum.count)), 0, rows);
  switch (task.rule) {
    case RowRule::kAll:
      return rows;
    case RowRule::kTokens:
      return smaller(rows, live.tokens * task.multiplier);
    case RowRule::kRequests:
      return smaller(rows, live.requests * task.multiplier);
  }
  return 0;
}

// All rows, padded ones too; of gathered rows those that the lists name.
__device__ inline int64_t poison_rows(const Task& task, int64_t rows, int64_t margin) {
  if (task.sum.data == nullptr) return rows;
  return clamp(sum_of(task.sum, task.sum.count) + margin, 0, rows);
}

__device__ inline int64_t live_columns(const Task& task, int64_t row, int64_t margin) {
  if (task.lengths.data == nullptr) return task.columns;
  if (row >= task.lengths.count) return margin == 0 ? 0 : task.columns;
  return clamp(at(task.lengths, row) + margin, 0, task.columns);
}

// --- going over a tensor

// The paths that every launch takes are short on purpose, loops as they stand and each body once: between two launches
// a layer's weights go through the caches, and what is not there any more has to be fetched line by line.

// Calls visit.vector(address, index of its first element) for aligned 16 bytes and visit.element(address, index) for
// the rest of the first `rows` rows. Index: row * inner * columns + column. `margin`: columns past each row's length.
template <class Visit>
__device__ __noinline__ void walk_run(std::byte* from, int64_t first, int64_t count, int bytes, int64_t chunk,
                                      int64_t stride, Visit& visit_there) {
  // A run of `count` elements at `from`, of which this block takes the chunks chunk, chunk + stride, …
  Visit visit = visit_there;
  const int per_vector = kVectorBytes / bytes;
  const bool aligned = address_of(from) % kVectorBytes == 0;
  const int64_t vectors = aligned ? count / per_vector : 0;
#pragma unroll 1
  for (int64_t c = chunk; c * kChunkVectors < vectors; c += stride) {
    const int64_t base = c * kChunkVectors + threadIdx.x;
#pragma unroll
    for (int k = 0; k < kVectorsAThread; ++k) {
      int64_t v = base + k * kThreads;
      // Where a second look does no harm, the last vector is looked at again instead of none: loads without a condition
      // are issued together.
      if constexpr (Visit::kRepeatable)
        v = smaller(v, vectors - 1);
      else if (v >= vectors)
        break;
      visit.vector(from + v * kVectorBytes, first + v * per_vector);
    }
  }
  // What is left: less than a vector, or everything where the address forbids vectors.
#pragma unroll 1
  for (int64_t e = vectors * per_vector + chunk * kThreads + threadIdx.x; e < count; e += stride * kThreads)
    visit.element(from + e * bytes, first + e);
  visit_there = visit;
}

// Rows that are walked chunk by chunk.
template <class Visit>
__device__ __noinline__ void walk_rows(const Task& task, int64_t rows, int64_t margin, int64_t part, Visit& visit) {
  const int bytes = task.element_bytes;
  const int64_t segments = rows * task.inner;
  const int64_t width = task.inner * task.columns;
  const int64_t chunk_elements = kChunkBytes / bytes;
  const int64_t chunks = (task.columns + chunk_elements - 1) / chunk_elements;
#pragma unroll 1
  for (int64_t unit = part; unit < segments * chunks; unit += task.blocks) {
    const int64_t segment = unit / chunks;
    const int64_t row = segment / task.inner;
    const int64_t j = segment - row * task.inner;
    const int64_t begin = (unit - segment * chunks) * chunk_elements;
    const int64_t end = smaller(begin + chunk_elements, live_columns(task, row, margin));
    if (begin >= end) continue;
    walk_run(task.data + (row * task.row_stride + j * task.inner_stride + begin) * bytes,
             row * width + j * task.columns + begin, end - begin, bytes, 0, 1, visit);
  }
}

// Where a piece of `step` elements is, of those that are numbered over all rows.
struct Piece {
  std::byte* at;
  int64_t index;  // of its first element
};

__device__ inline Piece piece_of(const Task& task, uint32_t number, uint32_t a_segment, uint32_t step) {
  const uint32_t inner = static_cast<uint32_t>(task.inner);
  const uint32_t segment = number / a_segment;
  const uint32_t column = (number - segment * a_segment) * step;
  const uint32_t row = inner == 1 ? segment : segment / inner;
  const uint32_t j = segment - row * inner;
  return {task.data + (row * task.row_stride + j * task.inner_stride + column) * task.element_bytes,
          static_cast<int64_t>(segment) * task.columns + column};
}

// Rows of a few vectors each.
template <class Visit>
__device__ __noinline__ void walk_vectors(const Task& task, int64_t rows, int64_t part, Visit& visit_there) {
  Visit visit = visit_there;
  const uint32_t step = static_cast<uint32_t>(kVectorBytes / task.element_bytes);
  const uint32_t a_segment = static_cast<uint32_t>(task.columns) / step;
  const uint32_t total = static_cast<uint32_t>(rows * task.inner) * a_segment;
  const uint32_t stride = static_cast<uint32_t>(task.blocks) * kChunkVectors;
#pragma unroll 1
  for (uint32_t base = static_cast<uint32_t>(part) * kChunkVectors + threadIdx.x; base < total; base += stride) {
#pragma unroll
    for (int k = 0; k < kVectorsAThread; ++k) {
      const uint32_t i = base + k * kThreads;
      if (!Visit::kRepeatable && i >= total) break;
      const Piece piece = piece_of(task, i < total ? i : total - 1, a_segment, step);
      visit.vector(piece.at, piece.index);
    }
  }
  visit_there = visit;
}

// Rows of anything else.
template <class Visit>
__device__ __noinline__ void walk_elements(const Task& task, int64_t rows, int64_t part, Visit& visit_there) {
  Visit visit = visit_there;
  const uint32_t columns = static_cast<uint32_t>(task.columns);
  const uint32_t total = static_cast<uint32_t>(rows * task.inner) * columns;
  const uint32_t stride = static_cast<uint32_t>(task.blocks) * kThreads;
#pragma unroll 1
  for (uint32_t i = static_cast<uint32_t>(part) * kThreads + threadIdx.x; i < total; i += stride) {
    const Piece piece = piece_of(task, i, columns, 1);
    visit.element(piece.at, piece.index);
  }
  visit_there = visit;
}

template <class Visit>
__device__ inline void walk(const Task& task, int64_t rows, int64_t margin, int64_t part, Visit& visit) {
  if (task.walk == Walk::kFlat)
    walk_run(task.data, 0, rows * task.inner * task.columns, task.element_bytes, part, task.blocks, visit);
  else if (task.walk == Walk::kRows)
    walk_rows(task, rows, margin, part, visit);
  else if (task.walk == Walk::kVectors)
    walk_vectors(task, rows, part, visit);
  else
    walk_elements(task, rows, part, visit);
}

// --- sparse poison

// Where the sector of a piece (an aligned kPieceBytes) begins that is poisoned in this pass: another one in every piece
// and pass, so that no column stays unseen.
__device__ inline uint64_t chosen_sector(uint64_t piece, uint64_t pass) {
  constexpr int kSectorsBits = 5;
  static_assert(kPieceBytes / kSectorBytes == 1 << kSectorsBits);
  const uint64_t sector = ((piece + pass) * 0x9E3779B97F4A7C15ull) >> (64 - kSectorsBits);
  return piece * kPieceBytes + sector * kSectorBytes;
}

// walk(), of the chosen sectors that lie whole in the live part of a row.
template <class Visit>
__device__ __noinline__ void walk_chosen(const Task& task, int64_t rows, int64_t margin, uint64_t pass, int64_t part,
                                         Visit& visit_there) {
  Visit visit = visit_there;
  const int bytes = task.element_bytes;
  const bool flat = task.walk == Walk::kFlat;
  const int64_t width = task.inner * task.columns;
  const int64_t columns = flat ? rows * width : task.columns;  // of a segment
  const int64_t segments = flat ? (rows > 0 ? 1 : 0) : rows * task.inner;
  const uint32_t pieces = static_cast<uint32_t>((columns * bytes + 2 * kPieceBytes - 1) / kPieceBytes);  // at most
  const uint32_t total = static_cast<uint32_t>(segments) * pieces;
  const uint32_t stride = static_cast<uint32_t>(task.blocks) * kThreads;
#pragma unroll 4
  for (uint32_t i = static_cast<uint32_t>(part) * kThreads + threadIdx.x; i < total; i += stride) {
    const uint32_t segment = i / pieces;
    const int64_t row = flat ? 0 : segment / static_cast<uint32_t>(task.inner);
    const int64_t j = segment - row * task.inner;
    std::byte* from = task.data + (row * task.row_stride + j * task.inner_stride) * bytes;
    const uint64_t begin = address_of(from);
    const uint64_t end = begin + static_cast<uint64_t>((flat ? columns : live_columns(task, row, margin)) * bytes);
    const uint64_t sector = chosen_sector(begin / kPieceBytes + (i - segment * pieces), pass);
    if (sector < begin || sector + kSectorBytes > end) continue;
    const int64_t offset = static_cast<int64_t>(sector - begin);
    const int64_t index = row * width + j * task.columns + offset / bytes;
    visit.vector(from + offset, index);
    visit.vector(from + offset + kVectorBytes, index + kVectorBytes / bytes);
  }
  visit_there = visit;
}

}  // namespace faultline::device_checks
