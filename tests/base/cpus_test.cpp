#include "base/cpus.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "testing.h"

using namespace faultline;

namespace {

namespace fs = std::filesystem;

struct Roots {
  Roots() : folder(fs::temp_directory_path() / ("faultline-cpus-" + std::to_string(::getpid()))) {
    fs::create_directories(folder);
  }
  ~Roots() { fs::remove_all(folder); }
  Roots(const Roots&) = delete;
  Roots& operator=(const Roots&) = delete;
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((folder / path).parent_path());
    std::ofstream(folder / path) << text;
  }
  int cpus() const { return usable_cpus((folder / "proc").string(), (folder / "cgroup").string()); }
  fs::path folder;
};

}  // namespace

TEST_CASE("without a quota the affinity counts") {
  const Roots roots;
  const int free = roots.cpus();
  CHECK(free >= 1);
  roots.write("proc/self/cgroup", "0::/a/b\n");
  roots.write("cgroup/a/b/cpu.max", "max 100000\n");
  CHECK(roots.cpus() == free);
}

TEST_CASE("a quota of this group or of one above it counts, rounded up") {
  const Roots roots;
  roots.write("proc/self/cgroup", "0::/a/b\n");
  roots.write("cgroup/a/b/cpu.max", "max 100000\n");
  roots.write("cgroup/a/cpu.max", "50000 100000\n");
  CHECK(roots.cpus() == 1);
}

TEST_CASE("a quota of version 1 counts") {
  const Roots roots;
  roots.write("proc/self/cgroup", "12:memory:/x\n4:cpu,cpuacct:/a\n");
  roots.write("cgroup/cpu/a/cpu.cfs_quota_us", "90000\n");
  roots.write("cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  CHECK(roots.cpus() == 1);
}

TEST_CASE("nonsense in these files is ignored") {
  const Roots roots;
  const int free = roots.cpus();
  roots.write("proc/self/cgroup", "nonsense\n0:\n::\n0::/a\n");
  roots.write("cgroup/a/cpu.max", "x y\n");
  CHECK(roots.cpus() == free);
}
