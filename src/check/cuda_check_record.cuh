// What a block has seen, and its record in host memory.
#pragma once

#include "check/cuda_check_memory.cuh"
#include "check/device_record.h"

namespace faultline::device_checks {

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

}  // namespace faultline::device_checks
