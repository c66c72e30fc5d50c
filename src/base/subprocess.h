// A child process that cannot outlive us, cannot leak descriptors, and whose end can be told in full.
//
// The child gets: exactly the descriptors asked for at exactly the numbers asked for; /dev/null as stdin; stdout and
// stderr captured together (the last bytes are kept); default signal handlers; its own process group, so that a
// terminal's Ctrl-C reaches only us; no core file; SIGKILL from the kernel when the thread that started it ends, be it
// by kill -9. Start children from a thread that lives as long as they may.
//
// It is started by vfork, so that the price does not grow with our memory and no at-fork handler of a library runs.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace faultline {

inline constexpr int kFirstPassedFd = 3;

// Our descriptor `from` is the child's descriptor `to` (>= kFirstPassedFd, each used once).
struct PassedFd {
  int from = -1;
  int to = -1;
};

struct SpawnOptions {
  std::string program =
      "/proc/self/exe";                // a path; the child runs the very binary that we run, even if it was replaced
  std::vector<std::string> arguments;  // argv, with argv[0]
  // "NAME=value": added to our own environment, or in the place of what it says.
  std::vector<std::string> environment;
  std::vector<PassedFd> fds;
  // Bytes; 0: unlimited. The data limit counts private writable memory (heap, stacks of threads), not shared mappings
  // of weights; the address space limit counts every mapping, and is of no use to a process with a CUDA context.
  uint64_t data_limit = 0;
  uint64_t address_space_limit = 0;
  size_t output_tail = size_t{16} << 10;  // bytes of stdout and stderr kept
};

struct SpawnFailure {
  Error error;
  bool transient = false;  // out of processes, memory or descriptors: worth another try later
};

// How a process ended: by exit(code) or by a signal (code is then its number).
struct ProcessEnd {
  bool signalled = false;
  int code = 0;
  double user_seconds = 0;
  double system_seconds = 0;
  int64_t max_resident_bytes = 0;
};

// The last `limit` bytes of a stream.
class TailBuffer {
 public:
  explicit TailBuffer(size_t limit) : limit_(limit) {}
  void append(std::string_view text);
  const std::string& text() const { return text_; }
  bool cut() const { return cut_; }

 private:
  size_t limit_;
  std::string text_;
  bool cut_ = false;
};

class Subprocess {
 public:
  static tl::expected<Subprocess, SpawnFailure> spawn(const SpawnOptions& options);
  Subprocess(Subprocess&& other) noexcept;
  Subprocess& operator=(Subprocess&&) = delete;
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;
  // Kills the group and reaps, if that has not happened.
  ~Subprocess();

  pid_t pid() const { return pid_; }
  // Readable when the child has ended; -1 on kernels before 5.3 (then ask try_reap now and again).
  int exit_fd() const { return exit_fd_.get(); }
  // Readable when output() can grow; -1 after its end.
  int output_fd() const { return output_fd_.get(); }
  // Takes what has been written so far. Never blocks.
  void read_output();
  const std::string& output() const { return output_.text(); }

  // Kills the child and whatever it started in its group. A no-op once it is reaped.
  void kill_group();
  // The end of the child, if it has ended. What is left of its group is killed.
  std::optional<ProcessEnd> try_reap();
  ProcessEnd reap();  // waits

 private:
  Subprocess(pid_t pid, UniqueFd exit_fd, UniqueFd output_fd, size_t output_tail);
  ProcessEnd collect();

  pid_t pid_ = -1;
  UniqueFd exit_fd_;
  UniqueFd output_fd_;
  TailBuffer output_;
  std::optional<ProcessEnd> end_;
};

// "SIGSEGV"; "signal 63" for one without a name.
std::string signal_name(int signal);

}  // namespace faultline
