// Cache slots: their poison, their contents, and the bytes around them.
#pragma once

#include "check/cuda_check_record.cuh"

namespace faultline::device_checks {

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
#pragma unroll 1
      for (uint32_t w = lane; w < words.all; w += kWarp) {
        std::byte* to = words.at(w);
        *reinterpret_cast<uint32_t*>(to) = w < words.codes ? code_poison_word(to, live.pass)
                                                           : (w < words.codes + words.scales ? kFloatPoison : floats);
      }
      continue;
    }
#pragma unroll 1
    for (int64_t c = lane; c < slot.code_count; c += kWarp)
      slot.codes[c] = static_cast<std::byte>(code_poison_byte(slot.codes + c, live.pass));
#pragma unroll 1
    for (int64_t c = lane; c < slot.scale_count; c += kWarp) store_any<uint32_t>(slot.scales + c * 4, kFloatPoison);
#pragma unroll 1
    for (int64_t c = lane; c < slot.float_count; c += kWarp) {
      if (slot.float_bytes == 4)
        store_any<uint32_t>(slot.floats + c * 4, kFloatPoison);
      else
        store_any<uint16_t>(slot.floats + c * 2, kBf16Poison);
    }
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
#pragma unroll 1
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

// The way back, warp by warp.
__device__ __noinline__ void find_in_slots(const Context& context, const Task& task, int32_t group, const Live& live,
                                           int64_t listed, int64_t part) {
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
#pragma unroll 1
    for (int64_t c = lane; c < slot.code_count; c += kWarp) {
      const float scale =
          slot.scale_count == 0 ? 1.0f : float_from_bits(load_any<uint32_t>(slot.scales + c / slot.group * 4));
      const uint32_t bits = product_bits(e4m3_to_float(static_cast<uint8_t>(slot.codes[c])), scale);
      if (!finite_bits(bits)) nonfinite.note(position * width + c, bits);
    }
#pragma unroll 1
    for (int64_t c = lane; c < slot.float_count; c += kWarp) {
      const uint32_t raw = slot.float_bytes == 4 ? load_any<uint32_t>(slot.floats + c * 4)
                                                 : static_cast<uint32_t>(load_any<uint16_t>(slot.floats + c * 2)) << 16;
      if (!finite_bits(raw)) nonfinite.note(position * width + slot.code_count + c, raw);
    }
    if (!task.look_for_poison) continue;
    // Of a slot of floats alone the index is the element, otherwise the byte.
    const uint64_t base = position * kUnwrittenRow;
#pragma unroll 1
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
#pragma unroll 1
    for (int64_t c = lane; c < slot.scale_count; c += kWarp) {
      const uint32_t raw = load_any<uint32_t>(slot.scales + c * 4);
      if (raw != kFloatPoison) continue;
      unwritten.note(base + slot.code_count + c * 4, raw & 0xFF);
      unwritten.count += 3;
    }
    const int64_t skip = static_cast<int64_t>((8 - address_of(slot.codes) % 8) % 8);  // to the first aligned word
#pragma unroll 1
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

__device__ __noinline__ void check_slots(const Context& context, const Task& task, int32_t group, const Live& live,
                                         int64_t part) {
  const int64_t listed = live_rows(task, live, task.slots.count);
  bool look = !task.by_words;
#pragma unroll 1
  for (int64_t i = part * kWarps + threadIdx.x / kWarp; task.by_words && i < listed;
       i += static_cast<int64_t>(task.blocks) * kWarps) {
    const int64_t number = at(task.slots, i);
    if (number >= 0 && number < task.capacity) look = suspicious_slot(task, slot_of(task, number), live.pass) || look;
  }
  if (__syncthreads_or(look ? 1 : 0) != 0) find_in_slots(context, task, group, live, listed, part);
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
__device__ __noinline__ uint64_t sum_rows(const Task& task, const std::byte* page, const uint32_t* written,
                                          uint32_t piece) {
  const bool paged = task.format == SlotFormat::kIndexFp8;
  const int64_t row_step = paged ? task.latent : task.stride_bytes;
  const uint32_t row_units = static_cast<uint32_t>((paged ? task.latent : task.row_bytes) / kUnit);
  const uint32_t all = row_units * static_cast<uint32_t>(task.page_size);
  const uint32_t length = (all + static_cast<uint32_t>(task.split) - 1) / static_cast<uint32_t>(task.split);
  const uint32_t end = (piece + 1) * length < all ? (piece + 1) * length : all;
  uint64_t sum = 0;
#pragma unroll(kUnit == kVectorBytes ? 4 : 1)
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
#pragma unroll 1
  for (int64_t unit = part; unit < units; unit += task.blocks) {
    const int64_t i = unit / task.split;
    const uint32_t piece = static_cast<uint32_t>(unit - i * task.split);
    const int64_t number = at(task.slots, i);
    const int64_t before = i > 0 ? at(task.slots, i - 1) : -1;
    int64_t other = threadIdx.x < task.slots.count ? at(task.slots, threadIdx.x) : -1;  // asked for at once
    if (number < 0 || number >= task.capacity) continue;
    const int64_t page = number / task.page_size;
    const int64_t begin = page * task.page_size;
    const int64_t end = smaller(begin + task.page_size, task.capacity);
    if (before >= begin && before < end) continue;
    if (static_cast<int64_t>(threadIdx.x) < (task.page_size + 31) / 32) written[threadIdx.x] = 0;
    __syncthreads();
    bool earlier = false;
#pragma unroll 1
    for (int64_t j = threadIdx.x; j < task.slots.count; j += kThreads) {
      if (j >= kThreads) other = at(task.slots, j);
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
#pragma unroll 1
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

}  // namespace faultline::device_checks
