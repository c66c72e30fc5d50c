#include "bisect/pool.h"

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/clock.h"
#include "base/fd.h"
#include "bisect/protocol.h"
#include "bisect/worker_channel.h"
#include "temporary_folder.h"
#include "testing.h"

using namespace faultline;
using nlohmann::json;

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAddressSanitizer = true;  // its shadow does not fit into a memory limit
#else
constexpr bool kAddressSanitizer = false;
#endif

PoolOptions stub_options() {
  PoolOptions options;
  options.jobs = 2;
  options.program = FAULTLINE_WORKER_STUB;
  options.worker_argv = {"worker_stub", "worker"};
  return options;
}

struct Outcome {
  PoolEnd end = PoolEnd::kDone;
  std::map<std::string, Death> deaths;
  std::map<std::string, std::vector<json>> events;
};

PoolCallbacks recording(Outcome& outcome) {
  PoolCallbacks callbacks;
  callbacks.on_event = [&](const Task& task, const json& event) -> Status {
    CHECK(outcome.deaths.count(task.id) == 0);
    outcome.events[task.id].push_back(event);
    return {};
  };
  callbacks.on_done = [&](const Task& task, const Death& death) -> Status {
    CHECK(outcome.deaths.emplace(task.id, death).second);
    return {};
  };
  return callbacks;
}

Outcome run_all(PoolOptions options, std::vector<Task> tasks) {
  WorkerPool pool(std::move(options));
  for (Task& task : tasks) pool.submit(std::move(task));
  Outcome outcome;
  const auto end = pool.run(recording(outcome));
  REQUIRE(end);
  outcome.end = *end;
  CHECK(pool.running().empty());
  CHECK(pool.waiting() == 0);
  return outcome;
}

Death death_of(json payload, PoolOptions options = stub_options()) {
  Outcome outcome = run_all(std::move(options), {{.id = "t", .payload = std::move(payload)}});
  REQUIRE(outcome.deaths.count("t") == 1);
  return outcome.deaths["t"];
}

bool mentions(const Death& death, const std::string& text) {
  return death.message.find(text) != std::string::npos;
}

// True when the last holder of the pipe's other end is gone.
bool ends_within(int fd, double seconds) {
  const Stopwatch watch;
  std::string bytes;
  while (watch.seconds() < seconds) {
    pollfd wait{fd, POLLIN, 0};
    ::poll(&wait, 1, 100);
    if (wait.revents == 0) continue;
    const auto state = read_some(fd, bytes, 100);
    if (!state) return false;
    if (*state == ReadState::kEnd) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a worker that finishes ends well and its events come in order") {
  const Outcome outcome = run_all(stub_options(), {{.id = "t", .payload = {{"do", "events"}, {"count", 5}}}});
  CHECK(outcome.end == PoolEnd::kDone);
  CHECK(outcome.deaths.at("t").ended_well());
  CHECK(outcome.deaths.at("t").message.empty());
  const auto& events = outcome.events.at("t");
  REQUIRE(events.size() == 6);
  for (int i = 0; i < 5; ++i) CHECK(events[static_cast<size_t>(i)].at("i") == i);
  CHECK(events.back().at("event") == event::kDone);
}

TEST_CASE("events far beyond a pipe's capacity are all delivered, from several workers at once") {
  std::vector<Task> tasks;
  for (int i = 0; i < 4; ++i)
    tasks.push_back({.id = std::to_string(i), .payload = {{"do", "events"}, {"count", 300}, {"padding", 2000}}});
  const Outcome outcome = run_all(stub_options(), std::move(tasks));
  for (int i = 0; i < 4; ++i) {
    CHECK(outcome.deaths.at(std::to_string(i)).ended_well());
    CHECK(outcome.events.at(std::to_string(i)).size() == 301);
  }
}

TEST_CASE("a large task reaches its worker whole") {
  const Outcome outcome =
      run_all(stub_options(),
              {{.id = "t", .payload = {{"do", "events"}, {"count", 1}, {"ballast", std::string(4 << 20, 'b')}}}});
  CHECK(outcome.deaths.at("t").ended_well());
}

TEST_CASE("a signal is a crash that names signal and op") {
  const auto [signal, name] = GENERATE(table<int, std::string>(
      {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGILL, "SIGILL"}, {SIGFPE, "SIGFPE"}, {SIGTERM, "SIGTERM"}}));
  const Death death = death_of({{"do", "signal"}, {"signal", signal}});
  CHECK(death.verdict == "crash");
  CHECK(mentions(death, name));
  CHECK(mentions(death, "in layers.3.self_attn.attention (kernel flashinfer), decode step 2, probe 1"));
  CHECK(death.facts.end.signalled);
  CHECK(death.facts.end.code == signal);
}

TEST_CASE("the check records of a dead worker are read from its page") {
  const Death death = death_of({{"do", "signal"}, {"signal", SIGSEGV}});
  REQUIRE(death.facts.progress.records.size() == 1);
  CHECK(death.facts.progress.records[0] ==
        CheckRecord{5, "layers.3.self_attn.attention.out", "nonfinite", 12, 34, 0x7fc00000});
}

TEST_CASE("SIGABRT is an abort with the last words of the library") {
  const Death death = death_of({{"do", "abort"}});
  CHECK(death.verdict == "abort");
  CHECK(mentions(death, "free(): invalid pointer"));
}

TEST_CASE("an exit code is a crash, code 0 before the end too") {
  const Death nonzero = death_of({{"do", "exit"}, {"code", 3}});
  CHECK(nonzero.verdict == "crash");
  CHECK(mentions(nonzero, "exited with code 3"));
  const Death zero = death_of({{"do", "exit"}, {"code", 0}});
  CHECK(zero.verdict == "crash");
  CHECK(mentions(zero, "before it had finished"));
}

TEST_CASE("an exception is a crash with its what(), wherever it was thrown") {
  const auto [what, text] = GENERATE(table<std::string, std::string>({{"throw", "an index is wrong"},
                                                                      {"throw_number", "no std::exception"},
                                                                      {"noexcept", "thrown from noexcept"},
                                                                      {"thread", "thrown in a thread"}}));
  const Death death = death_of({{"do", what}});
  CHECK(death.verdict == "crash");
  CHECK(mentions(death, text));
  CHECK(death.facts.end.code == kExceptionExit);
}

TEST_CASE("bad_alloc is out of memory") {
  const Death death = death_of({{"do", "bad_alloc"}});
  CHECK(death.verdict == "oom");
}

TEST_CASE("a memory limit ends the worker that passes it, and no other") {
  if (kAddressSanitizer) return;
  PoolOptions options = stub_options();
  options.memory_limit = size_t{256} << 20;
  const Outcome outcome = run_all(options, {{.id = "greedy", .payload = {{"do", "eat_memory"}}},
                                            {.id = "modest", .payload = {{"do", "events"}, {"count", 1}}}});
  CHECK(outcome.deaths.at("greedy").verdict == "oom");
  CHECK(mentions(outcome.deaths.at("greedy"), "limit of 256 MiB"));
  CHECK(outcome.deaths.at("modest").ended_well());
}

TEST_CASE("an error value of a worker is told in its own words") {
  const Death death = death_of({{"do", "error"}});
  CHECK(death.verdict == "crash");
  CHECK(mentions(death, "shard 3 is missing"));
}

TEST_CASE("no progress is a hang, slow progress is not") {
  PoolOptions options = stub_options();
  options.phase_timeout_s = 1;
  const Outcome outcome = run_all(options, {{.id = "stuck", .payload = {{"do", "sleep"}}},
                                            {.id = "slow", .payload = {{"do", "heartbeats"}, {"seconds", 2.5}}}});
  CHECK(outcome.deaths.at("stuck").verdict == "hang");
  CHECK(mentions(outcome.deaths.at("stuck"), "in layers.3.self_attn.attention"));
  CHECK(outcome.deaths.at("slow").ended_well());
}

namespace {

Death death_with_dump(json payload, const std::string& prefix, PoolOptions options = stub_options()) {
  Outcome outcome = run_all(std::move(options), {{.id = "t", .payload = std::move(payload), .core_prefix = prefix}});
  REQUIRE(outcome.deaths.count("t") == 1);
  return outcome.deaths["t"];
}

}  // namespace

TEST_CASE("a worker that hangs on a GPU is asked for a core dump, and killed once it is written") {
  const TemporaryFolder folder;
  PoolOptions options = stub_options();
  options.phase_timeout_s = 0.3;
  const Death death = death_with_dump({{"do", "gpu_hang"}}, folder.path + "/c1", options);
  CHECK(death.verdict == "hang");
  CHECK(death.facts.dump_asked);
  REQUIRE_FALSE(death.facts.core_file.empty());
  CHECK(std::filesystem::file_size(death.facts.core_file) > 0);
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path)) ++files;
  CHECK(files == 1);  // the pipe is gone
}

TEST_CASE("a worker without a GPU that hangs leaves nothing") {
  const TemporaryFolder folder;
  PoolOptions options = stub_options();
  options.phase_timeout_s = 0.3;
  const Death death = death_with_dump({{"do", "sleep"}}, folder.path + "/c1", options);
  CHECK(death.verdict == "hang");
  CHECK_FALSE(death.facts.dump_asked);
  CHECK(death.facts.core_file.empty());
  CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("the SIGABRT after a core dump is the GPU's fault, and a good end does not undo it") {
  const TemporaryFolder folder;
  const Death access = death_with_dump({{"do", "gpu_fault"}, {"exception", "WARP_ILLEGAL_ADDRESS"}, {"abort", true}},
                                       folder.path + "/c1");
  CHECK(access.verdict == "illegal-access");
  CHECK(mentions(access, "Warp Illegal Address"));
  const Death assertion =
      death_with_dump({{"do", "gpu_fault"}, {"exception", "WARP_ASSERT"}, {"abort", true}}, folder.path + "/c2");
  CHECK(assertion.verdict == "device-assert");
  const Death trap = death_with_dump({{"do", "gpu_fault"}, {"exception", ""}, {"abort", true}}, folder.path + "/c3");
  CHECK(trap.verdict == "launch-failure");
  const Death survivor = death_with_dump(
      {{"do", "gpu_fault"}, {"exception", "WARP_MISALIGNED_ADDRESS"}, {"abort", false}}, folder.path + "/c4");
  CHECK(survivor.verdict == "illegal-access");
  const Death abort = death_with_dump({{"do", "abort"}}, folder.path + "/c5");
  CHECK(abort.verdict == "abort");
}

TEST_CASE("a task may have a timeout of its own") {
  Outcome outcome =
      run_all(stub_options(), {{.id = "t", .payload = {{"do", "sleep"}}, .fds = {}, .phase_timeout_s = 0.3}});
  CHECK(outcome.deaths.at("t").verdict == "hang");
  CHECK(outcome.deaths.at("t").facts.limit_s == 0.3);
}

TEST_CASE("a worker that closes its pipe, or is done, and lives on is killed") {
  PoolOptions options = stub_options();
  options.grace_s = 0.3;
  const Death closed = death_of({{"do", "close_pipe"}}, options);
  CHECK(closed.verdict == "hang");
  CHECK(mentions(closed, "closed its event pipe"));
  const Death stayed = death_of({{"do", "done_and_stay"}}, options);
  CHECK(stayed.verdict == "hang");
  CHECK(mentions(stayed, "finished, but did not end"));
}

TEST_CASE("a corrupt event is a crash of its sender, whether it lives on or not") {
  const bool stay = GENERATE(true, false);
  const auto bytes = GENERATE(std::vector<int>{0, 0, 0, 0},                   // an empty frame
                              std::vector<int>{255, 255, 255, 255},           // a huge one
                              std::vector<int>{4, 0, 0, 0, 0x93, 7, 250, 1},  // no text
                              std::vector<int>{2, 0, 0, 0, '[', ']'},         // no object
                              std::vector<int>{3, 0, 0, 0, '{', '}', '}'});   // trailing text
  const Death death = death_of({{"do", "bytes"}, {"bytes", bytes}, {"stay", stay}});
  CHECK(death.verdict == "crash");
  CHECK(mentions(death, "corrupt event"));
}

TEST_CASE("an event without a name is corrupt") {
  const Death death = death_of({{"do", "nameless"}});
  CHECK(death.verdict == "crash");
  CHECK(mentions(death, "corrupt event"));
}

TEST_CASE("a worker has the descriptors of its task and no other") {
  const auto file = make_sealed_text("test", "from the driver");
  REQUIRE(file);
  const auto stray = make_pipe();  // open here, and nobody's business
  REQUIRE(stray);
  const int inherited = ::dup(stray->read.get());  // without close-on-exec
  std::vector<Task> tasks(2);
  tasks[0] = {.id = "list", .payload = {{"do", "descriptors"}}, .fds = {{file->get(), 11}}};
  tasks[1] = {.id = "read", .payload = {{"do", "read"}}, .fds = {{file->get(), kFirstTaskFd}}};
  const Outcome outcome = run_all(stub_options(), std::move(tasks));
  ::close(inherited);
  std::vector<int> open = outcome.events.at("list").front().at("open").get<std::vector<int>>();
  std::sort(open.begin(), open.end());
  CHECK(open == std::vector<int>{0, 1, 2, kTaskFd, kEventsFd, kProgressFd, 11});
  CHECK(outcome.events.at("read").front().at("text") == "from the driver");
}

TEST_CASE("what a worker has forked ends with it") {
  const auto lifeline = make_pipe();
  REQUIRE(lifeline);
  UniqueFd write_end(::dup(lifeline->write.get()));
  const Outcome outcome = run_all(
      stub_options(), {{.id = "t", .payload = {{"do", "fork"}}, .fds = {{lifeline->write.get(), kFirstTaskFd}}}});
  CHECK(outcome.deaths.at("t").ended_well());
  const_cast<Pipe&>(*lifeline).write.reset();
  CHECK_FALSE(ends_within(lifeline->read.get(), 0.3));  // we hold an end ourselves
  write_end.reset();
  CHECK(ends_within(lifeline->read.get(), 10));
}

TEST_CASE("one bad task after another never stops the run") {
  std::vector<Task> tasks;
  for (int i = 0; i < 4; ++i) {
    tasks.push_back({.id = fmt::format("segv{}", i), .payload = {{"do", "signal"}, {"signal", SIGSEGV}}});
    tasks.push_back({.id = fmt::format("good{}", i), .payload = {{"do", "events"}, {"count", 1}}});
    tasks.push_back({.id = fmt::format("exit{}", i), .payload = {{"do", "exit"}, {"code", 9}}});
  }
  const Outcome outcome = run_all(stub_options(), std::move(tasks));
  CHECK(outcome.deaths.size() == 12);
  for (const auto& [id, death] : outcome.deaths) CHECK(death.ended_well() == id.starts_with("good"));
}

TEST_CASE("no more workers run at once than asked for, and tasks may be added on the way") {
  WorkerPool pool(stub_options());
  for (int i = 0; i < 6; ++i) pool.submit({.id = std::to_string(i), .payload = {{"do", "events"}, {"count", 1}}});
  size_t most = 0;
  int ended = 0;
  PoolCallbacks callbacks;
  callbacks.on_event = [&](const Task&, const json&) -> Status {
    most = std::max(most, pool.running().size());
    return {};
  };
  callbacks.on_done = [&](const Task& task, const Death&) -> Status {
    ++ended;
    if (task.id == "3") pool.submit({.id = "late", .payload = {{"do", "events"}, {"count", 1}}});
    return {};
  };
  REQUIRE(pool.run(callbacks));
  CHECK(ended == 7);
  CHECK(most >= 1);
  CHECK(most <= 2);
}

TEST_CASE("a cancelled task is skipped, running or waiting, and the others go on") {
  PoolOptions options = stub_options();
  options.jobs = 1;
  WorkerPool pool(options);
  pool.submit({.id = "running", .payload = {{"do", "sleep"}}});
  pool.submit({.id = "waiting", .payload = {{"do", "sleep"}}});
  pool.submit({.id = "last", .payload = {{"do", "events"}, {"count", 1}}});
  Outcome outcome;
  PoolCallbacks callbacks = recording(outcome);
  callbacks.on_tick = [&] {
    pool.cancel("running");
    pool.cancel("waiting");
  };
  REQUIRE(pool.run(callbacks));
  CHECK(outcome.deaths.at("running").verdict == "skipped");
  CHECK(outcome.deaths.at("waiting").verdict == "skipped");
  CHECK(outcome.deaths.at("last").ended_well());
  CHECK_FALSE(pool.cancel("unknown"));
}

TEST_CASE("stop ends the run without the tasks, and the pool can be used again") {
  WorkerPool pool(stub_options());
  pool.submit({.id = "a", .payload = {{"do", "sleep"}}});
  Outcome outcome;
  PoolCallbacks callbacks = recording(outcome);
  callbacks.on_tick = [&] { pool.stop(); };
  const auto end = pool.run(callbacks);
  REQUIRE(end);
  CHECK(*end == PoolEnd::kStopped);
  CHECK(outcome.deaths.empty());
  pool.submit({.id = "b", .payload = {{"do", "events"}, {"count", 1}}});
  const auto again = pool.run(recording(outcome));
  REQUIRE(again);
  CHECK(*again == PoolEnd::kDone);
  CHECK(outcome.deaths.at("b").ended_well());
}

TEST_CASE("an error of a callback ends the run with that error and without workers") {
  const auto lifeline = make_pipe();
  REQUIRE(lifeline);
  WorkerPool pool(stub_options());
  pool.submit({.id = "asleep", .payload = {{"do", "sleep"}}, .fds = {{lifeline->write.get(), kFirstTaskFd}}});
  pool.submit({.id = "talks", .payload = {{"do", "events"}, {"count", 1}}});
  PoolCallbacks callbacks;
  callbacks.on_event = [](const Task&, const json&) -> Status { return bad_input("disk full"); };
  const auto end = pool.run(callbacks);
  REQUIRE_FALSE(end);
  CHECK(end.error().message == "disk full");
  const_cast<Pipe&>(*lifeline).write.reset();
  CHECK(ends_within(lifeline->read.get(), 10));
}

TEST_CASE("a program that cannot be started is an error at once") {
  PoolOptions options = stub_options();
  options.program = "/nonexistent/worker";
  WorkerPool pool(options);
  pool.submit({.id = "t", .payload = json::object()});
  const auto end = pool.run({});
  REQUIRE_FALSE(end);
  CHECK(end.error().message.find("/nonexistent/worker") != std::string::npos);
}

TEST_CASE("a start that fails for want of descriptors is tried again, then an error") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  PoolOptions options = stub_options();
  const bool relieved = GENERATE(false, true);
  options.start_patience_s = relieved ? 60 : 0.4;
  WorkerPool pool(options);
  pool.submit({.id = "t", .payload = {{"do", "events"}, {"count", 1}}});
  int ticks = 0;
  Outcome outcome;
  PoolCallbacks callbacks = recording(outcome);
  callbacks.on_tick = [&] {
    if (++ticks == 2 && relieved) ::setrlimit(RLIMIT_NOFILE, &before);
  };
  rlimit tight = before;
  const UniqueFd highest(::dup(0));
  tight.rlim_cur = static_cast<rlim_t>(highest.get()) + 4;  // room for the interrupt pipe, not for a worker
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
  const auto end = pool.run(callbacks);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(ticks >= 2);
  CHECK(end.has_value() == relieved);
  CHECK(outcome.deaths.count("t") == (relieved ? 1 : 0));
}

TEST_CASE("kill -9 of a driver leaves no worker behind") {
  auto lifeline = make_pipe();
  REQUIRE(lifeline);
  SpawnOptions spawn;
  spawn.program = FAULTLINE_WORKER_STUB;
  spawn.arguments = {"worker_stub", "driver", "3"};
  spawn.fds = {{lifeline->write.get(), 3}};
  auto driver = Subprocess::spawn(spawn);
  REQUIRE(driver);
  lifeline->write.reset();
  const Stopwatch watch;
  while (driver->output().find("ready") == std::string::npos && watch.seconds() < 20) {
    ::usleep(10'000);
    driver->read_output();
  }
  REQUIRE(driver->output() == "ready\n");
  // The driver alone, not its group: the kernel must do the rest.
  REQUIRE(::kill(driver->pid(), SIGKILL) == 0);
  CHECK(ends_within(lifeline->read.get(), 10));
  const ProcessEnd end = driver->reap();
  CHECK(end.signalled);
  CHECK(end.code == SIGKILL);
}

TEST_CASE("SIGINT and SIGTERM end a driver with 130 and its workers with it") {
  const int signal = GENERATE(SIGINT, SIGTERM);
  auto lifeline = make_pipe();
  REQUIRE(lifeline);
  SpawnOptions spawn;
  spawn.program = FAULTLINE_WORKER_STUB;
  spawn.arguments = {"worker_stub", "driver", "2"};
  spawn.fds = {{lifeline->write.get(), 3}};
  auto driver = Subprocess::spawn(spawn);
  REQUIRE(driver);
  lifeline->write.reset();
  const Stopwatch watch;
  while (driver->output().find("ready") == std::string::npos && watch.seconds() < 20) {
    ::usleep(10'000);
    driver->read_output();
  }
  REQUIRE(driver->output() == "ready\n");
  REQUIRE(::kill(driver->pid(), signal) == 0);
  const ProcessEnd end = driver->reap();
  CHECK_FALSE(end.signalled);
  CHECK(end.code == static_cast<int>(ExitCode::kInterrupted));
  CHECK(ends_within(lifeline->read.get(), 10));
}

TEST_CASE("a worker started by hand says so and exits with 2") {
  SpawnOptions spawn;
  spawn.program = FAULTLINE_WORKER_STUB;
  spawn.arguments = {"worker_stub", "worker"};
  auto worker = Subprocess::spawn(spawn);
  REQUIRE(worker);
  CHECK(worker->reap().code == 2);
  CHECK(worker->output().find("not by hand") != std::string::npos);
}

TEST_CASE("starting a worker and hearing of its end takes milliseconds", "[.measure]") {
  constexpr int kTasks = 200;
  PoolOptions options = stub_options();
  options.jobs = 1;
  WorkerPool pool(options);
  for (int i = 0; i < kTasks; ++i) pool.submit({.id = std::to_string(i), .payload = {{"do", "events"}, {"count", 1}}});
  const Stopwatch watch;
  REQUIRE(pool.run({}));
  WARN(fmt::format("{:.2f} ms a task, one at a time", watch.seconds() * 1000 / kTasks));
}
