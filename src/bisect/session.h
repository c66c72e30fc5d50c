// A run's work as the rest of bisect/ sees it: tasks in, results out. Each result is on disk before anybody acts on it,
// and a task whose result a resumed journal holds is not run again.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status_line.h"
#include "bisect/core_reader.h"
#include "bisect/held_weights.h"
#include "bisect/journal.h"
#include "bisect/pool.h"
#include "bisect/task.h"
#include "model/checkpoint.h"

namespace faultline {

struct SessionOptions {
  int jobs = 0;             // 0: one a usable core
  double time_limit_s = 0;  // of the whole run; 0: none
  double timeout_s = 60;    // without progress, then a worker hangs
  uint64_t memory_limit = 0;
  bool quiet = false;          // no status line
  std::string device = "cpu";  // where workers run kernels
  // Where cores/ is made for the core dumps of a GPU; empty: they are read and not kept.
  std::string run_directory;
  // What stands before a worker's own command line: a tool that runs it, with its options. Empty: nothing.
  std::vector<std::string> wrapper;
};

// A result from what is known of a worker that ended without one.
TaskResult result_of_death(const Death& death);

class Session {
 public:
  // `journal` may be null (replay). `known` are the results of an earlier run, by task key. Without a checkpoint
  // nothing is run: only what is known comes back.
  Session(const Checkpoint* checkpoint, SessionOptions options, Journal* journal,
          std::map<std::string, TaskResult> known);

  // Runs what is not known yet, several workers at once, and returns one result a task, in order. Tasks that were not
  // run because the time was up or the run was interrupted come back as "skipped".
  Result<std::vector<TaskResult>> run(const std::vector<WorkerTask>& tasks, const std::string& label);
  Result<TaskResult> run_one(const WorkerTask& task, const std::string& label);

  bool interrupted() const { return interrupted_; }
  bool out_of_time() const { return out_of_time_; }
  // Results there are, of earlier runs too.
  int64_t worker_runs() const { return static_cast<int64_t>(known_.size()); }

 private:
  Status take(const std::string& key, TaskResult result);
  Task pool_task(const WorkerTask& task);
  // Takes a result at once, or when its core dump has been read.
  Status settle(const std::string& key, TaskResult result);
  Status take_read_cores(bool all);
  Status obtain_device_weights();
  Status note_intact(const std::string& key, nlohmann::json event);

  const Checkpoint* checkpoint_;
  SessionOptions options_;
  Journal* journal_;
  std::map<std::string, TaskResult> known_;
  StatusLine status_;
  double start_;
  std::optional<RunWeights> device_weights_;  // of a GPU, once something is to be run there
  std::string last_death_;                    // the key of the task whose worker died last
  CoreReader cores_;
  int done_ = 0;
  int total_ = 0;
  int failing_ = 0;
  bool interrupted_ = false;
  bool out_of_time_ = false;
};

// The results that a journal's entries hold, by task key.
Result<std::map<std::string, TaskResult>> results_in(const std::vector<nlohmann::json>& entries);

}  // namespace faultline
