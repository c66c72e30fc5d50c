// Checks that look at whole rows: indices, probabilities, cache slots; and canaries. See cuda_checks.cuh.
#pragma once

#include "check/cuda_checks.cuh"

namespace faultline::device_checks {

// --- indices

// One row of indices: what find_bad_index (inspect.cpp) knows of it. Of a flat tensor the one row is the whole of it,
// and each entry has an owner of its own.
struct IndexRow {
  const Task* task = nullptr;
  int64_t row = 0;
  int64_t columns = 0;
  int64_t expected = 0;
  int64_t owner = -1;  // row of the page table; -1: nobody is asked
  int64_t owned = 0;   // entries of it

  __device__ int32_t value(int64_t column) const {
    const int64_t at_row = task->flat ? column : row;
    const int64_t at_column = task->flat ? 0 : column;
    return __ldg(reinterpret_cast<const int32_t*>(task->data) + at_row * task->row_stride + at_column);
  }
  __device__ const int32_t* table_row(int64_t number) const { return task->table.data + number * task->table.stride; }
  __device__ bool owns(int64_t number, int64_t count, int64_t slot) const {
    const int32_t* slots = table_row(number);
    for (int64_t c = 0; c < count; ++c)
      if (__ldg(slots + c) == slot) return true;
    return false;
  }
};

__device__ inline void find_owner(const Task& task, int64_t row, int64_t& owner, int64_t& owned) {
  owner = -1;
  owned = 0;
  if (task.table.data == nullptr || row >= task.row_to_request.count || row >= task.owner_lengths.count) return;
  const int64_t request = at(task.row_to_request, row);
  if (request < 0 || request >= task.table_rows) return;
  owner = request;
  owned = clamp(at(task.owner_lengths, row), 0, task.table.count);
}

// The host's verdict on one entry, plainly. Only asked for when something is wrong.
__device__ inline int64_t cause_of(const IndexRow& r, int64_t column, int64_t& owner) {
  const Task& task = *r.task;
  const int64_t value = r.value(column);
  owner = r.owner;
  if (task.tail && column >= r.expected) return value == -1 ? kSound : kTail;
  if (value < task.begin || value >= task.end) return kRange;
  if (task.unique) {
    for (int64_t c = 0; c < column; ++c)
      if (r.value(c) == value) return kTwice;
  }
  int64_t owned = r.owned;
  if (task.flat) find_owner(task, column, owner, owned);
  if (owner >= 0 && !r.owns(owner, owned, value)) return kForeign;
  return 0;
}

// Whether anything is wrong with the entries [begin, end) of a row, in time linear in the row: bitmaps of the slots
// seen and owned, a window of slots at a time. Slots that follow each other lie in different words, so that threads
// which set them do not wait for each other.
__device__ inline bool suspicious(const IndexRow& r, int64_t begin, int64_t end) {
  __shared__ uint32_t seen[kWindowBits / 32];
  __shared__ uint32_t owned[kWindowBits / 32];
  const Task& task = *r.task;
  const bool by_bitmap = r.owner >= 0 && !task.flat;
  const bool unique = task.unique;
  const bool windows = unique || by_bitmap;
  const bool foreign_entries = task.flat && task.table.data != nullptr;
  const int64_t first = task.begin;
  const int64_t last = task.end;
  const int64_t tail_from = task.tail ? r.expected : INT64_MAX;
  const int32_t poison = kIntPoison;
  const bool look_for_poison = task.look_for_poison;
  const int64_t range = last - first;
  int shift = 0;  // a window has 32 << shift slots
  while ((int64_t{32} << shift) < range && (32 << shift) < kWindowBits) ++shift;
  const int64_t window_slots = int64_t{32} << shift;
  const uint32_t word_mask = (1u << shift) - 1;
  // What the first window needs is asked for at once, before the barriers.
  constexpr int kAhead = 2;
  const int64_t slots_at = threadIdx.x;
  int32_t ahead[kAhead];
  int32_t owned_ahead[2 * kAhead];
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    const int64_t c = begin + threadIdx.x + static_cast<int64_t>(k) * blockDim.x;
    ahead[k] = c < end ? r.value(c) : 0;
  }
#pragma unroll
  for (int k = 0; k < 2 * kAhead; ++k) {
    const int64_t c = slots_at + static_cast<int64_t>(k) * blockDim.x;
    owned_ahead[k] = by_bitmap && c < r.owned ? __ldg(r.table_row(r.owner) + c) : -1;
  }
  bool bad = false;
  for (int64_t window = 0; window == 0 || (windows && window < range); window += window_slots) {
    if (windows) {
      __syncthreads();
      for (uint32_t w = threadIdx.x; w <= word_mask; w += blockDim.x) {
        seen[w] = 0;
        owned[w] = 0;
      }
      __syncthreads();
      if (by_bitmap) {
        const int32_t* slots = r.table_row(r.owner);
        const auto own = [&](int64_t slot) {
          const int64_t bit = slot - first - window;
          if (slot < last && bit >= 0 && bit < window_slots)
            atomicOr(&owned[static_cast<uint32_t>(bit) & word_mask], 1u << (static_cast<uint32_t>(bit) >> shift));
        };
#pragma unroll
        for (int k = 0; k < 2 * kAhead; ++k)
          if (slots_at + static_cast<int64_t>(k) * blockDim.x < r.owned) own(owned_ahead[k]);
#pragma unroll 4
        for (int64_t c = slots_at + 2 * kAhead * static_cast<int64_t>(blockDim.x); c < r.owned; c += blockDim.x)
          own(__ldg(slots + c));
        __syncthreads();
      }
    }
    const auto look = [&](int64_t c, int32_t value) {
      if (value == poison && look_for_poison) bad = true;
      if (c >= tail_from) {
        bad = bad || value != -1;
        return;
      }
      if (value < first || value >= last) {
        bad = true;
        return;
      }
      if (foreign_entries) {
        int64_t owner;
        int64_t count;
        find_owner(task, c, owner, count);
        bad = bad || (owner >= 0 && !r.owns(owner, count, value));
      }
      const int64_t bit = value - first - window;
      if (!windows || bit < 0 || bit >= window_slots) return;
      const uint32_t word = static_cast<uint32_t>(bit) & word_mask;
      const uint32_t mask = 1u << (static_cast<uint32_t>(bit) >> shift);
      if (unique && (atomicOr(&seen[word], mask) & mask) != 0) bad = true;
      if (by_bitmap && (owned[word] & mask) == 0) bad = true;
    };
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t c = begin + threadIdx.x + static_cast<int64_t>(k) * blockDim.x;
      if (c < end) look(c, ahead[k]);
    }
    for (int64_t c = begin + threadIdx.x + kAhead * static_cast<int64_t>(blockDim.x); c < end; c += blockDim.x)
      look(c, r.value(c));
  }
  return __syncthreads_or(bad ? 1 : 0) != 0;
}

__device__ inline void find_bad(const Context& context, int32_t group, const IndexRow& r, int64_t begin, int64_t end) {
  const Task& task = *r.task;
  Seen bounds;
  Seen unwritten;
  Extra extra;
  for (int64_t c = begin + threadIdx.x; c < end; c += blockDim.x) {
    const int64_t value = r.value(c);
    const uint64_t index = static_cast<uint64_t>(task.flat ? c : r.row * task.columns + c);
    int64_t owner = -1;
    const int64_t cause = cause_of(r, c, owner);
    if (cause != 0) {
      if (index < bounds.first) extra = Extra{{value, task.flat ? 1 : r.expected, cause, owner}};
      bounds.note(index, static_cast<uint32_t>(value));
    }
    if (value == kIntPoison && task.look_for_poison) unwritten.note(index, static_cast<uint32_t>(value));
  }
  if (gather(bounds)) record(context, task, group, DeviceCheck::kBounds, bounds, extra);
  if (gather(unwritten)) record(context, task, group, DeviceCheck::kUnwritten, unwritten, Extra{});
}

__device__ inline void check_indices(const Context& context, const Task& task, int32_t group, const Live& live,
                                     int64_t part) {
  const int64_t rows = live_rows(task, live, task.rows);
  IndexRow r;
  r.task = &task;
  if (task.flat) {
    // Entries know nothing of each other unless they must differ; then one block has them all (task.blocks is 1).
    r.columns = rows;
    r.expected = rows;
    const int64_t share = (rows + task.blocks - 1) / task.blocks;
    const int64_t begin = part * share;
    const int64_t end = smaller(begin + share, rows);
    if (suspicious(r, begin, end)) find_bad(context, group, r, begin, end);
    return;
  }
  for (r.row = part; r.row < rows; r.row += task.blocks) {
    r.columns = live_columns(task, r.row, 0);
    r.expected = r.columns;
    if (task.valid.data != nullptr && r.row < task.valid.count) r.expected = clamp(at(task.valid, r.row), 0, r.columns);
    find_owner(task, r.row, r.owner, r.owned);
    if (suspicious(r, 0, r.columns)) find_bad(context, group, r, 0, r.columns);
  }
}

// --- probability rows

struct ProbabilityTest {
  static constexpr bool kRepeatable = false;  // it adds up
  uint32_t hit = 0;
  double sum = 0;
  __device__ void element(const std::byte* from, int64_t) {
    const float value = float_from_bits(load_any<uint32_t>(from));
    sum += static_cast<double>(value);
    if (!(value >= 0) || value > 3.4028234663852886e38f) hit = 1;  // the largest finite float
  }
  __device__ void vector(const std::byte* from, int64_t index) {
    const uint4 w = *reinterpret_cast<const uint4*>(from);
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
    for (const uint32_t word : words) {
      const float value = float_from_bits(word);
      sum += static_cast<double>(value);
      if (!(value >= 0) || value > 3.4028234663852886e38f) hit = 1;
    }
    static_cast<void>(index);
  }
};

struct NegativeFind {
  static constexpr bool kRepeatable = false;
  Seen negative;
  __device__ void element(const std::byte* from, int64_t index) {
    const uint32_t raw = load_any<uint32_t>(from);
    if (!(float_from_bits(raw) >= 0)) negative.note(static_cast<uint64_t>(index), raw);
  }
  __device__ void vector(const std::byte* from, int64_t index) {
    for (int i = 0; i < 4; ++i) element(from + 4 * i, index + i);
  }
};

__device__ __noinline__ void check_probabilities(const Context& context, const Task& task, int32_t group,
                                                 const Live& live, int64_t part) {
  __shared__ double sums[kThreads];
  const int64_t rows = live_rows(task, live, task.rows);
  for (int64_t row = part; row < rows; row += task.blocks) {
    std::byte* from = task.data + row * task.row_stride * static_cast<int64_t>(sizeof(float));
    const int64_t first = row * task.columns;
    ProbabilityTest test;
    walk_run(from, first, task.columns, sizeof(float), 0, 1, test);
    sums[threadIdx.x] = test.sum;
    const bool hit = __syncthreads_or(test.hit != 0 ? 1 : 0) != 0;
    for (int step = kThreads / 2; step > 0; step /= 2) {
      if (static_cast<int>(threadIdx.x) < step) sums[threadIdx.x] += sums[threadIdx.x + step];
      __syncthreads();
    }
    const double sum = sums[0];
    __syncthreads();
    const auto off = [](double value) {
      return !(value - 1 <= kProbabilitySumTolerance && value - 1 >= -kProbabilitySumTolerance);
    };
    if (!hit && !off(sum)) continue;

    FloatFind find{task.exponent, task.one, task.top, task.sentinel, task.element_bytes, {}, {}};
    walk_run(from, first, task.columns, sizeof(float), 0, 1, find);
    if (gather(find.nonfinite)) record(context, task, group, DeviceCheck::kNonfinite, find.nonfinite, Extra{});
    if (task.look_for_poison && gather(find.unwritten))
      record(context, task, group, DeviceCheck::kUnwritten, find.unwritten, Extra{});
    NegativeFind negative;
    walk_run(from, first, task.columns, sizeof(float), 0, 1, negative);
    const bool any = __syncthreads_or(negative.negative.count != 0 ? 1 : 0) != 0;
    if (gather(negative.negative)) record(context, task, group, DeviceCheck::kNegative, negative.negative, Extra{});
    if (any || threadIdx.x != 0) continue;
    // In the order of the columns, as the host adds.
    double exact = 0;
    for (int64_t c = 0; c < task.columns; ++c)
      exact += static_cast<double>(float_from_bits(load_any<uint32_t>(from + c * 4)));
    if (!off(exact)) continue;
    Seen seen;
    seen.note(static_cast<uint64_t>(row), float_bits(static_cast<float>(exact)));
    Extra extra;
    memcpy(&extra.values[0], &exact, sizeof exact);
    record(context, task, group, DeviceCheck::kSum, seen, extra);
  }
}

// --- cache slots

// The product of a code and its scale as x86 rounds it: an operand's NaN stays (made quiet), 0 x inf is the default
// NaN.
__device__ inline uint32_t product_bits(float code, float scale) {
  constexpr uint32_t kQuiet = 0x00400000u;
  constexpr uint32_t kDefaultNan = 0xFFC00000u;
  if (code != code) return float_bits(code) | kQuiet;
  if (scale != scale) return float_bits(scale) | kQuiet;
  const float product = code * scale;
  return product != product ? kDefaultNan : float_bits(product);
}

__device__ inline bool finite_bits(uint32_t bits) {
  return (bits & 0x7F800000u) != 0x7F800000u;
}

// Whether a slot may hold something that is not finite, or poison.
__device__ inline bool suspicious_slot(const Task& task, const Slot& slot, uint64_t pass) {
  constexpr int kBatch = 4;
  constexpr uint32_t kLargeScale = 246u << 23;  // 448 times 2^119 is finite
  const SlotWords words(task, slot);
  const bool f32 = slot.float_bytes == 4;
  const uint32_t exponent = f32 ? 0x7F800000u : 0x7F807F80u;
  const uint32_t one = f32 ? 0x00800000u : 0x00800080u;
  const uint32_t top = f32 ? 0x80000000u : 0x80008000u;
  uint32_t hit = 0;
  for (uint32_t w = threadIdx.x % kWarp; w < words.all; w += kBatch * kWarp) {
    uint32_t value[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const uint32_t v = w + k * kWarp;
      value[k] = *reinterpret_cast<const uint32_t*>(words.at(v < words.all ? v : w));
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      uint32_t v = w + k * kWarp;
      if (v >= words.all) v = w;
      if (v < words.codes)
        hit |= (((value[k] & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u) |
               (value[k] == code_poison_word(words.at(v), pass) ? 1u : 0u);
      else if (v < words.codes + words.scales)
        hit |= (value[k] & 0x7F800000u) >= kLargeScale ? 1u : 0u;
      else
        hit |= ((value[k] & exponent) + one) & top;
    }
  }
  return hit != 0;
}

__device__ __noinline__ void check_slots(const Context& context, const Task& task, int32_t group, const Live& live,
                                         int64_t part) {
  const int64_t listed = live_rows(task, live, task.slots.count);
  bool look = !task.by_words;
  for (int64_t i = part * kWarps + threadIdx.x / kWarp; task.by_words && i < listed;
       i += static_cast<int64_t>(task.blocks) * kWarps) {
    const int64_t number = at(task.slots, i);
    if (number >= 0 && number < task.capacity) look = suspicious_slot(task, slot_of(task, number), live.pass) || look;
  }
  if (__syncthreads_or(look ? 1 : 0) == 0) return;
  const int64_t width = task.latent + task.rope;
  const int64_t warp = threadIdx.x / kWarp;
  const int64_t lane = threadIdx.x % kWarp;
  Seen nonfinite;
  Seen unwritten;
  for (int64_t i = part * kWarps + warp; i < listed; i += static_cast<int64_t>(task.blocks) * kWarps) {
    const int64_t number = at(task.slots, i);
    if (number < 0 || number >= task.capacity) continue;
    const Slot slot = slot_of(task, number);
    const uint64_t position = static_cast<uint64_t>(i);
    for (int64_t c = lane; c < slot.code_count; c += kWarp) {
      const float scale =
          slot.scale_count == 0 ? 1.0f : float_from_bits(load_any<uint32_t>(slot.scales + c / slot.group * 4));
      const uint32_t bits = product_bits(e4m3_to_float(static_cast<uint8_t>(slot.codes[c])), scale);
      if (!finite_bits(bits)) nonfinite.note(position * width + c, bits);
    }
    for (int64_t c = lane; c < slot.float_count; c += kWarp) {
      const uint32_t raw = slot.float_bytes == 4 ? load_any<uint32_t>(slot.floats + c * 4)
                                                 : static_cast<uint32_t>(load_any<uint16_t>(slot.floats + c * 2)) << 16;
      if (!finite_bits(raw)) nonfinite.note(position * width + slot.code_count + c, raw);
    }
    if (!task.look_for_poison) continue;
    // Of a slot of floats alone the index is the element, otherwise the byte.
    const uint64_t base = position * kUnwrittenRow;
    for (int64_t c = lane; c < slot.float_count; c += kWarp) {
      const bool f32 = slot.float_bytes == 4;
      const uint32_t raw = f32 ? load_any<uint32_t>(slot.floats + c * 4)
                               : static_cast<uint32_t>(load_any<uint16_t>(slot.floats + c * 2));
      if (raw != (f32 ? kFloatPoison : kBf16Poison)) continue;
      if (slot.code_count == 0) {
        unwritten.note(base + c, raw);
      } else {
        unwritten.note(base + slot.code_count + slot.scale_count * 4 + c * slot.float_bytes, raw & 0xFF);
        unwritten.count += slot.float_bytes - 1;
      }
    }
    for (int64_t c = lane; c < slot.scale_count; c += kWarp) {
      const uint32_t raw = load_any<uint32_t>(slot.scales + c * 4);
      if (raw != kFloatPoison) continue;
      unwritten.note(base + slot.code_count + c * 4, raw & 0xFF);
      unwritten.count += 3;
    }
    const int64_t skip = static_cast<int64_t>((8 - address_of(slot.codes) % 8) % 8);  // to the first aligned word
    for (int64_t c = skip + lane * 8; c + 8 <= slot.code_count; c += kWarp * 8) {
      const uint64_t word = *reinterpret_cast<const uint64_t*>(slot.codes + c);
      if (word != code_poison(address_of(slot.codes + c), live.pass)) continue;
      unwritten.note(base + c, static_cast<uint32_t>(word & 0xFF));
      unwritten.count += 7;
    }
  }
  if (__syncthreads_or(nonfinite.count + unwritten.count != 0 ? 1 : 0) == 0) return;
  const auto slot_at = [&](uint64_t position) {
    Extra extra;
    extra.values[0] = at(task.slots, static_cast<int64_t>(position));
    return extra;
  };
  if (gather(nonfinite))
    record(context, task, group, DeviceCheck::kNonfinite, nonfinite, slot_at(nonfinite.first / width));
  if (gather(unwritten))
    record(context, task, group, DeviceCheck::kUnwritten, unwritten, slot_at(unwritten.first / kUnwrittenRow));
}

// --- canaries

__device__ __noinline__ void check_canaries(const Context& context, const Task& task, int32_t group, int64_t part) {
  constexpr uint32_t kCanary = 0xC5C5C5C5u;  // Buffer::kCanary, four times
  constexpr int64_t kVectors = kCanaryBytes / kVectorBytes;
  const int64_t stride = static_cast<int64_t>(task.blocks) * kThreads;
  Seen seen;
  for (int64_t i = part * kThreads + threadIdx.x; i < task.canary_count * 2 * kVectors; i += stride) {
    const std::byte* from = task.canaries[i / kVectors] + i % kVectors * kVectorBytes;
    uint32_t words[4];
    if (address_of(from) % kVectorBytes == 0) {
      const uint4 w = *reinterpret_cast<const uint4*>(from);
      words[0] = w.x, words[1] = w.y, words[2] = w.z, words[3] = w.w;
    } else {
      for (int k = 0; k < 4; ++k) words[k] = load_any<uint32_t>(from + 4 * k);
    }
    if (words[0] == kCanary && words[1] == kCanary && words[2] == kCanary && words[3] == kCanary) continue;
    for (int k = 0; k < kVectorBytes; ++k) {
      const uint32_t byte = (words[k / 4] >> (8 * (k % 4))) & 0xFF;
      if (byte != (kCanary & 0xFF)) seen.note(static_cast<uint64_t>(i * kVectorBytes + k), byte);
    }
  }
  if (__syncthreads_or(seen.count != 0 ? 1 : 0) == 0) return;
  if (gather(seen)) record(context, task, group, DeviceCheck::kCanary, seen, Extra{});
}

// --- one block's work

// The end of the kernel makes it seen: what faults afterwards cannot take it back.
__device__ inline void mark(void* page, int32_t number, bool is_op, bool done, uint64_t pass) {
  volatile DeviceProgress* progress = &static_cast<DeviceCheckPage*>(page)->progress;
  progress->pass = pass;
  if (is_op)
    (done ? progress->op_done : progress->op_begun) = number;
  else
    (done ? progress->group_done : progress->group_begun) = number;
}

__device__ inline void run_poison(const Context& context, int32_t first_block, int32_t group) {
  const int32_t block = first_block + static_cast<int32_t>(blockIdx.x);
  const Task& task = context.tasks[context.task_of_block[block]];
  const int64_t part = block - task.first_block;
  const Live live = *context.live;
  switch (task.kind) {
    case TaskKind::kMark:
      if (threadIdx.x != 0) return;
      mark(context.page, group, false, false, live.pass);
      if (task.resets) mark(context.page, -1, false, true, live.pass);
      return;
    case TaskKind::kFloats:
    case TaskKind::kProbabilities:
    case TaskKind::kIntegers:
    case TaskKind::kIndices: {
      WordPoison poison{task.pattern, task.sentinel, task.element_bytes, task.sparse, live.pass};
      walk(task, poison_rows(task, task.rows, kTailMargin), kTailMargin, part, poison);
      return;
    }
    case TaskKind::kCodes: {
      CodePoison poison{live.pass};
      walk(task, poison_rows(task, task.rows, kTailMargin), kTailMargin, part, poison);
      return;
    }
    case TaskKind::kSlots:
      poison_slots(task, live, part);
      return;
    case TaskKind::kNeighbours:
      neighbours(context, task, group, part, false);
      return;
    case TaskKind::kCanaries:
      return;
  }
}

__device__ inline void run_check(const Context& context, int32_t first_block, int32_t group) {
  const int32_t block = first_block + static_cast<int32_t>(blockIdx.x);
  const Task& task = context.tasks[context.task_of_block[block]];
  const int64_t part = block - task.first_block;
  const Live live = *context.live;
  if (task.kind == TaskKind::kMark) {
    if (threadIdx.x == 0) mark(context.page, group, false, true, live.pass);
    return;
  }
  // What follows the first broken group is its consequence.
  const int32_t broken = *static_cast<volatile const int32_t*>(&context.account->broken);
  if (broken != 0 && INT32_MAX - broken < group) return;
  switch (task.kind) {
    case TaskKind::kFloats:
      check_floats(context, task, group, live, part);
      return;
    case TaskKind::kIntegers:
      check_integers(context, task, group, live, part);
      return;
    case TaskKind::kCodes:
      check_codes(context, task, group, live, part);
      return;
    case TaskKind::kProbabilities:
      check_probabilities(context, task, group, live, part);
      return;
    case TaskKind::kSlots:
      check_slots(context, task, group, live, part);
      return;
    case TaskKind::kNeighbours:
      neighbours(context, task, group, part, true);
      return;
    case TaskKind::kCanaries:
      check_canaries(context, task, group, part);
      return;
    case TaskKind::kIndices:
    case TaskKind::kMark:
      return;
  }
}

// A launch of its own: its bitmaps would cost the other checks their occupancy.
__device__ inline void run_check_indices(const Context& context, int32_t first_block, int32_t group) {
  const int32_t block = first_block + static_cast<int32_t>(blockIdx.x);
  const Task& task = context.tasks[context.task_of_block[block]];
  const int32_t broken = *static_cast<volatile const int32_t*>(&context.account->broken);
  if (broken != 0 && INT32_MAX - broken < group) return;
  const Live live = *context.live;
  check_indices(context, task, group, live, block - task.first_block);
}

}  // namespace faultline::device_checks
