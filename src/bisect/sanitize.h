// compute-sanitizer around a worker: how it is started, and the first error of its log as data.
//
// The log is another program's text, so nothing of it is trusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace faultline {

struct SanitizerError {
  std::string what;     // "Invalid __global__ write of size 4 bytes"
  std::string kernel;   // as the tool prints it; empty: an error of a call, or not said
  std::string source;   // "src/bisect/cuda_plants.cu"
  int64_t line = 0;     // 0: not known
  std::string thread;   // "(37,0,0)"
  std::string block;    // "(1,0,0)"
  std::string address;  // "0x7f0012345678"
  int64_t size = 0;     // bytes of the access; 0: not said
  std::string detail;   // "Address 0x… is out of bounds"
};

struct SanitizerReport {
  std::optional<SanitizerError> first;
  int64_t errors = 0;     // by the tool's own summary
  bool complete = false;  // a summary was there
};

SanitizerReport parse_sanitizer_log(std::string_view log);

// memcheck, racecheck, initcheck, synccheck.
const std::vector<std::string>& sanitizer_tools();

// The beginning of a worker's command line: the program and its options, up to our own program, which is the last.
// Cannot-run when compute-sanitizer is not there; bad input for an unknown tool.
Result<std::vector<std::string>> sanitizer_command(const std::string& tool, const std::string& log);

// "Invalid __global__ write of size 4 bytes at 0x… in planted_illegal_access (src/…cu:31), block (1,0,0), thread
// (37,0,0); 3 errors in all"
std::string sanitizer_sentence(const std::string& tool, const SanitizerReport& report);

}  // namespace faultline
