#include "base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

namespace faultline {

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// "max 100000" or "150000 100000".
double quota_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || !(period > 0)) return kUnlimited;
  std::istringstream number(quota);
  double value = 0;
  if (!(number >> value) || !(value > 0)) return kUnlimited;
  return value / period;
}

double quota_v1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota = -1;
  double period = 0;
  if (!(quota_file >> quota) || !(period_file >> period) || !(quota > 0) || !(period > 0)) return kUnlimited;
  return quota / period;
}

// The tightest quota of `path` and of every folder above it, up to and with `root`.
template <class Quota>
double tightest(const std::string& root, std::string path, Quota quota) {
  double cpus = quota(root);
  while (path.size() > 1) {
    cpus = std::min(cpus, quota(root + path));
    path.resize(path.find_last_of('/'));
  }
  return cpus;
}

}  // namespace

int usable_cpus(const std::string& proc_root, const std::string& cgroup_root) {
  double cpus = static_cast<double>(std::max(1u, std::thread::hardware_concurrency()));
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cpus = static_cast<double>(CPU_COUNT(&set));

  // Lines "0::/path" (v2) and "4:cpu,cpuacct:/path" (v1).
  std::ifstream groups(proc_root + "/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") cpus = std::min(cpus, tightest(cgroup_root, path, quota_v2));
    if (controllers.find(",cpu,") != std::string::npos)
      cpus = std::min(cpus, tightest(cgroup_root + "/cpu", path, quota_v1));
  }
  return std::max(1, static_cast<int>(std::ceil(cpus)));
}

}  // namespace faultline
