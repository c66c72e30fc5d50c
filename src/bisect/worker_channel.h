// The worker's side of the pool: its task, its events, its progress page.
//
// A worker is our own program, started with the descriptors below already open. run_worker is all of its main function
// that is not about models.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bisect/progress.h"

namespace faultline {

inline constexpr int kTaskFd = 3;       // one frame (protocol.h): the task
inline constexpr int kEventsFd = 4;     // a pipe: frames, one an event
inline constexpr int kProgressFd = 5;   // memory of one ProgressPage
inline constexpr int kFirstTaskFd = 8;  // from here on: descriptors of the task's own (weights)

class WorkerChannel {
 public:
  WorkerChannel(nlohmann::json task, ProgressWriter progress)
      : task_(std::move(task)), progress_(std::move(progress)) {}

  const nlohmann::json& task() const { return task_; }
  ProgressWriter& progress() { return progress_; }
  // `event` is an object with a string "event". Blocks while the driver is behind. One thread at a time. An error means
  // that the driver is gone or the event too large.
  Status send(const nlohmann::json& event);

 private:
  nlohmann::json task_;
  ProgressWriter progress_;
};

// Bad input when this process was not started as a worker. Also ignores SIGPIPE and makes the descriptors
// close-on-exec.
Result<WorkerChannel> open_worker_channel();

// Runs `body` and sends "done" when it returns well. What else can happen ends as protocol.h's exit codes and events
// say: an Error, std::bad_alloc, another exception; also in a thread, and in a function that may not throw. Returns the
// process's exit code.
int run_worker(const std::function<Status(WorkerChannel&)>& body);

}  // namespace faultline
