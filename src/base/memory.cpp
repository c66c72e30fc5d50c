#include "base/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

namespace faultline {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kKibi = 1024;

// "max" or a number of bytes.
std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

uint64_t left_in_group(const std::string& folder) {
  const auto most = number_in(folder + "/memory.max");
  const auto current = number_in(folder + "/memory.current");
  if (!most || !current) return kUnlimited;
  return *most > *current ? *most - *current : 0;
}

}  // namespace

uint64_t available_memory(const std::string& proc_root, const std::string& cgroup_root) {
  uint64_t bytes = 0;
  std::ifstream meminfo(proc_root + "/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    constexpr std::string_view kKey = "MemAvailable:";
    if (line.starts_with(kKey)) bytes = std::strtoull(line.c_str() + kKey.size(), nullptr, 10) * kKibi;
  }
  std::ifstream groups(proc_root + "/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    constexpr std::string_view kUnified = "0::";
    if (!line.starts_with(kUnified)) continue;
    for (std::string path = line.substr(kUnified.size()); path.size() > 1; path.resize(path.find_last_of('/')))
      bytes = std::min(bytes, left_in_group(cgroup_root + path));
  }
  return bytes;
}

}  // namespace faultline
