#include "base/memory.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "testing.h"

using namespace faultline;
namespace fs = std::filesystem;

namespace {
struct Roots {
  fs::path folder = fs::temp_directory_path() / ("faultline-memory-" + std::to_string(::getpid()));
  Roots() {
    fs::create_directories(folder / "self");
    fs::create_directories(folder / "cg/a/b");
  }
  ~Roots() { fs::remove_all(folder); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder / name) << text; }
  uint64_t available() const { return available_memory(folder.string(), (folder / "cg").string()); }
};
}  // namespace

TEST_CASE("available memory is the kernel's estimate, or what a control group has left") {
  const Roots roots;
  CHECK(roots.available() == 0);
  roots.write("meminfo", "MemTotal:  2000 kB\nMemAvailable:    1000 kB\n");
  CHECK(roots.available() == 1'024'000);
  roots.write("self/cgroup", "0::/a/b\n");
  CHECK(roots.available() == 1'024'000);
  roots.write("cg/a/b/memory.max", "max\n");
  roots.write("cg/a/b/memory.current", "5\n");
  CHECK(roots.available() == 1'024'000);
  roots.write("cg/a/memory.max", "300000\n");
  roots.write("cg/a/memory.current", "100000\n");
  CHECK(roots.available() == 200'000);
  roots.write("cg/a/memory.current", "400000\n");
  CHECK(roots.available() == 0);
}

TEST_CASE("this machine has memory available") {
  CHECK(available_memory() > 0);
}
