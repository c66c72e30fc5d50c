// How many cores this process may really use.
#pragma once

#include <string>

namespace faultline {

// The smallest of the scheduling affinity and the CPU quota of the control groups above us (v2 cpu.max, v1
// cpu.cfs_quota_us; rounded up), at least 1. The roots are arguments for tests.
int usable_cpus(const std::string& proc_root = "/proc", const std::string& cgroup_root = "/sys/fs/cgroup");

}  // namespace faultline
