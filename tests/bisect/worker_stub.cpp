// Plays a worker ("worker_stub worker": does what its task says, badly if asked to) or a driver ("worker_stub driver
// N": runs N workers that sleep forever, each holding our descriptor 3).
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "bisect/pool.h"
#include "bisect/protocol.h"
#include "bisect/worker_channel.h"

namespace faultline {
namespace {

[[noreturn]] void sleep_forever() {
  while (true) ::pause();
}

// Not the sanitizers' handlers: the signal itself is what is tested.
void die_of(int signal) {
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void throw_one(const char* what) {
  throw std::runtime_error(what);
}
void throw_where_nothing_may_be_thrown() noexcept {
  throw_one("thrown from noexcept");
}

void eat_memory() {
  constexpr size_t kBlock = size_t{16} << 20;
  std::vector<std::unique_ptr<std::vector<char>>> blocks;
  while (true) blocks.push_back(std::make_unique<std::vector<char>>(kBlock, 'x'));
}

std::vector<int> open_descriptors() {
  std::vector<int> fds;
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return fds;
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != ::dirfd(folder)) fds.push_back(fd);
  }
  ::closedir(folder);
  return fds;
}

std::string own_path(const char* variable) {
  const char* value = std::getenv(variable);
  std::string path = value != nullptr ? value : "";
  const size_t at = path.find("%p");
  if (at != std::string::npos) path.replace(at, 2, std::to_string(::getpid()));
  return path;
}

void write_dump() {
  std::ofstream(own_path("CUDA_COREDUMP_FILE")) << "a core dump\n";
}

// As the CUDA driver does for a kernel that faults.
void fault_on_a_gpu(const std::string& exception) {
  fmt::print(stderr, "[16:29:52.453341] coredump: Starting GPU coredump generation\n");
  if (!exception.empty())
    fmt::print(stderr, "[16:29:52.454111] coredump: Detected an exception of type CUDBG_EXCEPTION_{} (14)\n",
               exception);
  fmt::print(stderr, "[16:29:52.455434] coredump:   #0\t0x7f3ffb7a0ad0\t_ZN5probe12planted_loadEPc\n");
  std::fflush(stderr);
  write_dump();
}

// And for one that never ends, once it is asked for a dump; it then lives on.
void hang_on_a_gpu() {
  const std::string pipe = own_path("CUDA_COREDUMP_PIPE");
  if (::mkfifo(pipe.c_str(), 0600) != 0) return;
  const UniqueFd reader(::open(pipe.c_str(), O_RDWR | O_CLOEXEC));
  char asked = 0;
  if (::read(reader.get(), &asked, 1) == 1) write_dump();
  sleep_forever();
}

Status deaths(const std::string& what, const nlohmann::json& task) {
  if (what == "signal") die_of(task.at("signal").get<int>());
  if (what == "abort") {
    fmt::print(stderr, "free(): invalid pointer\n");
    std::fflush(stderr);
    die_of(SIGABRT);
  }
  if (what == "exit") ::_exit(task.at("code").get<int>());
  if (what == "throw") throw std::runtime_error("an index is wrong");
  if (what == "throw_number") throw 7;
  if (what == "noexcept") throw_where_nothing_may_be_thrown();
  if (what == "thread") std::thread([] { throw std::runtime_error("thrown in a thread"); }).join();
  if (what == "bad_alloc") throw std::bad_alloc();
  if (what == "eat_memory") eat_memory();
  if (what == "error") return bad_input("shard 3 is missing");
  if (what == "sleep") sleep_forever();
  if (what == "gpu_hang") hang_on_a_gpu();
  if (what == "gpu_fault") {
    fault_on_a_gpu(task.at("exception").get<std::string>());
    if (task.at("abort").get<bool>()) die_of(SIGABRT);
  }
  return {};
}

Status talk(const std::string& what, WorkerChannel& channel) {
  const nlohmann::json& task = channel.task();
  if (what == "events")
    for (int i = 0; i < task.at("count").get<int>(); ++i)
      FAULTLINE_TRY_STATUS(channel.send(
          {{"event", "number"}, {"i", i}, {"padding", std::string(task.value("padding", size_t{0}), 'p')}}));
  if (what == "descriptors") return channel.send({{"event", "descriptors"}, {"open", open_descriptors()}});
  if (what == "read") {
    std::string text;
    FAULTLINE_TRY(const ReadState state, read_some(kFirstTaskFd, text, 100));
    return channel.send({{"event", "text"}, {"text", text}, {"end", state == ReadState::kEnd}});
  }
  if (what == "heartbeats") {
    const Stopwatch watch;
    while (watch.seconds() < task.at("seconds").get<double>()) {
      channel.progress().heartbeat();
      ::usleep(20'000);
    }
  }
  if (what == "close_pipe") {
    ::close(kEventsFd);
    sleep_forever();
  }
  if (what == "done_and_stay") {
    FAULTLINE_TRY_STATUS(channel.send({{"event", event::kDone}}));
    sleep_forever();
  }
  if (what == "nameless") {
    FAULTLINE_TRY_STATUS(channel.send({{"name", "x"}}));
    sleep_forever();
  }
  if (what == "bytes") {
    const std::vector<uint8_t> bytes = task.at("bytes").get<std::vector<uint8_t>>();
    FAULTLINE_TRY_STATUS(write_all(kEventsFd, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    if (task.value("stay", true)) sleep_forever();
  }
  if (what == "fork") {
    if (::fork() == 0) sleep_forever();
  }
  return {};
}

Status work(WorkerChannel& channel) {
  const std::string what = channel.task().at("do").get<std::string>();
  ProgressWriter& progress = channel.progress();
  progress.phase(WorkerPhase::kDecode, "stub");
  progress.probe(1);
  progress.step(2);
  progress.op(5, "layers.3.self_attn.attention", "flashinfer", 3);
  progress.record({5, "layers.3.self_attn.attention.out", "nonfinite", 12, 34, 0x7fc00000});
  FAULTLINE_TRY_STATUS(talk(what, channel));
  return deaths(what, channel.task());
}

// Says "ready" on stdout once all workers run, then waits for its own death.
int drive(int workers) {
  PoolOptions options;
  options.jobs = workers;
  options.worker_argv = {"worker_stub", "worker"};
  WorkerPool pool(options);
  for (int i = 0; i < workers; ++i)
    pool.submit({.id = std::to_string(i), .payload = {{"do", "sleep"}}, .fds = {{3, kFirstTaskFd}}});
  bool said = false;
  PoolCallbacks callbacks;
  callbacks.on_tick = [&] {
    size_t begun = 0;
    for (const RunningTask& task : pool.running()) begun += task.progress.op == "layers.3.self_attn.attention" ? 1 : 0;
    if (said || begun < static_cast<size_t>(workers)) return;
    said = true;
    static_cast<void>(write_all(1, "ready\n"));
  };
  const auto end = pool.run(callbacks);
  if (!end) return static_cast<int>(ExitCode::kInternal);
  return static_cast<int>(*end == PoolEnd::kInterrupted ? ExitCode::kInterrupted : ExitCode::kGood);
}

}  // namespace
}  // namespace faultline

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "worker") return faultline::run_worker(faultline::work);
  if (role == "driver" && argc > 2) return faultline::drive(std::atoi(argv[2]));
  return 2;
}
