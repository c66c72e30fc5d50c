// What a worker process costs besides its work: start, attach the checkpoint, report, end.
#include <fmt/format.h>

#include <chrono>
#include <map>
#include <string>

#include "bench.h"
#include "bisect/pool.h"
#include "bisect/protocol.h"
#include "bisect/worker.h"
#include "grid/axes.h"
#include "grid/resolve.h"
#include "model/checkpoint.h"

namespace faultline::bench {
namespace {

constexpr int kWorkers = 20;

struct Cost {
  double wall_s = 0;  // of all workers, one after another
  double work_s = 0;  // of it: building the engine and prefilling one token, as the workers say
};

Result<WorkerTask> one_token() {
  WorkerTask task;
  task.checks = "off";
  task.probes.server_sequence = false;
  task.probes.prefill_lengths = {1};
  FAULTLINE_TRY(const AxisValues axes, with_defaults({}));
  FAULTLINE_TRY(const Target target, find_target("any"));
  task.resolved = resolve(axes, *find_profile(kDefaultProfile), target, ShapeInfo{}).resolved;
  return task;
}

Result<Cost> run_workers(const Checkpoint& checkpoint) {
  FAULTLINE_TRY(WorkerTask task, one_token());
  PoolOptions options;
  options.jobs = 1;
  options.program = FAULTLINE_PROGRAM;
  WorkerPool pool(options);
  std::vector<PassedFd> fds;
  for (const int fd : checkpoint.descriptors()) fds.push_back({fd, kFirstTaskFd + static_cast<int>(fds.size())});
  for (int i = 0; i < kWorkers; ++i) {
    task.id = fmt::format("w{}", i);
    pool.submit(Task{.id = task.id, .payload = worker_payload(task, checkpoint), .fds = fds});
  }
  Cost cost;
  PoolCallbacks callbacks;
  callbacks.on_event = [&](const Task&, const nlohmann::json& event) -> Status {
    if (*event_name(event) != "result") return {};
    FAULTLINE_TRY(const TaskResult result, task_result_from_json(event.at("result")));
    if (result.verdict != "pass") return internal_error("a worker ended with '{}' {}", result.verdict, result.error);
    cost.work_s += result.seconds;
    return {};
  };
  callbacks.on_done = [&](const Task&, const Death& death) -> Status {
    return death.ended_well() ? Status{} : internal_error("a worker died: {}", death.message);
  };
  const auto start = std::chrono::steady_clock::now();
  FAULTLINE_TRY(const PoolEnd end, pool.run(callbacks));
  if (end != PoolEnd::kDone) return internal_error("interrupted");
  cost.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return cost;
}

}  // namespace

Status workers() {
  fmt::print("\nworkers, one after another, ms each (mean of {})\n", kWorkers);
  fmt::print("{:>32} {:>8} {:>20} {:>28}\n", "model", "MiB", "start, attach, end", "engine and one token");
  for (const char* model : {"synth:tiny", "synth:slim", "synth:slim?num_hidden_layers=48"}) {
    FAULTLINE_TRY(const Checkpoint checkpoint, Checkpoint::open(model));
    FAULTLINE_TRY(const Cost cost, run_workers(checkpoint));
    double bytes = 0;
    for (const StoredTensor& tensor : checkpoint.tensors())
      bytes += static_cast<double>(tensor.view.elements()) * static_cast<double>(dtype_bytes(tensor.view.dtype));
    constexpr double kMiB = 1048576;
    constexpr double kMilli = 1e3 / kWorkers;
    fmt::print("{:>32} {:>8.1f} {:>20.1f} {:>28.1f}\n", model, bytes / kMiB, (cost.wall_s - cost.work_s) * kMilli,
               cost.work_s * kMilli);
  }
  return {};
}

}  // namespace faultline::bench
