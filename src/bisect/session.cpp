#include "bisect/session.h"

#include <algorithm>
#include <cstdlib>

#include "base/clock.h"
#include "bisect/protocol.h"
#include "bisect/worker.h"

namespace faultline {
TaskResult result_of_death(const Death& death) {
  TaskResult result;
  const WorkerFacts& facts = death.facts;
  result.seconds = facts.seconds;
  if (!facts.error.empty()) {
    result.error = facts.error;
    return result;
  }
  result.verdict = death.verdict.empty() ? "crash" : death.verdict;
  result.message = death.message;
  const ProgressSnapshot& progress = facts.progress;
  result.probe = progress.probe;
  if (!progress.started || progress.op.empty()) return result;
  Violation v;
  v.op = progress.op;
  v.kernel = progress.kernel;
  v.provenance = progress.kernel == "reference" ? "reference" : "own";
  v.build = "unchecked";
  v.phase = progress.decode_pass ? "decode" : "prefill";
  v.step = progress.step;
  v.layer = progress.layer;
  v.kind = result.verdict;
  v.probe = progress.probe;
  v.inputs_clean = "unknown";
  v.detail = death.message;
  result.violation = std::move(v);
  return result;
}

Result<std::map<std::string, TaskResult>> results_in(const std::vector<nlohmann::json>& entries) {
  std::map<std::string, TaskResult> results;
  for (const nlohmann::json& entry : entries) {
    const auto name = event_name(entry);
    if (!name || *name != "result") continue;
    const auto key = entry.find("key");
    const auto result = entry.find("result");
    if (key == entry.end() || !key->is_string() || result == entry.end())
      return bad_input("journal: a result without a key; the file was edited or is of another version");
    FAULTLINE_TRY(results[key->get_ref<const std::string&>()], task_result_from_json(*result));
  }
  return results;
}

Session::Session(const Checkpoint* checkpoint, SessionOptions options, Journal* journal,
                 std::map<std::string, TaskResult> known)
    : checkpoint_(checkpoint),
      options_(options),
      journal_(journal),
      known_(std::move(known)),
      start_(monotonic_seconds()) {
  // Read by OpenBLAS when a worker starts. Workers fill the cores by their number; threads of each would cost memory
  // and time to start, make sums depend on the machine, and keep a worker that is short of memory from ending.
  constexpr int kKeepTheUsers = 0;
  ::setenv("OPENBLAS_NUM_THREADS", "1", kKeepTheUsers);
}

Status Session::take(const std::string& key, TaskResult result) {
  if (journal_ != nullptr)
    FAULTLINE_TRY_STATUS(journal_->append({{"event", "result"}, {"key", key}, {"result", to_json(result)}}));
  ++done_;
  if (result.failed()) ++failing_;
  known_[key] = std::move(result);
  return {};
}

Result<TaskResult> Session::run_one(const WorkerTask& task, const std::string& label) {
  FAULTLINE_TRY(auto results, run({task}, label));
  return std::move(results.front());
}

Result<std::vector<TaskResult>> Session::run(const std::vector<WorkerTask>& tasks, const std::string& label) {
  PoolOptions pool_options;
  pool_options.jobs = options_.jobs;
  pool_options.phase_timeout_s = options_.timeout_s;
  pool_options.memory_limit = options_.memory_limit;
  WorkerPool pool(pool_options);
  std::vector<PassedFd> fds;
  if (checkpoint_ != nullptr)
    for (const int fd : checkpoint_->descriptors()) fds.push_back({fd, kFirstTaskFd + static_cast<int>(fds.size())});
  std::map<std::string, const WorkerTask*> waiting;
  total_ = std::max(total_, done_ + static_cast<int>(tasks.size()));
  for (const WorkerTask& task : tasks) {
    const std::string key = task.key();
    if (known_.count(key) != 0) {
      ++done_;
      continue;
    }
    if (checkpoint_ == nullptr || !waiting.emplace(key, &task).second) continue;
    Task work;
    work.id = key;
    work.payload = worker_payload(task, *checkpoint_);
    work.fds = fds;
    pool.submit(std::move(work));
  }

  std::map<std::string, TaskResult> arrived;
  if (!waiting.empty() && !interrupted_ && !out_of_time_) {
    PoolCallbacks callbacks;
    callbacks.on_event = [&](const Task& task, const nlohmann::json& event) -> Status {
      if (*event_name(event) != "result") return {};
      const auto result = event.find("result");
      if (result == event.end()) return internal_error("a worker sent an empty result");
      FAULTLINE_TRY(arrived[task.id], task_result_from_json(*result));
      return {};
    };
    callbacks.on_done = [&](const Task& task, const Death& death) -> Status {
      const auto result = arrived.find(task.id);
      if (death.ended_well() && result != arrived.end()) return take(task.id, std::move(result->second));
      return take(task.id, result_of_death(death));
    };
    callbacks.on_tick = [&] {
      std::string text = label;
      for (const RunningTask& running : pool.running()) {
        const auto it = waiting.find(running.id);
        if (it != waiting.end()) text += " " + it->second->id;
      }
      if (!options_.quiet) status_.update({done_, total_, failing_}, text);
      if (options_.time_limit_s > 0 && monotonic_seconds() - start_ > options_.time_limit_s) {
        out_of_time_ = true;
        pool.stop();
      }
    };
    FAULTLINE_TRY(const PoolEnd end, pool.run(callbacks));
    if (end == PoolEnd::kInterrupted) interrupted_ = true;
  }

  std::vector<TaskResult> results;
  for (const WorkerTask& task : tasks) {
    const auto it = known_.find(task.key());
    if (it != known_.end()) {
      results.push_back(it->second);
      continue;
    }
    TaskResult skipped;
    skipped.verdict = "skipped";
    skipped.message = checkpoint_ == nullptr ? "the run ended before it"
                      : interrupted_         ? "the run was interrupted"
                                             : "the time was up";
    results.push_back(std::move(skipped));
  }
  return results;
}

}  // namespace faultline
