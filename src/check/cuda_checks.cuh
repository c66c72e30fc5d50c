// The bodies of the check kernels: one block works on one part of one task (device_tasks.h).
//
// Whether anything is wrong is asked with integer operations on 16-byte loads. Only a block that has seen something
// goes over its part again, element by element, for the first index, its bits and the count.
#pragma once

#include <climits>
#include <cstring>

#include "check/device_record.h"
#include "check/device_tasks.h"

namespace faultline::device_checks {

inline constexpr uint32_t kFloatPoison = 0x7FA1F00Du;  // poison.h, which is not for a .cu file's compiler
inline constexpr uint16_t kBf16Poison = 0x7FA1u;
inline constexpr int32_t kIntPoison = 0x7FA1F00D;
inline constexpr int kWarp = 32;
inline constexpr int kWarps = kThreads / kWarp;
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

template <class T>
__device__ inline T load_any(const std::byte* from) {
  if (address_of(from) % sizeof(T) == 0) return *reinterpret_cast<const T*>(from);
  T value = 0;
  for (unsigned i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(static_cast<uint8_t>(from[i])) << (8 * i)));
  return value;
}
template <class T>
__device__ inline void store_any(std::byte* to, T value) {
  if (address_of(to) % sizeof(T) == 0) {
    *reinterpret_cast<T*>(to) = value;
    return;
  }
  for (unsigned i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(static_cast<uint8_t>(value >> (8 * i)));
}

__device__ inline uint32_t element_bits(const std::byte* from, int bytes) {
  return bytes == 4 ? load_any<uint32_t>(from)
                    : (bytes == 2 ? load_any<uint16_t>(from) : static_cast<uint32_t>(from[0]));
}

// --- how many rows there are

// The sum over the block's threads, the same for each. In a tree: 64-bit atomics on shared memory are loops of
// compare-and-swap, which take turns.
__device__ inline uint64_t block_sum(uint64_t mine) {
  __shared__ uint64_t partial[kIndexThreads];
  __syncthreads();
  partial[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
    __syncthreads();
  }
  return partial[0];
}

// The sum of a list's first `count` entries, by all threads of the block alike.
__device__ inline int64_t sum_of(const Integers& list, int64_t count) {
  int64_t mine = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) mine += at(list, i);
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

// Calls visit.vector(address, index of its first element) for aligned 16 bytes and visit.element(address, index) for
// the rest of the first `rows` rows. Index: row * inner * columns + column. `margin`: columns past each row's length.
template <class Visit>
__device__ inline void walk_run(std::byte* from, int64_t first, int64_t count, int bytes, int64_t chunk, int64_t stride,
                                Visit& visit) {
  // A run of `count` elements at `from`, of which this block takes the chunks chunk, chunk + stride, …
  const int per_vector = kVectorBytes / bytes;
  const bool aligned = address_of(from) % kVectorBytes == 0;
  const int64_t vectors = aligned ? count / per_vector : 0;
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
  for (int64_t e = vectors * per_vector + chunk * kThreads + threadIdx.x; e < count; e += stride * kThreads)
    visit.element(from + e * bytes, first + e);
}

template <class Visit>
__device__ inline void walk(const Task& task, int64_t rows, int64_t margin, int64_t part, Visit& visit) {
  const int bytes = task.element_bytes;
  const int64_t segments = rows * task.inner;
  const int64_t width = task.inner * task.columns;
  if (task.walk == Walk::kFlat) {
    walk_run(task.data, 0, rows * width, bytes, part, task.blocks, visit);
    return;
  }
  if (task.walk == Walk::kRows) {
    const int64_t chunk_elements = kChunkBytes / bytes;
    const int64_t chunks = (task.columns + chunk_elements - 1) / chunk_elements;
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
    return;
  }
  const bool vectors = task.walk == Walk::kVectors;
  const uint32_t step = static_cast<uint32_t>(vectors ? kVectorBytes / bytes : 1);  // elements a piece
  const uint32_t pieces = static_cast<uint32_t>(task.columns) / step;               // of a segment
  const uint32_t inner = static_cast<uint32_t>(task.inner);
  const uint32_t total = static_cast<uint32_t>(segments) * pieces;
  const uint32_t stride = static_cast<uint32_t>(task.blocks) * kChunkVectors;
  for (uint32_t base = static_cast<uint32_t>(part) * kChunkVectors + threadIdx.x; base < total; base += stride) {
#pragma unroll
    for (int k = 0; k < kVectorsAThread; ++k) {
      uint32_t i = base + k * kThreads;
      if constexpr (Visit::kRepeatable)
        i = i < total ? i : total - 1;
      else if (i >= total)
        break;
      const uint32_t segment = i / pieces;
      const uint32_t column = (i - segment * pieces) * step;
      const uint32_t row = segment / inner;
      const uint32_t j = segment - row * inner;
      std::byte* from = task.data + (row * task.row_stride + j * task.inner_stride + column) * bytes;
      const int64_t index = row * width + j * task.columns + column;
      if (vectors)
        visit.vector(from, index);
      else
        visit.element(from, index);
    }
  }
}

// --- records

// What one thread has seen of one contract.
struct Seen {
  uint64_t first = kNowhere;
  uint32_t bits = 0;
  uint32_t count = 0;

  __device__ void note(uint64_t index, uint32_t raw) {
    ++count;
    if (index < first) {
      first = index;
      bits = raw;
    }
  }
};

struct Extra {
  int64_t values[4] = {0, 0, 0, 0};
};

__device__ inline void copy_record(volatile DeviceCheckRecord* to, const volatile DeviceCheckRecord* from) {
  to->op = from->op;
  to->operand = from->operand;
  *reinterpret_cast<volatile int32_t*>(&to->check) = *reinterpret_cast<const volatile int32_t*>(&from->check);
  to->group = from->group;
  to->bits = from->bits;
  to->pass = from->pass;
  to->first = from->first;
  to->count = from->count;
  for (int i = 0; i < 4; ++i) to->extra[i] = from->extra[i];
}

// Adds to the record of (task, check). One thread a block calls it.
__device__ __noinline__ void record(const Context& context, const Task& task, int32_t group, DeviceCheck check,
                                    const Seen& seen, const Extra& extra) {
  TaskState& state = context.states[task.state];
  while (atomicCAS(&state.lock, 0u, 1u) != 0u) {
  }
  __threadfence();
  volatile int32_t* slot = &state.record[static_cast<int>(check)];
  const bool fresh = *slot == 0;
  if (fresh) *slot = atomicAdd(&context.account->records, 1) + 1;
  const int32_t number = *slot - 1;
  if (number < DeviceCheckPage::kRecords) {
    volatile DeviceCheckRecord* mine = static_cast<DeviceCheckRecord*>(context.records) + number;
    if (fresh) {
      mine->op = task.op;
      mine->operand = task.operand;
      *reinterpret_cast<volatile int32_t*>(&mine->check) = static_cast<int32_t>(check);
      mine->group = group;
      mine->pass = context.live->pass;
      mine->count = 0;
    }
    mine->count = mine->count + static_cast<int64_t>(seen.count);
    if (fresh || static_cast<int64_t>(seen.first) < mine->first) {
      mine->first = static_cast<int64_t>(seen.first);
      mine->bits = seen.bits;
      for (int i = 0; i < 4; ++i) mine->extra[i] = extra.values[i];
    }
    volatile DeviceCheckRecord* host = &static_cast<DeviceCheckPage*>(context.page)->records[number];
    copy_record(host, mine);
    __threadfence_system();  // the host must see it even if the next kernel kills the context
    host->used = 1;
    __threadfence_system();
  }
  atomicMax(&context.account->broken, INT32_MAX - group);
  __threadfence();
  atomicExch(&state.lock, 0u);
}

// Brings the threads' sightings together; true for the one thread that shall record (its `seen` is then the block's).
__device__ inline bool gather(Seen& seen) {
  __shared__ unsigned long long first;
  __shared__ uint32_t count;
  __syncthreads();
  if (threadIdx.x == 0) {
    first = kNowhere;
    count = 0;
  }
  __syncthreads();
  if (seen.count != 0) {
    atomicMin(&first, static_cast<unsigned long long>(seen.first));
    atomicAdd(&count, seen.count);
  }
  __syncthreads();
  const bool mine = seen.count != 0 && seen.first == first;
  if (mine) seen.count = count;
  return mine;
}

// --- poisoning

// The sector (of four) of a 128-byte line that is poisoned where a tensor is too large to be poisoned whole: another
// one in every line and pass, so that no column stays unseen.
__device__ inline bool is_chosen_sector(uint64_t address, uint64_t pass) {
  constexpr int kLineBits = 7;
  constexpr int kSectorBits = 5;
  return (((address >> kLineBits) + pass) * 0x9E3779B97F4A7C15ull) >> 62 == ((address >> kSectorBits) & 3);
}

struct WordPoison {
  static constexpr bool kRepeatable = true;
  uint32_t pattern;
  uint32_t sentinel;
  int bytes;
  bool sparse;
  uint64_t pass;
  __device__ void vector(std::byte* to, int64_t) {
    if (sparse && !is_chosen_sector(address_of(to), pass)) return;
    *reinterpret_cast<uint4*>(to) = make_uint4(pattern, pattern, pattern, pattern);
  }
  __device__ void element(std::byte* to, int64_t) {
    if (bytes == 4)
      store_any<uint32_t>(to, sentinel);
    else if (bytes == 2)
      store_any<uint16_t>(to, static_cast<uint16_t>(sentinel));
    else
      *to = static_cast<std::byte>(sentinel);
  }
};

struct CodePoison {
  static constexpr bool kRepeatable = true;
  uint64_t pass;
  __device__ void vector(std::byte* to, int64_t) {
    const uint64_t a = code_poison(address_of(to), pass);
    const uint64_t b = code_poison(address_of(to) + 8, pass);
    *reinterpret_cast<uint4*>(to) = make_uint4(static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32),
                                               static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32));
  }
  __device__ void element(std::byte* to, int64_t) { *to = static_cast<std::byte>(code_poison_byte(to, pass)); }
};

// Where the pieces of one cache slot are.
struct Slot {
  std::byte* codes = nullptr;  // e4m3 codes, `latent` or `width` of them
  int64_t code_count = 0;
  std::byte* scales = nullptr;  // fp32, one a `group` of codes
  int64_t scale_count = 0;
  std::byte* floats = nullptr;  // f32 or bf16 values behind the codes (or all of them)
  int64_t float_count = 0;
  int float_bytes = 2;
  int64_t group = 1;
};

__device__ inline Slot slot_of(const Task& task, int64_t number) {
  constexpr int64_t kFloat = 4;
  constexpr int64_t kPackedScales = 4;
  Slot slot;
  std::byte* row = task.data + number * task.stride_bytes;
  switch (task.format) {
    case SlotFormat::kF32:
      slot.floats = row;
      slot.float_count = task.latent + task.rope;
      slot.float_bytes = 4;
      break;
    case SlotFormat::kBf16:
      slot.floats = row;
      slot.float_count = task.latent + task.rope;
      break;
    case SlotFormat::kPlainFp8:
      slot.codes = row;
      slot.code_count = task.latent + task.rope;
      break;
    case SlotFormat::kPacked:
      slot.codes = row;
      slot.code_count = task.latent;
      slot.group = task.latent / kPackedScales > 0 ? task.latent / kPackedScales : 1;
      slot.scales = row + task.latent;
      slot.scale_count = kPackedScales;
      slot.floats = slot.scales + kPackedScales * kFloat;
      slot.float_count = task.rope;
      break;
    case SlotFormat::kIndexFp8: {
      std::byte* page = task.data + number / task.page_size * task.page_size * task.row_bytes;
      const int64_t offset = number % task.page_size;
      slot.codes = page + offset * task.latent;
      slot.code_count = task.latent;
      slot.group = task.latent;
      slot.scales = page + task.page_size * task.latent + offset * kFloat;
      slot.scale_count = 1;
      break;
    }
  }
  return slot;
}

// The words of 4 bytes that make up a slot (Task::by_words): codes, scales, floats, one behind the other; of index
// pages the scale lies elsewhere.
struct SlotWords {
  std::byte* row;
  std::byte* scale;  // of index pages
  uint32_t codes, scales, all;
  __device__ SlotWords(const Task& task, const Slot& slot)
      : row(slot.codes != nullptr ? slot.codes : slot.floats),
        scale(task.format == SlotFormat::kIndexFp8 ? slot.scales : nullptr),
        codes(static_cast<uint32_t>(slot.code_count / 4)),
        scales(static_cast<uint32_t>(slot.scale_count)),
        all(codes + scales + static_cast<uint32_t>(slot.float_count * slot.float_bytes / 4)) {}
  __device__ std::byte* at(uint32_t w) const { return scale != nullptr && w >= codes ? scale : row + 4 * w; }
};

__device__ inline uint32_t code_poison_word(const std::byte* from, uint64_t pass) {
  return static_cast<uint32_t>(code_poison(address_of(from), pass) >> (8 * (address_of(from) & 4)));
}

__device__ __noinline__ void poison_slots(const Task& task, const Live& live, int64_t part) {
  const int64_t listed = poison_rows(task, task.slots.count, 0);
  const int64_t warp = threadIdx.x / kWarp;
  const uint32_t lane = threadIdx.x % kWarp;
  for (int64_t i = part * kWarps + warp; i < listed; i += static_cast<int64_t>(task.blocks) * kWarps) {
    const int64_t number = at(task.slots, i);
    if (number < 0 || number >= task.capacity) continue;
    const Slot slot = slot_of(task, number);
    if (task.by_words) {
      const SlotWords words(task, slot);
      const uint32_t floats = slot.float_bytes == 4 ? kFloatPoison : kBf16Poison * 0x00010001u;
      for (uint32_t w = lane; w < words.all; w += kWarp) {
        std::byte* to = words.at(w);
        *reinterpret_cast<uint32_t*>(to) = w < words.codes ? code_poison_word(to, live.pass)
                                                           : (w < words.codes + words.scales ? kFloatPoison : floats);
      }
      continue;
    }
    for (int64_t c = lane; c < slot.code_count; c += kWarp)
      slot.codes[c] = static_cast<std::byte>(code_poison_byte(slot.codes + c, live.pass));
    for (int64_t c = lane; c < slot.scale_count; c += kWarp) store_any<uint32_t>(slot.scales + c * 4, kFloatPoison);
    for (int64_t c = lane; c < slot.float_count; c += kWarp) {
      if (slot.float_bytes == 4)
        store_any<uint32_t>(slot.floats + c * 4, kFloatPoison);
      else
        store_any<uint16_t>(slot.floats + c * 2, kBf16Poison);
    }
  }
}

// --- the bytes of touched pages around the slots that are written

// Sums, or compares with the sums, of every page that the listed slots touch. The first listed slot of a page stands
// for it. A sum adds up a mixed value of each place and what is there, so its parts may come in any order.
template <int kUnit>
__device__ inline uint64_t place_value(const std::byte* from, uint64_t place) {
  if constexpr (kUnit == kVectorBytes) {
    const uint4 w = *reinterpret_cast<const uint4*>(from);
    return mix((static_cast<uint64_t>(w.y) << 32 | w.x) + 2 * place * 0x9E3779B97F4A7C15ull) +
           mix((static_cast<uint64_t>(w.w) << 32 | w.z) + (2 * place + 1) * 0x9E3779B97F4A7C15ull);
  } else {
    return mix((2 * place << 32) | element_bits(from, kUnit));
  }
}

// Of one piece of a page's rows, in units of kUnit bytes.
template <int kUnit>
__device__ inline uint64_t sum_rows(const Task& task, const std::byte* page, const uint32_t* written, uint32_t piece) {
  const bool paged = task.format == SlotFormat::kIndexFp8;
  const int64_t row_step = paged ? task.latent : task.stride_bytes;
  const uint32_t row_units = static_cast<uint32_t>((paged ? task.latent : task.row_bytes) / kUnit);
  const uint32_t all = row_units * static_cast<uint32_t>(task.page_size);
  const uint32_t length = (all + static_cast<uint32_t>(task.split) - 1) / static_cast<uint32_t>(task.split);
  const uint32_t end = (piece + 1) * length < all ? (piece + 1) * length : all;
  uint64_t sum = 0;
#pragma unroll 4
  for (uint32_t k = piece * length + threadIdx.x; k < end; k += kThreads) {
    const uint32_t offset = k / row_units;
    if ((written[offset / 32] >> (offset % 32)) & 1u) continue;
    sum += place_value<kUnit>(page + offset * row_step + (k - offset * row_units) * kUnit, k + 1);
  }
  return sum;
}

__device__ __noinline__ void neighbours(const Context& context, const Task& task, int32_t group, int64_t part,
                                        bool compare) {
  __shared__ uint32_t written[kLargestPage / 32];
  const int64_t units = task.slots.count * task.split;
  Seen seen;
  for (int64_t unit = part; unit < units; unit += task.blocks) {
    const int64_t i = unit / task.split;
    const uint32_t piece = static_cast<uint32_t>(unit - i * task.split);
    const int64_t number = at(task.slots, i);
    const int64_t before = i > 0 ? at(task.slots, i - 1) : -1;
    if (number < 0 || number >= task.capacity) continue;
    const int64_t page = number / task.page_size;
    const int64_t begin = page * task.page_size;
    const int64_t end = smaller(begin + task.page_size, task.capacity);
    if (before >= begin && before < end) continue;
    if (static_cast<int64_t>(threadIdx.x) < (task.page_size + 31) / 32) written[threadIdx.x] = 0;
    __syncthreads();
    bool earlier = false;
    for (int64_t j = threadIdx.x; j < task.slots.count; j += kThreads) {
      const int64_t other = at(task.slots, j);
      if (other < begin || other >= end) continue;
      earlier = earlier || j < i;
      atomicOr(&written[(other - begin) / 32], 1u << ((other - begin) % 32));
    }
    if (__syncthreads_or(earlier ? 1 : 0) != 0) continue;
    const bool paged = task.format == SlotFormat::kIndexFp8;
    const std::byte* bytes = task.data + begin * (paged ? task.row_bytes : task.stride_bytes);
    uint64_t sum = task.unit == kVectorBytes ? sum_rows<kVectorBytes>(task, bytes, written, piece)
                   : task.unit == 4          ? sum_rows<4>(task, bytes, written, piece)
                                             : sum_rows<1>(task, bytes, written, piece);
    if (paged && piece == 0) {
      const std::byte* scales = bytes + task.page_size * task.latent;
      for (int64_t offset = threadIdx.x; offset < task.page_size; offset += kThreads)
        if (((written[offset / 32] >> (offset % 32)) & 1u) == 0)
          sum += mix((2 * static_cast<uint64_t>(offset) + 1) << 32 | load_any<uint32_t>(scales + 4 * offset));
    }
    const uint64_t total = block_sum(sum);
    if (threadIdx.x == 0) {
      if (!compare)
        task.sums[unit] = total;
      else if (task.sums[unit] != total)
        seen.note(static_cast<uint64_t>(page), 0);
    }
    __syncthreads();
  }
  if (threadIdx.x == 0 && seen.count != 0) record(context, task, group, DeviceCheck::kNeighbour, seen, Extra{});
}

// --- floats, integers and codes

// Whether any of the elements is not finite (a sentinel is not).
struct FloatTest {
  static constexpr bool kRepeatable = true;
  uint32_t exponent, one, top;
  uint32_t hit = 0;
  __device__ uint32_t bad(uint32_t word) const { return ((word & exponent) + one) & top; }
  __device__ void vector(const std::byte* from, int64_t) {
    const uint4 w = *reinterpret_cast<const uint4*>(from);
    hit |= bad(w.x) | bad(w.y) | bad(w.z) | bad(w.w);
  }
};
struct FloatTestBytes : FloatTest {
  int bytes = 1;
  __device__ void element(const std::byte* from, int64_t) { hit |= bad(element_bits(from, bytes)); }
};
struct FloatFind {
  static constexpr bool kRepeatable = false;
  uint32_t exponent, one, top, sentinel;
  int bytes;
  Seen nonfinite, unwritten;
  __device__ void element(const std::byte* from, int64_t index) {
    const uint32_t raw = element_bits(from, bytes);
    if ((((raw & exponent) + one) & top) == 0) return;
    nonfinite.note(static_cast<uint64_t>(index), raw);
    if (raw == sentinel) unwritten.note(static_cast<uint64_t>(index), raw);
  }
  __device__ void vector(const std::byte* from, int64_t index) {
    for (int i = 0; i < kVectorBytes / bytes; ++i) element(from + i * bytes, index + i);
  }
};

// The way back after something was seen.
__device__ __noinline__ void find_in_floats(const Context& context, const Task& task, int32_t group, int64_t rows,
                                            int64_t part) {
  FloatFind find{task.exponent, task.one, task.top, task.sentinel, task.element_bytes, {}, {}};
  walk(task, rows, 0, part, find);
  if (gather(find.nonfinite)) record(context, task, group, DeviceCheck::kNonfinite, find.nonfinite, Extra{});
  if (task.look_for_poison && gather(find.unwritten))
    record(context, task, group, DeviceCheck::kUnwritten, find.unwritten, Extra{});
}

__device__ inline void check_floats(const Context& context, const Task& task, int32_t group, const Live& live,
                                    int64_t part) {
  const int64_t rows = live_rows(task, live, task.rows);
  FloatTestBytes test;
  test.exponent = task.exponent;
  test.one = task.one;
  test.top = task.top;
  test.bytes = task.element_bytes;
  walk(task, rows, 0, part, test);
  if (__syncthreads_or(test.hit != 0 ? 1 : 0) == 0) return;
  find_in_floats(context, task, group, rows, part);
}

struct IntegerFind {
  static constexpr bool kRepeatable = false;
  Seen unwritten;
  __device__ void element(const std::byte* from, int64_t index) {
    const uint32_t raw = load_any<uint32_t>(from);
    if (raw == static_cast<uint32_t>(kIntPoison)) unwritten.note(static_cast<uint64_t>(index), raw);
  }
  __device__ void vector(const std::byte* from, int64_t index) {
    for (int i = 0; i < 4; ++i) element(from + 4 * i, index + i);
  }
};

// Aligned words of 8 bytes that lie within the elements visited. Single elements are not looked at: where they make up
// a word, the word is visited by its first byte's thread.
struct CodeFind {
  static constexpr bool kRepeatable = false;
  uint64_t pass;
  Seen unwritten;
  __device__ void word(const std::byte* from, int64_t index, uint64_t value) {
    if (value != code_poison(address_of(from), pass)) return;
    unwritten.note(static_cast<uint64_t>(index), static_cast<uint32_t>(value & 0xFF));
    unwritten.count += 7;  // counted in bytes
  }
  __device__ void vector(const std::byte* from, int64_t index) {
    const uint4 w = *reinterpret_cast<const uint4*>(from);
    word(from, index, static_cast<uint64_t>(w.y) << 32 | w.x);
    word(from + 8, index + 8, static_cast<uint64_t>(w.w) << 32 | w.z);
  }
  __device__ void element(const std::byte*, int64_t) {}
};

// Rows whose start forbids vectors, and the ends of the others.
__device__ inline void find_codes_in_rows(const Task& task, int64_t rows, int64_t part, CodeFind& find) {
  const int64_t width = task.inner * task.columns;
  const int64_t stride = static_cast<int64_t>(task.blocks) * kThreads;
  for (int64_t i = part * kThreads + threadIdx.x; i < rows * width; i += stride) {
    const int64_t row = i / width;
    const int64_t rest = i - row * width;
    const int64_t j = rest / task.columns;
    const int64_t column = rest - j * task.columns;
    const std::byte* from = task.data + row * task.row_stride + j * task.inner_stride + column;
    if (address_of(from) % 8 != 0 || column + 8 > live_columns(task, row, 0)) continue;
    find.word(from, i, *reinterpret_cast<const uint64_t*>(from));
  }
}

__device__ inline void check_codes(const Context& context, const Task& task, int32_t group, const Live& live,
                                   int64_t part) {
  const int64_t rows = live_rows(task, live, task.rows);
  CodeFind find{live.pass, {}};
  // Vectors find whole words as long as a row is made of them; a word that lies across two rows counts for a tensor in
  // one piece.
  if (task.walk == Walk::kVectors || (task.walk == Walk::kFlat && task.inner * task.columns % kVectorBytes == 0))
    walk(task, rows, 0, part, find);
  else
    find_codes_in_rows(task, rows, part, find);
  if (__syncthreads_or(find.unwritten.count != 0 ? 1 : 0) == 0) return;
  if (gather(find.unwritten)) record(context, task, group, DeviceCheck::kUnwritten, find.unwritten, Extra{});
}

__device__ __noinline__ void check_integers(const Context& context, const Task& task, int32_t group, const Live& live,
                                            int64_t part) {
  IntegerFind find;
  walk(task, live_rows(task, live, task.rows), 0, part, find);
  if (__syncthreads_or(find.unwritten.count != 0 ? 1 : 0) == 0) return;
  if (gather(find.unwritten)) record(context, task, group, DeviceCheck::kUnwritten, find.unwritten, Extra{});
}

}  // namespace faultline::device_checks
