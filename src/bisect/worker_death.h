// What a worker's end means: from exit codes, signals and the driver's own doings to a verdict and a sentence.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/subprocess.h"
#include "bisect/progress.h"

namespace faultline {

// Why the driver killed a worker.
enum class StopReason : uint8_t {
  kNone,
  kWatchdog,      // no progress for `limit_s`
  kLingered,      // finished, or closed its event pipe, and still lived after `limit_s`
  kCorruptEvent,  // `detail` is the decoder's error
  kCancelled,
};

// All that the driver knows about one ended worker.
struct WorkerFacts {
  ProcessEnd end;
  StopReason stopped = StopReason::kNone;
  double limit_s = 0;
  std::string detail;
  bool done = false;                    // "done" came
  std::string exception;                // what() of the "exception" event
  std::string error;                    // message of the "error" event
  std::optional<bool> kernel_oom_kill;  // did the kernel's out-of-memory killer act meanwhile? unset: cannot be known
  uint64_t memory_limit = 0;            // bytes; 0: none was set
  std::string output;                   // the last of stdout and stderr
  bool dump_asked = false;              // a worker that hung was asked for a core dump of its GPU, of which it may end
  std::string core_file;                // path of the dump; empty: there is none
  ProgressSnapshot progress;
  double seconds = 0;
};

struct Death {
  // Empty: it ended as it should, after "done". Else "crash", "abort", "hang", "oom", or "skipped" when cancelled; and
  // where a core dump of the GPU was written "device-assert", "illegal-access" or "launch-failure", however it ended.
  std::string verdict;
  std::string message;  // a sentence without its full stop, naming the op
  WorkerFacts facts;

  bool ended_well() const { return verdict.empty(); }
};

Death explain_death(WorkerFacts facts);

// For the journal. The check records of the page are in it too.
nlohmann::json death_to_json(const Death& death);
// Bad input, with `where`, when it is not what death_to_json writes.
Result<Death> death_from_json(const nlohmann::json& json, std::string_view where);

// How often the kernel's out-of-memory killer has acted since boot (on a host: for any container); nothing where the
// kernel does not say.
std::optional<int64_t> kernel_oom_kills(const std::string& vmstat = "/proc/vmstat");

}  // namespace faultline
