// GPU core dumps of workers: the environment that makes the CUDA driver write one, where it comes to lie, how a worker
// that hangs is asked for one, and what NVIDIA's debugger reads from it.
//
// The dumps are light: no memory of the device, so that they take well under a second and some MB (the code). The
// settings must be in the worker's environment before it makes its CUDA context (CUDA-GDB manual, "GPU core dump
// support").
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>
#include <vector>

#include "base/error.h"
#include "report/findings.h"

namespace faultline {

// The beginning of the path of every dump of one task: DIRECTORY/NAME with what no file name should hold replaced.
std::string core_dump_prefix(const std::string& directory, const std::string& name);

// "NAME=value" settings for a worker. After an exception the driver writes a dump, says so on standard error, and
// aborts the process. It may notice the exception only after a wait for the kernel has come back, as if all were well:
// so a worker calls await_late_faults() before it tells its result. (With the flag skip_abort the error is never
// reported.)
std::vector<std::string> core_dump_environment(const std::string& prefix);

struct CoreDumpFiles {
  std::string core;
  std::string pipe;  // written to by whoever wants a dump of a process that hangs
};
CoreDumpFiles core_dump_files(const std::string& prefix, pid_t pid);

// Bytes of a dump that is there; 0: there is none.
uint64_t core_dump_size(const CoreDumpFiles& files);
// False: the process has no CUDA context (nobody reads the pipe).
bool ask_for_core_dump(const CoreDumpFiles& files);
// A pipe that the driver left behind, and a dump without content.
void tidy_core_dump(const CoreDumpFiles& files);

// In a worker with these settings: until an exception of a kernel that has ended would have aborted it. In any other
// process nothing.
void await_late_faults();

// The program by its name: the environment variable `variable` if it is set, else the first in PATH, else in CUDA's
// usual place. Empty: there is none.
std::string find_tool(const char* name, const char* variable);

struct CoreReadOptions {
  std::string debugger;  // empty: find_tool("cuda-gdb", "CUDA_GDB")
  double limit_s = 60;   // then the debugger is killed
  const std::atomic<bool>* cancel = nullptr;
};
// Runs the debugger on a dump. What could not be read, and why, stands in `unread`. Call it from a thread that lives
// until it returns.
CoreDump read_core_dump(const std::string& file, const CoreReadOptions& options);

}  // namespace faultline
