// How much of the machine's memory this process may use.
#pragma once

#include <cstdint>
#include <string>

namespace faultline {

// Bytes that can be taken without swapping: the kernel's estimate (MemAvailable), or less where a control group above
// us has less left (v2 memory.max). 0 when the system does not tell. The roots are arguments for tests.
uint64_t available_memory(const std::string& proc_root = "/proc", const std::string& cgroup_root = "/sys/fs/cgroup");

}  // namespace faultline
