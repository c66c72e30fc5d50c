// Index tensors, in two steps. Right behind its op, what a consumer could die of: every entry lies in its range, -1
// only in the tail. With its group, what costs more to ask: no entry twice, each one's slot among its request's.
#pragma once

#ifdef __CUDACC__
#include <cuda_pipeline.h>
#endif

#include "check/cuda_check_record.cuh"

namespace faultline::device_checks {

// One row of indices: what find_bad_index (inspect.cpp) knows of it. Of a flat tensor the one row is the whole of it,
// and each entry has an owner of its own.
struct IndexRow {
  const Task* task = nullptr;
  int64_t row = 0;
  int64_t columns = 0;
  int64_t expected = 0;
  int64_t owner = -1;  // row of the page table; -1: nobody is asked
  int64_t owned = 0;   // entries of it

  __device__ const int32_t* address(int64_t column) const {
    const int64_t at_row = task->flat ? column : row;
    const int64_t at_column = task->flat ? 0 : column;
    return reinterpret_cast<const int32_t*>(task->data) + at_row * task->row_stride + at_column;
  }
  __device__ int32_t value(int64_t column) const { return *address(column); }  // poisoned after the check
  __device__ const int32_t* table_row(int64_t number) const { return task->table.data + number * task->table.stride; }
  __device__ bool owns(int64_t number, int64_t count, int64_t slot) const {
    const int32_t* slots = table_row(number);
#pragma unroll 1
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
  const int64_t length = at(task.owner_lengths, row);
  if (request < 0 || request >= task.table_rows) return;
  owner = request;
  owned = clamp(length, 0, task.table.count);
}

// The host's verdict on one entry, plainly. Only asked for when something is wrong.
__device__ inline int64_t cause_of(const IndexRow& r, int64_t column, int64_t& owner) {
  const Task& task = *r.task;
  const int64_t value = r.value(column);
  owner = r.owner;
  if (task.tail && column >= r.expected) return value == -1 ? kSound : kTail;
  if (value < task.begin || value >= task.end) return kRange;
  if (task.unique) {
#pragma unroll 1
    for (int64_t c = 0; c < column; ++c)
      if (r.value(c) == value) return kTwice;
  }
  int64_t owned = r.owned;
  if (task.flat) find_owner(task, column, owner, owned);
  if (owner >= 0 && !r.owns(owner, owned, value)) return kForeign;
  return 0;
}

// --- the first step

// An entry, whether it is looked at, and how many entries of its row are valid.
struct Entry {
  int32_t value = 0;
  bool live = false;
  bool in_tail = false;
  int64_t expected = 1;

  __device__ bool is_poison(const Task& task) const { return live && value == kIntPoison && task.look_for_poison; }
  __device__ int64_t cause(const Task& task) const {
    if (!live) return kSound;
    if (in_tail) return value == -1 ? kSound : kTail;
    return value < task.begin || value >= task.end ? kRange : kSound;
  }
};

// Of all entries of a tensor, numbered row by row.
__device__ inline Entry entry_at(const Task& task, uint32_t number, uint32_t columns) {
  const int64_t row = number / columns;
  const int64_t column = number - row * columns;
  Entry entry;
  entry.value = reinterpret_cast<const int32_t*>(task.data)[row * task.row_stride + column];
  if (task.flat) {
    entry.live = true;
    return entry;
  }
  const int64_t end = live_columns(task, row, 0);
  entry.live = column < end;
  entry.expected = task.valid.data != nullptr && row < task.valid.count ? clamp(at(task.valid, row), 0, end) : end;
  entry.in_tail = task.tail && column >= entry.expected;
  return entry;
}

__device__ inline void check_ranges(const Context& context, const Task& task, int32_t group, const Live& live,
                                    int64_t part) {
  constexpr uint32_t kAhead = 4;
  const uint32_t columns = static_cast<uint32_t>(task.flat ? 1 : task.columns);
  const uint32_t total = static_cast<uint32_t>(live_rows(task, live, task.rows)) * columns;
  const uint32_t first = static_cast<uint32_t>(part) * kThreads + threadIdx.x;
  const uint32_t stride = static_cast<uint32_t>(task.blocks) * kThreads;
  bool bad = false;
#pragma unroll 1
  for (uint32_t base = first; base < total; base += kAhead * stride) {
    Entry entries[kAhead];
#pragma unroll
    for (uint32_t k = 0; k < kAhead; ++k) {
      const uint32_t i = base + k * stride;
      entries[k] = entry_at(task, i < total ? i : base, columns);
    }
#pragma unroll
    for (uint32_t k = 0; k < kAhead; ++k) bad = bad || entries[k].cause(task) != kSound || entries[k].is_poison(task);
  }
  if (__syncthreads_or(bad ? 1 : 0) == 0) return;
  Seen bounds;
  Seen unwritten;
  Extra extra;
#pragma unroll 1
  for (uint32_t i = first; i < total; i += stride) {
    const Entry entry = entry_at(task, i, columns);
    const int64_t cause = entry.cause(task);
    if (cause != kSound) {
      if (i < bounds.first) extra = Extra{{entry.value, entry.expected, cause, -1}};
      bounds.note(i, static_cast<uint32_t>(entry.value));
    }
    if (entry.is_poison(task)) unwritten.note(i, static_cast<uint32_t>(entry.value));
  }
  if (gather(bounds)) record(context, task, group, DeviceCheck::kBounds, bounds, extra);
  if (gather(unwritten)) record(context, task, group, DeviceCheck::kUnwritten, unwritten, Extra{});
}

// --- the second step

// Entries of a row, or of its request's list of slots, on their way into shared memory: all of a batch at once.
inline constexpr int kRowBatch = 8 * kThreads;
inline constexpr int kOwnedBatch = 17 * kThreads;  // a context of 4096 and some more

__device__ inline void fetch(int32_t* to, const int32_t* from) {
#if defined(__CUDA_ARCH__)
  __pipeline_memcpy_async(to, from, sizeof(int32_t));
#else
  *to = *from;
#endif
}
__device__ inline void await_fetched() {
#if defined(__CUDA_ARCH__)
  __pipeline_commit();
  __pipeline_wait_prior(0);
#endif
  __syncthreads();
}

// Whether an entry in its range stands in a row twice, or is nobody's, in time linear in the row. A bitmap of a window
// of slots at a time: of those that the request owns, from which each entry takes its own away, or, where nobody is
// asked, of those that were not seen yet. Slots that follow each other lie in different words, so that threads which
// set them do not wait for each other.
__device__ __noinline__ bool suspicious(const IndexRow& r, int64_t begin, int64_t end) {
  __shared__ uint4 vectors[kWindowBits / 128];
  __shared__ int32_t row_batch[kRowBatch];
  __shared__ int32_t owned_batch[kOwnedBatch];
  uint32_t* open = reinterpret_cast<uint32_t*>(vectors);
  const Task& task = *r.task;
  const bool owned = r.owner >= 0 && !task.flat;
  const bool unique = task.unique;
  const int32_t first = static_cast<int32_t>(task.begin);
  const uint32_t range = static_cast<uint32_t>(task.end > task.begin ? task.end - task.begin : 0);
  const int32_t from = static_cast<int32_t>(begin);
  const int32_t to = static_cast<int32_t>(task.tail ? smaller(r.expected, end) : end);
  const int32_t count = static_cast<int32_t>(r.owned);
  const int32_t* slots = owned ? r.table_row(r.owner) : nullptr;
  const int32_t* entries = r.address(0);
  const int64_t step = task.flat ? task.row_stride : 1;
  const int32_t me = static_cast<int32_t>(threadIdx.x);
  int shift = 2;  // a window has 32 << shift slots, its words are vectors
#pragma unroll 1
  while ((uint32_t{32} << shift) < range && (32 << shift) < kWindowBits) ++shift;
  const uint32_t window_slots = 32u << shift;
  const uint32_t word_mask = (1u << shift) - 1;
  bool bad = false;
#pragma unroll 1
  for (uint32_t window = 0; window < range; window += window_slots) {
    const uint32_t window_end = range - window < window_slots ? range - window : window_slots;
    const uint32_t fill = owned ? 0 : ~0u;
    __syncthreads();
#pragma unroll 1
    for (uint32_t w = threadIdx.x; w <= word_mask / 4; w += kThreads) vectors[w] = make_uint4(fill, fill, fill, fill);
      // Both first batches are on their way together.
#pragma unroll 1
    for (int32_t c = me; c < kRowBatch && from + c < to; c += kThreads)
      fetch(&row_batch[c], entries + (from + c) * step);
#pragma unroll 1
    for (int32_t base = 0; owned && base < count; base += kOwnedBatch) {
      __syncthreads();
#pragma unroll 1
      for (int32_t c = me; c < kOwnedBatch && base + c < count; c += kThreads) fetch(&owned_batch[c], slots + base + c);
      await_fetched();
#pragma unroll 1
      for (int32_t c = me; c < kOwnedBatch && base + c < count; c += kThreads) {
        const uint32_t bit = static_cast<uint32_t>(owned_batch[c] - first) - window;
        if (bit < window_end) atomicOr(&open[bit & word_mask], 1u << (bit >> shift));
      }
    }
#pragma unroll 1
    for (int32_t base = from; base < to; base += kRowBatch) {
      if (base != from) {
        __syncthreads();
#pragma unroll 1
        for (int32_t c = me; c < kRowBatch && base + c < to; c += kThreads)
          fetch(&row_batch[c], entries + (base + c) * step);
      }
      await_fetched();
#pragma unroll 1
      for (int32_t c = me; c < kRowBatch && base + c < to; c += kThreads) {
        const uint32_t bit = static_cast<uint32_t>(row_batch[c] - first) - window;
        if (bit >= window_end) continue;
        const uint32_t mask = 1u << (bit >> shift);
        const uint32_t before =
            unique ? atomicAnd(&open[bit & word_mask], ~mask) : (owned ? open[bit & word_mask] : mask);
        bad = bad || (before & mask) == 0;
      }
    }
    if (!unique && !owned) break;
  }
  if (task.flat && task.table.data != nullptr) {
#pragma unroll 1
    for (int32_t c = from + me; c < to; c += kThreads) {
      const int64_t value = r.value(c);
      int64_t owner;
      int64_t number;
      find_owner(task, c, owner, number);
      bad = bad || (value >= task.begin && value < task.end && owner >= 0 && !r.owns(owner, number, value));
    }
  }
  return __syncthreads_or(bad ? 1 : 0) != 0;
}

__device__ __noinline__ void find_bad(const Context& context, int32_t group, const IndexRow& r, int64_t begin,
                                      int64_t end) {
  const Task& task = *r.task;
  Seen bounds;
  Extra extra;
#pragma unroll 1
  for (int64_t c = begin + threadIdx.x; c < end; c += kThreads) {
    int64_t owner = -1;
    const int64_t cause = cause_of(r, c, owner);
    if (cause != kTwice && cause != kForeign) continue;
    const int64_t value = r.value(c);
    const uint64_t index = static_cast<uint64_t>(task.flat ? c : r.row * task.columns + c);
    if (index < bounds.first) extra = Extra{{value, task.flat ? 1 : r.expected, cause, owner}};
    bounds.note(index, static_cast<uint32_t>(value));
  }
  if (gather(bounds)) record(context, task, group, DeviceCheck::kBounds, bounds, extra);
}

__device__ __noinline__ void check_indices(const Context& context, const Task& task, int32_t group, const Live& live,
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
#pragma unroll 1
  for (r.row = part; r.row < rows; r.row += task.blocks) {
    r.columns = live_columns(task, r.row, 0);
    r.expected = r.columns;
    if (task.valid.data != nullptr && r.row < task.valid.count) r.expected = clamp(at(task.valid, r.row), 0, r.columns);
    find_owner(task, r.row, r.owner, r.owned);
    if (suspicious(r, 0, r.columns)) find_bad(context, group, r, 0, r.columns);
  }
}

}  // namespace faultline::device_checks
