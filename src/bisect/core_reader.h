// Reads core dumps beside the run: NVIDIA's debugger takes seconds for one, and the next worker need not wait for it.
#pragma once

#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "bisect/core_dump.h"
#include "bisect/task.h"
#include "bisect/worker_death.h"

namespace faultline {

// The dump that a dead worker left, as far as its own output tells of it: into the violation of its result (made where
// no op is known). `file` is a path from here on, until add_core_dump() makes it one within the run directory.
void note_core_dump(TaskResult& result, const WorkerFacts& facts);

// What a dump adds to a result once it has been read: kernel, source line, block and thread; the verdict where the
// worker's output did not tell the exception. `directory`: of the run, which paths in reports begin in; empty: the dump
// is not kept.
void add_core_dump(TaskResult& result, CoreDump core, const std::string& directory);

// The dump that is to be read for a result; empty: there is none.
std::string core_file_of(const TaskResult& result);

class CoreReader {
 public:
  // `run_directory`: dumps are kept in its folder cores/. Empty: in a folder of their own, as long as this lives.
  explicit CoreReader(std::string run_directory) : directory_(std::move(run_directory)), keep_(!directory_.empty()) {}
  // Interrupts what is being read.
  ~CoreReader();
  CoreReader(const CoreReader&) = delete;
  CoreReader& operator=(const CoreReader&) = delete;

  // The beginning of the paths of a worker's dumps (core_dump.h); empty when there can be no folder for them.
  std::string prefix(const std::string& name);

  struct Item {
    std::string key;
    TaskResult result;
  };
  // A result for which core_file_of() names a dump.
  void add(std::string key, TaskResult result);
  // Those whose dump has been read since; with `all`, every one, as soon as it is.
  std::vector<Item> take(bool all);

 private:
  struct Pending {
    Item item;
    std::future<CoreDump> core;
  };
  std::string directory_;
  bool keep_;
  bool made_ = false;
  std::atomic<bool> cancel_{false};
  std::vector<Pending> pending_;
};

}  // namespace faultline
