// The program as a user meets it: started with arguments, seen by its exit code, its output and its files.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace faultline {

// A folder that goes away with its contents.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // The file's path.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  std::string path_;
};

std::string read_text(const std::string& path);  // "" when there is none
bool exists(const std::string& path);
std::vector<std::string> files_in(const std::string& folder);  // names, sorted

struct Outcome {
  int code = -1;   // of exit; -1 when it died of a signal
  int signal = 0;  // 0 when it exited
  bool timed_out = false;
  std::string out;
  std::string err;
};

inline constexpr std::chrono::seconds kPatience{120};  // far more than any case needs, even under sanitizers

// A program in the background. Orphans of it become our children, so that they can be seen.
class Running {
 public:
  // `program` is looked up in PATH when it has no slash; `environment` entries are NAME=value, on top of ours.
  Running(const std::string& program, const std::vector<std::string>& arguments,
          const std::vector<std::string>& environment = {});
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  void kill(int signal) const;
  Outcome wait(std::chrono::seconds patience = kPatience);
  // Whether every process that it started has ended; waits a few seconds for that. Call after wait().
  static bool nothing_left();

 private:
  TempDir folder_;
  pid_t pid_ = -1;
  std::optional<Outcome> outcome_;
};

Outcome run_program(const std::string& program, const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment = {});
// Our program.
Outcome faultline(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

// One run of `bisect` in a folder of its own.
struct Bisection {
  Outcome outcome;
  std::string directory;  // of the run; "" when there is none
  nlohmann::json findings;

  // The row with these axes (and plant); fails the test when there is not exactly one.
  const nlohmann::json& row(const std::vector<std::pair<std::string, std::string>>& axes,
                            const std::string& plant = "") const;
  std::vector<std::string> verdicts() const;  // of the rows, in order
};
// `experiment` is YAML. Writes to `folder`.
Bisection bisect(const TempDir& folder, const std::string& experiment, std::vector<std::string> arguments = {},
                 const std::string& program = "");

// The only run directory under `parent`.
std::string run_directory_in(const std::string& parent);

// Short probes: a chunked prefill with a prefix, and a decode step of two requests beyond top-k. Worker runs take 0.1
// s.
inline const char* const kQuickProbes =
    "probes:\n"
    "  prefill: {lengths: [17], chunk: 16}\n"
    "  decode: {contexts: [20], batch: [2], steps: 1}\n";

}  // namespace faultline
