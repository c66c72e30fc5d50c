// The tables of the check kernels: which tasks (device_tasks.h) each launch of a pass has, from the pass's ops.
#pragma once

#include <map>
#include <vector>

#include "check/device_checks.h"
#include "check/device_tasks.h"

namespace faultline::device_checks {

struct Tables {
  std::vector<Task> tasks;
  std::vector<uint32_t> task_of_block;
  // By group. `joint`: the group's check and the poison of the one after it, where one launch can do both.
  std::map<int, Launch> poison, check, rest, joint;
  std::vector<Launch> indices;  // one an op; 0 blocks: none
  int32_t states = 1;           // 0 is for canaries
  int64_t sum_words = 0;        // of 8 bytes, zero at first; Task::sums are offsets until put_sums
  // Once their memory is there.
  void put_sums(std::byte* memory);
};

// `canaries`: pairs of addresses in device memory. `blocks`: of a launch in one wave. Errors: a tensor that no check
// can read.
Result<Tables> make_tables(const std::vector<Op>& ops, const std::vector<int>& groups,
                           const DeviceCheckOptions& options, const std::byte* const* canaries, int64_t canary_count,
                           int64_t blocks);

// Whether the check of some tasks and the poison of others can be one launch: no block poisons what another one reads.
// The result, or nothing.
std::vector<Task> join(std::vector<Task> checks, std::vector<Task> poisons);

}  // namespace faultline::device_checks
