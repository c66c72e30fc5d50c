#include "bisect/core_dump.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "base/fd.h"
#include "base/subprocess.h"
#include "bisect/code_lines.h"
#include "bisect/core_dump_report.h"

namespace faultline {
namespace {

constexpr std::string_view kCoreEnd = ".cudacore";
constexpr std::string_view kPipeEnd = ".pipe";
constexpr size_t kMostOutput = size_t{256} << 10;  // of the debugger; a kernel's name alone can take kilobytes

// Runs a program to its end and returns what it printed.
struct ToolEnd {
  int code = 0;
  std::string output;
};
Result<ToolEnd> run_tool(const SpawnOptions& spawn, double limit_s, const std::atomic<bool>* cancel) {
  auto child = Subprocess::spawn(spawn);
  if (!child) return tl::unexpected(child.error().error);
  constexpr int kTick_ms = 50;
  const Stopwatch since;
  std::optional<ProcessEnd> end;
  while (!(end = child->try_reap())) {
    const bool cancelled = cancel != nullptr && cancel->load();
    if (cancelled) return internal_error("reading it was interrupted");
    if (since.seconds() > limit_s)
      return internal_error("{} did not end within {}", spawn.program, duration_text(limit_s));
    pollfd waits[] = {{child->exit_fd(), POLLIN, 0}, {child->output_fd(), POLLIN, 0}};
    ::poll(waits, std::size(waits), kTick_ms);
    child->read_output();
  }
  child->read_output();
  return ToolEnd{end->code, child->output()};
}

bool is_program(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

// '%' begins what the driver replaces in a path.
std::string core_dump_prefix(const std::string& directory, const std::string& name) {
  std::string file = name;
  for (char& c : file)
    if (c == '/' || c == '%' || c == ' ' || static_cast<unsigned char>(c) < ' ') c = '_';
  std::string folder = directory;
  for (char& c : folder)
    if (c == '%') c = '_';
  return folder + "/" + file;
}

std::vector<std::string> core_dump_environment(const std::string& prefix) {
  return {
      "CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1",
      "CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION=0",
      "CUDA_COREDUMP_GENERATION_FLAGS=skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,"
      "skip_local_memory,skip_constbank_memory",
      "CUDA_COREDUMP_SHOW_PROGRESS=1",
      fmt::format("CUDA_COREDUMP_FILE={}.%p{}", prefix, kCoreEnd),
      "CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1",
      fmt::format("CUDA_COREDUMP_PIPE={}.%p{}", prefix, kPipeEnd),
  };
}

CoreDumpFiles core_dump_files(const std::string& prefix, pid_t pid) {
  return {fmt::format("{}.{}{}", prefix, pid, kCoreEnd), fmt::format("{}.{}{}", prefix, pid, kPipeEnd)};
}

uint64_t core_dump_size(const CoreDumpFiles& files) {
  struct stat info {};
  if (::stat(files.core.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return 0;
  return static_cast<uint64_t>(info.st_size);
}

bool ask_for_core_dump(const CoreDumpFiles& files) {
  // Without a reader this fails instead of waiting for one.
  const UniqueFd pipe(::open(files.pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  if (!pipe.valid()) return false;
  constexpr char kAnything = '1';
  return ::write(pipe.get(), &kAnything, 1) == 1;
}

void tidy_core_dump(const CoreDumpFiles& files) {
  struct stat info {};
  if (::lstat(files.pipe.c_str(), &info) == 0 && S_ISFIFO(info.st_mode)) ::unlink(files.pipe.c_str());
  if (::lstat(files.core.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 0)
    ::unlink(files.core.c_str());
}

void await_late_faults() {
  const char* enabled = std::getenv("CUDA_ENABLE_COREDUMP_ON_EXCEPTION");
  if (enabled == nullptr || std::string_view(enabled) != "1") return;
  constexpr auto kLatest = std::chrono::milliseconds(100);  // measured on an H200: under 10 ms
  std::this_thread::sleep_for(kLatest);
}

std::string find_tool(const char* name, const char* variable) {
  if (const char* given = std::getenv(variable); given != nullptr && *given != '\0')
    return is_program(given) ? given : "";
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "";
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    const std::string program = fmt::format("{}/{}", folder, name);
    if (!folder.empty() && is_program(program)) return program;
  }
  const std::string usual = fmt::format("/usr/local/cuda/bin/{}", name);
  return is_program(usual) ? usual : "";
}

CoreDump read_core_dump(const std::string& file, const CoreReadOptions& options) {
  CoreDump unread;
  unread.file = file;
  const std::string debugger = options.debugger.empty() ? find_tool("cuda-gdb", "CUDA_GDB") : options.debugger;
  if (debugger.empty()) {
    unread.unread =
        "cuda-gdb was not found (PATH, $CUDA_GDB): kernel, source line, block and thread are in the dump, "
        "but could not be read";
    return unread;
  }
  SpawnOptions spawn;
  spawn.program = debugger;
  spawn.arguments = core_dump_command(debugger, file);
  spawn.output_tail = kMostOutput;
  const Result<ToolEnd> end = run_tool(spawn, options.limit_s, options.cancel);
  if (!end) {
    unread.unread = end.error().message;
    return unread;
  }
  CoreDump core = parse_core_dump(end->output);
  core.file = file;
  if (core.exception.empty() && core.kernel.empty()) {
    core.unread = fmt::format("{} could make nothing of it (exit code {})", debugger, end->code);
    return core;
  }
  if (core.line != 0) return core;
  const std::optional<CodeAddress> address = code_address(end->output);
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!address || error) return core;
  const auto script = [&](const std::string& text, const std::vector<std::string>& arguments) {
    SpawnOptions shell;
    shell.program = "/bin/sh";
    shell.arguments = {"sh", "-c", text, "sh"};
    shell.arguments.insert(shell.arguments.end(), arguments.begin(), arguments.end());
    const Result<ToolEnd> ended = run_tool(shell, options.limit_s, options.cancel);
    return ended && ended->code == 0;
  };
  if (const auto line = source_of(*address, self, script)) take_source_line(core, line->file, line->line);
  return core;
}

}  // namespace faultline
