// Runs tasks in worker processes, up to a number at once, from one thread: starts them, hands on their events, watches
// their progress, and says how each ended. No worker survives the pool, nor a kill -9 of this process.
//
// A worker that makes no progress (progress page or event) for the phase timeout is a hang. Time in which this process
// itself did not watch (it was stopped, or a callback was slow) does not count. One that hangs on a GPU is asked for a
// core dump before it is killed, and none is killed while it writes one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/subprocess.h"
#include "bisect/worker_death.h"

namespace faultline {

struct Task {
  std::string id;          // unique among the tasks of a pool
  nlohmann::json payload;  // an object, at most kMaxFrameBytes of text
  // The task's own descriptors, at kFirstTaskFd or above in the worker. Borrowed: they stay open until the task is
  // done.
  std::vector<PassedFd> fds;
  double phase_timeout_s = 0;  // 0: the pool's
  uint64_t memory_limit = 0;   // bytes of private memory; 0: the pool's
  std::string core_prefix;     // of GPU core dumps (core_dump.h); empty: none is written
};

struct PoolOptions {
  int jobs = 0;  // workers at once; 0: one a usable core
  std::string program = "/proc/self/exe";
  std::vector<std::string> worker_argv = {"faultline", "worker"};
  double phase_timeout_s = 60;
  double grace_s = 2;            // for a worker to end once it is done or has closed its pipe
  uint64_t memory_limit = 0;     // 0: none
  double dump_s = 10;            // for the GPU core dump of a worker that hangs, or that dumps when its time is up
  double start_patience_s = 10;  // how long a start is tried again while the machine is out of processes or memory
};

enum class PoolEnd : uint8_t {
  kDone,         // every task ended
  kStopped,      // stop() was called
  kInterrupted,  // SIGINT, SIGTERM or SIGHUP: exit code 130
};

struct RunningTask {
  std::string id;
  double seconds = 0;
  ProgressSnapshot progress;
};

// Called from run(). An error ends the run and is returned by it. Callbacks may submit, cancel and stop.
struct PoolCallbacks {
  std::function<Status(const Task&, const nlohmann::json& event)> on_event;  // in the order sent, before on_done
  std::function<Status(const Task&, const Death&)> on_done;                  // once a task that was not dropped
  std::function<void()> on_tick;  // several times a second: status line, time limit
};

class WorkerPool {
 public:
  explicit WorkerPool(PoolOptions options);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void submit(Task task);
  // The task ends with the verdict "skipped", whether it was running or waiting. False: it is neither.
  bool cancel(std::string_view id);
  // Kills all workers and drops all tasks, without on_done; run() then returns kStopped.
  void stop() { stop_ = true; }

  // Until all tasks have ended, or one of the other ends. However it ends, every worker is dead and reaped when it
  // returns, and no task is left. Call it from a thread that outlives it (the main thread): workers die with the
  // thread. An error when workers cannot be started, or of a callback.
  Result<PoolEnd> run(const PoolCallbacks& callbacks);

  size_t waiting() const { return queue_.size(); }
  std::vector<RunningTask> running() const;
  int jobs() const { return options_.jobs; }

 private:
  struct Worker;

  Result<PoolEnd> loop(const PoolCallbacks& callbacks);
  Status finish_cancelled(const PoolCallbacks& callbacks);
  Status start_waiting();
  tl::expected<std::unique_ptr<Worker>, SpawnFailure> start(Task& task) const;
  void wait_for_news(int interrupt_fd);
  Status serve(Worker& worker, const PoolCallbacks& callbacks);
  Status take_events(Worker& worker, int reads, const PoolCallbacks& callbacks);
  Status hand_on(Worker& worker, std::string_view name, const nlohmann::json& event, const PoolCallbacks& callbacks);
  void watch(Worker& worker, double elapsed_s) const;
  Status conclude(Worker& worker, const ProcessEnd& end, const PoolCallbacks& callbacks);
  void drop_all();

  PoolOptions options_;
  std::deque<Task> queue_;
  std::deque<Task> cancelled_;  // before they were started
  std::vector<std::unique_ptr<Worker>> workers_;
  bool stop_ = false;
  bool in_run_ = false;
  double retry_start_at_ = 0;  // monotonic; 0: a start may be tried at once
  double no_start_since_ = 0;  // 0: the last start went well
};

}  // namespace faultline
