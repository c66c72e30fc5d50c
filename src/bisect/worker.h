// The worker process: one configuration, its probes, its checks; then it is gone.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "bisect/held_weights.h"
#include "bisect/task.h"
#include "bisect/worker_channel.h"
#include "model/checkpoint.h"

namespace faultline {

// The main function of `faultline worker` (started by the pool; not for people).
int worker_main();

// The payload of a pool task: the work and how to map the weights. Its descriptors are the checkpoint's, then those of
// the slabs (null: none).
nlohmann::json worker_payload(const WorkerTask& task, const Checkpoint& checkpoint, const RunWeights* slabs = nullptr);

// Weights that another process put into a GPU's memory; none: the worker uploads its own.
struct SlabSource {
  std::string manifest;
  std::vector<int> descriptors;
  // Told once they are mapped and proven to be what was loaded: an event (session.h).
  std::function<Status(const nlohmann::json& event)> report;
};

// Runs a task here. `progress` may be null (a replay in this process).
Result<TaskResult> run_task(const WorkerTask& task, const Checkpoint& checkpoint, const SlabSource& slabs,
                            ProgressWriter* progress);

}  // namespace faultline
