#include "bisect/pool.h"

#include <poll.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/fd.h"
#include "base/interrupt.h"
#include "bisect/core_dump.h"
#include "bisect/protocol.h"
#include "bisect/worker_channel.h"

namespace faultline {

namespace {

constexpr double kTick_s = 0.1;           // how often progress pages are looked at
constexpr double kNoExitFdTick_s = 0.01;  // and deaths, where the kernel has no pidfd
constexpr double kSlack_s = 0.2;          // a round may last this much longer than planned and still counts as watched
constexpr double kStartRetry_s = 0.05;
constexpr double kDumpSettled_s = 0.5;  // a dump that has not grown for so long is complete
constexpr size_t kReadStep = size_t{64} << 10;
constexpr int kReadsAtOnce = 16;     // one talkative worker must not keep the others waiting
constexpr int kReadsAtDeath = 1024;  // more than a pipe can hold

std::string text_of(const nlohmann::json& event, const char* key) {
  const auto text = event.find(key);
  return text != event.end() && text->is_string() ? text->get<std::string>() : "";
}

}  // namespace

struct WorkerPool::Worker {
  Task task;
  Subprocess child;
  UniqueFd events;  // closed once nothing more is read from it
  ProgressMapping page;
  double timeout_s = 0;
  std::optional<int64_t> oom_kills_before;
  FrameDecoder decoder;
  WorkerFacts facts;
  Stopwatch since_start;
  uint64_t heartbeat = 0;
  double idle_s = 0;       // watched time without progress
  double lingering_s = 0;  // watched time since it was done or closed its pipe
  bool ended = false;
  CoreDumpFiles dump;       // empty names: none is written
  uint64_t dump_bytes = 0;  // when last looked at
  double dump_still_s = 0;  // since it grew
  double dumping_s = 0;     // since its time was up

  // Its time is up: whether a dump is still to be waited for. Asks for one if nobody has.
  bool dump_awaited(double elapsed_s, double limit_s) {
    if (dump.core.empty() || dumping_s > limit_s) return false;
    const uint64_t bytes = core_dump_size(dump);
    if (!facts.dump_asked && bytes == 0) {
      facts.dump_asked = ask_for_core_dump(dump);
      return facts.dump_asked;
    }
    dumping_s += elapsed_s;
    dump_still_s = bytes == dump_bytes ? dump_still_s + elapsed_s : 0;
    dump_bytes = bytes;
    return bytes == 0 || dump_still_s < kDumpSettled_s;
  }

  void stop(StopReason reason, double limit_s, std::string detail = {}) {
    if (facts.stopped != StopReason::kNone) return;
    facts.stopped = reason;
    facts.limit_s = limit_s;
    facts.detail = std::move(detail);
    child.kill_group();
  }
};

WorkerPool::WorkerPool(PoolOptions options) : options_(std::move(options)) {
  if (options_.jobs <= 0) options_.jobs = usable_cpus();
}

WorkerPool::~WorkerPool() = default;

void WorkerPool::submit(Task task) {
  FAULTLINE_CHECK(task.payload.is_object());
  queue_.push_back(std::move(task));
}

bool WorkerPool::cancel(std::string_view id) {
  for (const auto& worker : workers_) {
    if (worker->task.id != id || worker->ended) continue;
    worker->stop(StopReason::kCancelled, 0);
    return true;
  }
  const auto waiting = std::find_if(queue_.begin(), queue_.end(), [&](const Task& task) { return task.id == id; });
  if (waiting == queue_.end()) return false;
  cancelled_.push_back(std::move(*waiting));
  queue_.erase(waiting);
  return true;
}

std::vector<RunningTask> WorkerPool::running() const {
  std::vector<RunningTask> result;
  for (const auto& worker : workers_)
    if (!worker->ended)
      result.push_back({worker->task.id, worker->since_start.seconds(), read_progress(worker->page.page())});
  return result;
}

void WorkerPool::drop_all() {
  workers_.clear();  // kills and reaps
  queue_.clear();
  cancelled_.clear();
}

Result<PoolEnd> WorkerPool::run(const PoolCallbacks& callbacks) {
  FAULTLINE_CHECK(!in_run_);
  in_run_ = true;
  stop_ = false;
  const InterruptGuard guard;
  auto end = loop(callbacks);
  drop_all();
  in_run_ = false;
  return end;
}

Result<PoolEnd> WorkerPool::loop(const PoolCallbacks& callbacks) {
  Stopwatch round;
  while (true) {
    if (InterruptGuard::signal() != 0) return PoolEnd::kInterrupted;
    if (stop_) return PoolEnd::kStopped;
    FAULTLINE_TRY_STATUS(finish_cancelled(callbacks));
    FAULTLINE_TRY_STATUS(start_waiting());
    if (workers_.empty() && queue_.empty() && cancelled_.empty() && !stop_) return PoolEnd::kDone;

    wait_for_news(InterruptGuard::fd());
    const double elapsed_s = std::min(round.seconds(), kTick_s + kSlack_s);
    round.restart();
    for (const auto& worker : workers_) {
      if (stop_ || InterruptGuard::signal() != 0) break;
      FAULTLINE_TRY_STATUS(serve(*worker, callbacks));
      if (!worker->ended) watch(*worker, elapsed_s);
    }
    std::erase_if(workers_, [](const auto& worker) { return worker->ended; });
    if (callbacks.on_tick) callbacks.on_tick();
  }
}

Status WorkerPool::finish_cancelled(const PoolCallbacks& callbacks) {
  while (!cancelled_.empty()) {
    const Task task = std::move(cancelled_.front());
    cancelled_.pop_front();
    WorkerFacts facts;
    facts.stopped = StopReason::kCancelled;
    if (callbacks.on_done) FAULTLINE_TRY_STATUS(callbacks.on_done(task, explain_death(std::move(facts))));
  }
  return {};
}

Status WorkerPool::start_waiting() {
  while (!queue_.empty() && workers_.size() < static_cast<size_t>(options_.jobs)) {
    const double now = monotonic_seconds();
    if (now < retry_start_at_) return {};
    auto worker = start(queue_.front());
    if (worker) {
      queue_.pop_front();
      workers_.push_back(std::move(*worker));
      retry_start_at_ = 0;
      no_start_since_ = 0;
      continue;
    }
    if (!worker.error().transient) return tl::make_unexpected(std::move(worker.error().error));
    // While others run, one of them will end and give back what is lacking.
    if (no_start_since_ == 0 || !workers_.empty()) no_start_since_ = now;
    if (now - no_start_since_ > options_.start_patience_s)
      return internal_error(
          "{}, for {} now; free some memory, or raise the limits of processes and open files (ulimit -u -n)",
          worker.error().error.message, duration_text(options_.start_patience_s));
    retry_start_at_ = now + kStartRetry_s;
  }
  return {};
}

tl::expected<std::unique_ptr<WorkerPool::Worker>, SpawnFailure> WorkerPool::start(Task& task) const {
  const auto passing = [](Error error, bool transient) {
    return tl::make_unexpected(SpawnFailure{std::move(error), transient});
  };
  const auto frame = encode_frame(task.payload);
  if (!frame) return passing(frame.error(), false);
  // Files, not pipes: nothing here can block, whatever the worker does. Where they cannot be made, descriptors or
  // memory are lacking.
  const auto task_file = make_sealed_text("faultline-task", *frame);
  if (!task_file) return passing(task_file.error(), true);
  const auto progress = make_progress_memory();
  if (!progress) return passing(progress.error(), true);
  auto page = ProgressMapping::map(progress->get(), false);
  if (!page) return passing(page.error(), true);
  auto events = make_pipe();
  if (!events) return passing(events.error(), true);
  if (const auto status = set_nonblocking(events->read.get()); !status) return passing(status.error(), false);

  SpawnOptions spawn;
  spawn.program = options_.program;
  spawn.arguments = options_.worker_argv;
  spawn.fds = {{task_file->get(), kTaskFd}, {events->write.get(), kEventsFd}, {progress->get(), kProgressFd}};
  for (const PassedFd& fd : task.fds) {
    FAULTLINE_CHECK(fd.to >= kFirstTaskFd);
    spawn.fds.push_back(fd);
  }
  spawn.data_limit = task.memory_limit != 0 ? task.memory_limit : options_.memory_limit;
  if (!task.core_prefix.empty()) spawn.environment = core_dump_environment(task.core_prefix);
  const std::optional<int64_t> oom_kills = kernel_oom_kills();
  auto child = Subprocess::spawn(spawn);
  if (!child) return tl::make_unexpected(std::move(child.error()));

  auto worker = std::unique_ptr<Worker>(new Worker{.task = std::move(task),
                                                   .child = std::move(*child),
                                                   .events = std::move(events->read),
                                                   .page = std::move(*page),
                                                   .oom_kills_before = oom_kills});
  worker->timeout_s = worker->task.phase_timeout_s > 0 ? worker->task.phase_timeout_s : options_.phase_timeout_s;
  worker->facts.memory_limit = spawn.data_limit;
  if (!worker->task.core_prefix.empty()) worker->dump = core_dump_files(worker->task.core_prefix, worker->child.pid());
  return worker;
}

void WorkerPool::wait_for_news(int interrupt_fd) {
  std::vector<pollfd> waits;
  waits.push_back({interrupt_fd, POLLIN, 0});
  double timeout_s = kTick_s;
  for (const auto& worker : workers_) {
    // poll skips negative descriptors.
    waits.push_back({worker->events.get(), POLLIN, 0});
    waits.push_back({worker->child.output_fd(), POLLIN, 0});
    waits.push_back({worker->child.exit_fd(), POLLIN, 0});
    if (worker->child.exit_fd() < 0) timeout_s = kNoExitFdTick_s;
  }
  if (!queue_.empty() && retry_start_at_ != 0) timeout_s = std::min(timeout_s, kStartRetry_s);
  constexpr double kMilliseconds = 1000;
  ::poll(waits.data(), waits.size(), static_cast<int>(std::ceil(timeout_s * kMilliseconds)));
}

Status WorkerPool::serve(Worker& worker, const PoolCallbacks& callbacks) {
  worker.child.read_output();
  // Asked first: what a dead worker has written is complete.
  const std::optional<ProcessEnd> end = worker.child.try_reap();
  FAULTLINE_TRY_STATUS(take_events(worker, end ? kReadsAtDeath : kReadsAtOnce, callbacks));
  if (end) return conclude(worker, *end, callbacks);
  return {};
}

Status WorkerPool::take_events(Worker& worker, int reads, const PoolCallbacks& callbacks) {
  std::string bytes;
  for (int i = 0; i < reads && worker.events.valid(); ++i) {
    bytes.clear();
    FAULTLINE_TRY(const ReadState state, read_some(worker.events.get(), bytes, kReadStep));
    worker.decoder.append(bytes);
    while (true) {
      const auto event = worker.decoder.next();
      const auto name = event && *event ? event_name(**event) : Result<std::string>("");
      if (!event || !name) {
        worker.stop(StopReason::kCorruptEvent, 0, (event ? name.error() : event.error()).message);
        worker.events.reset();
        return {};
      }
      if (!*event) break;
      worker.idle_s = 0;
      FAULTLINE_TRY_STATUS(hand_on(worker, *name, **event, callbacks));
    }
    if (state == ReadState::kEnd) worker.events.reset();
    if (state == ReadState::kNothingNow) return {};
  }
  return {};
}

Status WorkerPool::hand_on(Worker& worker, std::string_view name, const nlohmann::json& event,
                           const PoolCallbacks& callbacks) {
  if (name == event::kDone) worker.facts.done = true;
  if (name == event::kException) worker.facts.exception = text_of(event, "what");
  if (name == event::kError) worker.facts.error = text_of(event, "message");
  return callbacks.on_event ? callbacks.on_event(worker.task, event) : Status{};
}

void WorkerPool::watch(Worker& worker, double elapsed_s) const {
  elapsed_s = std::min(elapsed_s, worker.since_start.seconds());
  if (worker.facts.done || !worker.events.valid()) {
    worker.lingering_s += elapsed_s;
    if (worker.lingering_s > options_.grace_s) worker.stop(StopReason::kLingered, options_.grace_s);
    return;
  }
  const uint64_t heartbeat = worker.page.page().heartbeat.load(std::memory_order_acquire);
  worker.idle_s = heartbeat == worker.heartbeat ? worker.idle_s + elapsed_s : 0;
  worker.heartbeat = heartbeat;
  if (worker.idle_s <= worker.timeout_s) return;
  if (!worker.dump_awaited(elapsed_s, options_.dump_s)) worker.stop(StopReason::kWatchdog, worker.timeout_s);
}

Status WorkerPool::conclude(Worker& worker, const ProcessEnd& end, const PoolCallbacks& callbacks) {
  worker.ended = true;
  WorkerFacts& facts = worker.facts;
  facts.end = end;
  facts.seconds = worker.since_start.seconds();
  facts.output = worker.child.output();
  facts.progress = read_progress(worker.page.page());
  if (!worker.dump.core.empty()) {
    tidy_core_dump(worker.dump);
    if (core_dump_size(worker.dump) > 0) facts.core_file = worker.dump.core;
  }
  // It may have ended of the dump that it was asked for.
  if (facts.dump_asked && facts.stopped == StopReason::kNone) {
    facts.stopped = StopReason::kWatchdog;
    facts.limit_s = worker.timeout_s;
  }
  const std::optional<int64_t> oom_kills = kernel_oom_kills();
  if (oom_kills && worker.oom_kills_before) facts.kernel_oom_kill = *oom_kills > *worker.oom_kills_before;
  return callbacks.on_done ? callbacks.on_done(worker.task, explain_death(std::move(facts))) : Status{};
}

}  // namespace faultline
