// compute-sanitizer around a worker: how it is started, and the first error of its log as data.
//
// The log is another program's text, so nothing of it is trusted.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace faultline {

struct SanitizerError {
  std::string what;     // "Invalid __global__ write of size 4 bytes"
  std::string kernel;   // as the tool prints it; empty: not said
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
// Bad input for a tool that there is not.
Status check_sanitizer_tool(const std::string& tool);

// One run of a worker under a tool.
class SanitizerRun {
 public:
  // `cuda`: whether the worker's kernels run on a GPU. Cannot-run when not, and when compute-sanitizer is not there.
  static Result<SanitizerRun> prepare(const std::string& tool, bool cuda);
  SanitizerRun(SanitizerRun&& other) noexcept;
  SanitizerRun& operator=(SanitizerRun&&) = delete;
  SanitizerRun(const SanitizerRun&) = delete;
  SanitizerRun& operator=(const SanitizerRun&) = delete;
  ~SanitizerRun();  // removes the log

  const std::string& tool() const { return tool_; }
  // The beginning of a worker's command line: the program and its options, up to our own program, which is the last.
  const std::vector<std::string>& command() const { return command_; }
  // What the log holds once the worker has ended.
  SanitizerReport report() const;

 private:
  SanitizerRun() = default;
  std::string tool_;
  std::string folder_;
  std::vector<std::string> command_;
};

// How much longer a worker may be without progress under a tool.
inline constexpr double kSanitizerSlowdown = 20;

// The verdict of a run in which the tool found its first error: the run's own where that says more. A memcheck error is
// an illegal access even where the run went well.
std::string verdict_with_sanitizer(const std::string& verdict, const std::string& tool, const SanitizerReport& report);

nlohmann::json to_json(const std::string& tool, const SanitizerReport& report);

// "Invalid __global__ write of size 4 bytes at 0x… in planted_illegal_access (src/…cu:31), block (1,0,0), thread
// (37,0,0); 3 errors in all"
std::string sanitizer_sentence(const std::string& tool, const SanitizerReport& report);

}  // namespace faultline
