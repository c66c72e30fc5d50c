// The bodies of the check kernels: one block works on one part of one task (device_tasks.h).
//
// Whether anything is wrong is asked with integer operations on 16-byte loads. Only a block that has seen something
// goes over its part again, element by element, for the first index, its bits and the count.
#pragma once

#include "check/cuda_check_caches.cuh"
#include "check/cuda_check_indices.cuh"
#include "check/cuda_check_values.cuh"

namespace faultline::device_checks {

// A dependent launch's kernel waits here until all earlier work of the stream is done and visible. Before that it may
// read what was there when the pass began: tasks and live counts. The kernel after it may be brought in meanwhile.
__device__ inline void wait_for_earlier_work() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

// The block's task, where every thread finds it at once.
__device__ inline const Task& fetch_task(const Context& context, int32_t block) {
  __shared__ uint4 words[sizeof(Task) / kVectorBytes];
  const uint4* from = reinterpret_cast<const uint4*>(context.tasks + context.task_of_block[block]);
  for (uint32_t i = threadIdx.x; i < sizeof(Task) / kVectorBytes; i += kThreads) words[i] = from[i];
  __syncthreads();
  return *reinterpret_cast<const Task*>(words);
}

// The end of the kernel makes it seen: what faults afterwards cannot take it back.
__device__ inline void mark(void* page, int32_t number, bool is_op, bool done, uint64_t pass) {
  volatile DeviceProgress* progress = &static_cast<DeviceCheckPage*>(page)->progress;
  progress->pass = pass;
  if (is_op)
    (done ? progress->op_done : progress->op_begun) = number;
  else
    (done ? progress->group_done : progress->group_begun) = number;
}

// What follows the first broken group is its consequence.
__device__ inline bool is_consequence(const Context& context, int32_t group) {
  const int32_t broken = *static_cast<volatile const int32_t*>(&context.account->broken);
  return broken != 0 && INT32_MAX - broken < group;
}

__device__ inline bool broke_or_suspect(const Context& context, int32_t group) {
  volatile const Account* account = context.account;
  return account->broken == INT32_MAX - group || account->suspect == INT32_MAX - group;
}

__device__ inline void run_check(const Context& context, const Task& task, int32_t group, const Live& live,
                                 int64_t part) {
  switch (task.kind) {
    case TaskKind::kFloats:
      return check_floats(context, task, group, live, part);
    case TaskKind::kIntegers:
      return check_integers(context, task, group, live, part);
    case TaskKind::kCodes:
      return check_codes(context, task, group, live, part);
    case TaskKind::kProbabilities:
      return check_probabilities(context, task, group, live, part);
    case TaskKind::kIndices:
      return check_indices(context, task, group, live, part);
    case TaskKind::kSlots:
      return check_slots(context, task, group, live, part);
    case TaskKind::kNeighbours:
      return neighbours(context, task, group, part, true);
    case TaskKind::kCanaries:
      return check_canaries(context, task, group, part);
    case TaskKind::kMark:
      if (threadIdx.x == 0) mark(context.page, group, false, true, live.pass);
      return;
  }
}

__device__ inline void run_poison(const Context& context, const Task& task, int32_t group, const Live& live,
                                  int64_t part) {
  switch (task.kind) {
    case TaskKind::kFloats:
    case TaskKind::kProbabilities:
    case TaskKind::kIntegers:
      return poison_words(task, live, part);
    case TaskKind::kIndices:
      return poison_index_rows(task, part);
    case TaskKind::kCodes:
      return poison_codes(task, live, part);
    case TaskKind::kSlots:
      return poison_slots(task, live, part);
    case TaskKind::kNeighbours:
      return neighbours(context, task, group, part, false);
    case TaskKind::kMark:
      if (threadIdx.x != 0) return;
      mark(context.page, group, false, false, live.pass);
      if (task.resets) mark(context.page, -1, false, true, live.pass);
      return;
    case TaskKind::kCanaries:
      return;
  }
}

__device__ inline void run_work(const Context& context, const Launch& launch) {
  const int32_t block = launch.first_block + static_cast<int32_t>(blockIdx.x);
  const Task& task = fetch_task(context, block);
  const int64_t part = block - task.first_block;
  const Live live = *context.live;
  wait_for_earlier_work();
  if (launch.if_broken && !broke_or_suspect(context, launch.group)) return;
  // Every check ends behind a barrier that follows its last look, so the poison may be laid at once.
  if (task.work != Work::kPoison && (task.kind == TaskKind::kMark || !is_consequence(context, launch.group)))
    run_check(context, task, launch.group, live, part);
  if (task.work != Work::kCheck) run_poison(context, task, launch.next, live, part);
}

__device__ inline void run_check_indices(const Context& context, const Launch& launch) {
  const int32_t block = launch.first_block + static_cast<int32_t>(blockIdx.x);
  const Task& task = fetch_task(context, block);
  const Live live = *context.live;
  wait_for_earlier_work();
  if (!is_consequence(context, launch.group)) check_ranges(context, task, launch.group, live, block - task.first_block);
}

}  // namespace faultline::device_checks
