// A folder of a test's own, gone when the test ends.
#pragma once

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "testing.h"

struct TemporaryFolder {
  TemporaryFolder() {
    char pattern[] = "/tmp/faultline-test-XXXXXX";
    REQUIRE(::mkdtemp(pattern) != nullptr);
    path = pattern;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  // The file's path.
  std::string file(const std::string& name, const std::string& text, bool program = false) const {
    std::ofstream(path + "/" + name) << text;
    if (program) ::chmod((path + "/" + name).c_str(), 0700);
    return path + "/" + name;
  }
  std::string path;
};
