// Floats, integers, code bytes, probability rows and canaries.
#pragma once

#include "check/cuda_check_record.cuh"

namespace faultline::device_checks {

// --- poisoning

struct WordPoison {
  static constexpr bool kRepeatable = true;
  uint32_t pattern;
  uint32_t sentinel;
  int bytes;
  __device__ void vector(std::byte* to, int64_t) {
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

template <class Poison>
__device__ inline void lay_poison(const Task& task, const Live& live, int64_t part, Poison poison) {
  const int64_t rows = poison_rows(task, task.rows, kTailMargin);
  if (task.sparse)
    walk_chosen(task, rows, kTailMargin, live.pass, part, poison);
  else
    walk(task, rows, kTailMargin, part, poison);
}

__device__ __noinline__ void poison_words(const Task& task, const Live& live, int64_t part) {
  lay_poison(task, live, part, WordPoison{task.pattern, task.sentinel, task.element_bytes});
}

// Row by row, as check_indices goes (of a flat tensor one block has everything).
__device__ __noinline__ void poison_index_rows(const Task& task, int64_t part) {
  WordPoison poison{task.pattern, task.sentinel, task.element_bytes};
  const int64_t rows = task.flat ? 1 : task.rows;
#pragma unroll 1
  for (int64_t row = part; row < rows; row += task.blocks)
    walk_run(task.data + row * task.row_stride * task.element_bytes, 0, task.flat ? task.rows : task.columns,
             task.element_bytes, 0, 1, poison);
}

__device__ __noinline__ void poison_codes(const Task& task, const Live& live, int64_t part) {
  lay_poison(task, live, part, CodePoison{live.pass});
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
#pragma unroll 1
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

__device__ __noinline__ void check_floats(const Context& context, const Task& task, int32_t group, const Live& live,
                                          int64_t part) {
  const int64_t rows = live_rows(task, live, task.rows);
  FloatTestBytes test;
  test.exponent = task.exponent;
  test.one = task.one;
  test.top = task.top;
  test.bytes = task.element_bytes;
  if (task.implied)
    walk_chosen(task, rows, 0, live.pass, part, test);
  else
    walk(task, rows, 0, part, test);
  if (__syncthreads_or(test.hit != 0 ? 1 : 0) == 0) return;
  if (!task.implied)
    find_in_floats(context, task, group, rows, part);
  else if (threadIdx.x == 0)
    atomicMax(&context.account->suspect, INT32_MAX - group);
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
__device__ __noinline__ void find_codes_in_rows(const Task& task, int64_t rows, int64_t part, CodeFind& find) {
  const int64_t width = task.inner * task.columns;
  const int64_t stride = static_cast<int64_t>(task.blocks) * kThreads;
#pragma unroll 1
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

__device__ __noinline__ void check_codes(const Context& context, const Task& task, int32_t group, const Live& live,
                                         int64_t part) {
  const int64_t rows = live_rows(task, live, task.rows);
  CodeFind find{live.pass, {}};
  // Vectors find whole words as long as a row is made of them; a word that lies across two rows counts for a tensor in
  // one piece.
  if (task.sparse)
    walk_chosen(task, rows, 0, live.pass, part, find);
  else if (task.walk == Walk::kVectors || (task.walk == Walk::kFlat && task.inner * task.columns % kVectorBytes == 0))
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

// --- probability rows

__device__ inline bool off_by_sum(double sum) {
  return !(sum - 1 <= kProbabilitySumTolerance && sum - 1 >= -kProbabilitySumTolerance);
}

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

// The way back after a row was seen that is not finite, negative or off its sum.
__device__ __noinline__ void find_in_probabilities(const Context& context, const Task& task, int32_t group,
                                                   int64_t row) {
  std::byte* from = task.data + row * task.row_stride * static_cast<int64_t>(sizeof(float));
  const int64_t first = row * task.columns;
  FloatFind find{task.exponent, task.one, task.top, task.sentinel, task.element_bytes, {}, {}};
  walk_run(from, first, task.columns, sizeof(float), 0, 1, find);
  if (gather(find.nonfinite)) record(context, task, group, DeviceCheck::kNonfinite, find.nonfinite, Extra{});
  if (task.look_for_poison && gather(find.unwritten))
    record(context, task, group, DeviceCheck::kUnwritten, find.unwritten, Extra{});
  NegativeFind negative;
  walk_run(from, first, task.columns, sizeof(float), 0, 1, negative);
  const bool any = __syncthreads_or(negative.negative.count != 0 ? 1 : 0) != 0;
  if (gather(negative.negative)) record(context, task, group, DeviceCheck::kNegative, negative.negative, Extra{});
  if (any || threadIdx.x != 0) return;
  // In the order of the columns, as the host adds.
  double exact = 0;
#pragma unroll 1
  for (int64_t c = 0; c < task.columns; ++c)
    exact += static_cast<double>(float_from_bits(load_any<uint32_t>(from + c * 4)));
  if (!off_by_sum(exact)) return;
  Seen seen;
  seen.note(static_cast<uint64_t>(row), float_bits(static_cast<float>(exact)));
  Extra extra;
  memcpy(&extra.values[0], &exact, sizeof exact);
  record(context, task, group, DeviceCheck::kSum, seen, extra);
}

// A row in parts; the block that adds the last one looks at the whole.
__device__ __noinline__ void check_probabilities(const Context& context, const Task& task, int32_t group,
                                                 const Live& live, int64_t part) {
  __shared__ double sums[kThreads];
  __shared__ bool wrong;
  const int64_t rows = live_rows(task, live, task.rows);
  const int64_t length = (task.columns / task.split / kVectorElements + 1) * kVectorElements;  // of a part
#pragma unroll 1
  for (int64_t unit = part; unit < rows * task.split; unit += task.blocks) {
    const int64_t row = unit / task.split;
    const int64_t begin = smaller((unit - row * task.split) * length, task.columns);
    std::byte* from = task.data + (row * task.row_stride + begin) * static_cast<int64_t>(sizeof(float));
    ProbabilityTest test;
    walk_run(from, 0, smaller(length, task.columns - begin), sizeof(float), 0, 1, test);
    sums[threadIdx.x] = test.sum;
    const bool hit = __syncthreads_or(test.hit != 0 ? 1 : 0) != 0;
    for (int step = kThreads / 2; step > 0; step /= 2) {
      if (static_cast<int>(threadIdx.x) < step) sums[threadIdx.x] += sums[threadIdx.x + step];
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      RowSum& all = reinterpret_cast<RowSum*>(task.sums)[row];
      atomicAdd(&all.sum, sums[0]);
      if (hit) atomicOr(&all.hit, 1u);
      __threadfence();
      wrong = false;
      if (atomicAdd(&all.parts, 1u) + 1 == static_cast<uint32_t>(task.split)) {
        __threadfence();
        volatile RowSum* done = &all;
        wrong = done->hit != 0 || off_by_sum(done->sum);
        done->sum = 0;
        done->hit = 0;
        done->parts = 0;
      }
    }
    __syncthreads();
    if (wrong) find_in_probabilities(context, task, group, row);
    __syncthreads();
  }
}

// --- canaries

__device__ __noinline__ void check_canaries(const Context& context, const Task& task, int32_t group, int64_t part) {
  constexpr uint32_t kCanary = 0xC5C5C5C5u;  // Buffer::kCanary, four times
  constexpr int64_t kVectors = kCanaryBytes / kVectorBytes;
  const int64_t stride = static_cast<int64_t>(task.blocks) * kThreads;
  Seen seen;
#pragma unroll 1
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
#pragma unroll 1
    for (int k = 0; k < kVectorBytes; ++k) {
      const uint32_t byte = (words[k / 4] >> (8 * (k % 4))) & 0xFF;
      if (byte != (kCanary & 0xFF)) seen.note(static_cast<uint64_t>(i * kVectorBytes + k), byte);
    }
  }
  if (__syncthreads_or(seen.count != 0 ? 1 : 0) == 0) return;
  if (gather(seen)) record(context, task, group, DeviceCheck::kCanary, seen, Extra{});
}

}  // namespace faultline::device_checks
