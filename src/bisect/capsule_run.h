// `faultline replay CAPSULE`: one capsule in a worker process of its own, so that a kernel that dies ends as a verdict.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "bisect/capsule.h"
#include "bisect/task.h"
#include "model/checkpoint.h"

namespace faultline {

struct CapsuleOptions {
  std::string path;
  std::string model;  // where named weights come from; empty: the checkpoint that the capsule names
  std::string device = "auto";
  bool with_plant = true;  // false: without the fault that was planted when the capsule was written
  double timeout_s = 60;   // without progress, then the kernel hangs
  uint64_t memory_limit = 0;
};

struct CapsuleOutcome {
  std::string op;
  std::string kernel;
  std::string plant;                     // met in this replay; empty: none
  Violation recorded;                    // what was found when the capsule was written
  std::string configuration;             // in whose run
  std::optional<CapsuleRuns> alone;      // set: it did not always break alone then, so that passing now means nothing
  TaskResult result;                     // verdict, violation, message
  ExitCode exit_code = ExitCode::kGood;  // cannot-run-here where it passes and that means nothing
};

// Errors: as read_capsule() and bind_weights(); the model cannot be opened.
Result<CapsuleOutcome> run_capsule(const CapsuleOptions& options);

// The worker's side. `work` is the payload's "capsule"; `checkpoint` is null where all weights are embedded.
Result<TaskResult> run_capsule_task(const nlohmann::json& work, const Checkpoint* checkpoint);

}  // namespace faultline
