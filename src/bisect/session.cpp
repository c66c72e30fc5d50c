#include "bisect/session.h"

#include <algorithm>
#include <cstdlib>

#include "base/clock.h"
#include "base/cpus.h"
#include "bisect/protocol.h"
#include "bisect/worker.h"

namespace faultline {
namespace {

// Workers of one GPU side by side, where nobody said how many. Those of a large model take turns: its caches fill the
// memory, and its kernels the multiprocessors. Those of a small one mostly wait for their contexts.
int gpu_jobs(const Checkpoint* checkpoint) {
  constexpr int64_t kSmall = int64_t{8} << 30;
  constexpr int kSideBySide = 4;
  int64_t bytes = 0;
  if (checkpoint != nullptr)
    for (const StoredTensor& tensor : checkpoint->tensors())
      bytes += tensor.view.elements() * static_cast<int64_t>(dtype_bytes(tensor.view.dtype));
  return bytes > kSmall ? 1 : std::min(kSideBySide, usable_cpus());
}

// On a GPU a kernel runs after its launch has returned: what broke a whole pass is only known to be one of its ops. A
// second run that waits after each op names it.
bool needs_locating(const WorkerTask& task, const TaskResult& result) {
  if (task.device == "cpu" || task.options.serialize_all || task.options.op_by_op || !result.error.empty())
    return false;
  return result.verdict == "device-assert" || result.verdict == "illegal-access" ||
         result.verdict == "launch-failure" || result.verdict == "hang" || result.verdict == "crash" ||
         result.verdict == "abort";
}

WorkerTask locating(const WorkerTask& task) {
  WorkerTask result = task;
  result.purpose += "-locate";
  result.options.serialize_all = true;
  return result;
}

// What the second run adds to the first.
void adopt_place(TaskResult& result, TaskResult located) {
  if (located.verdict == result.verdict && located.violation) {
    std::optional<CoreDump> core = result.violation ? std::move(result.violation->core) : std::nullopt;
    result.violation = std::move(located.violation);
    result.violation->core = std::move(core);
    result.probe = located.probe;
    result.edges = std::move(located.edges);
    result.edge_kernels = std::move(located.edge_kernels);
    result.message += "; the op was named by a second run that waits after each one";
    return;
  }
  result.message +=
      located.verdict == "pass"
          ? "; it does not show when every op is waited for, so that the op named is the last one launched"
          : fmt::format("; a second run that waits after each op ended as '{}'", located.verdict);
}

}  // namespace

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
      start_(monotonic_seconds()),
      cores_(options_.run_directory) {
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

Task Session::pool_task(const WorkerTask& task) {
  Task work;
  work.id = task.key();
  work.payload = worker_payload(task, *checkpoint_, device_weights_ ? &*device_weights_ : nullptr);
  const auto pass = [&work](int fd) { work.fds.push_back({fd, kFirstTaskFd + static_cast<int>(work.fds.size())}); };
  for (const int fd : checkpoint_->descriptors()) pass(fd);
  if (device_weights_)
    for (const UniqueFd& fd : device_weights_->slabs) pass(fd.get());
  // With dumps a fault ends the process within milliseconds, but the wait for its kernel may come back first. So runs
  // that must name the very op go without, and get the error from the wait itself.
  const bool waits = task.options.serialize_all || task.options.op_by_op;
  if (options_.device != "cpu" && options_.wrapper.empty() && !waits)
    work.core_prefix = cores_.prefix(fmt::format("{}-{}", task.id, task.purpose));
  return work;
}

// Once a run, before its first worker on a GPU: what a resumed run knows already needs no weights.
Status Session::obtain_device_weights() {
  if (device_weights_ || options_.device == "cpu") return {};
  if (checkpoint_->on_demand() != nullptr) return {};  // each worker makes its own, on the GPU
  FAULTLINE_TRY(device_weights_, obtain_weights(*checkpoint_, options_.device, options_.quiet));
  if (journal_ == nullptr) return {};
  const WeightsManifest& manifest = device_weights_->manifest;
  return journal_->append({{"event", "weights"},
                           {"origin", device_weights_->origin},
                           {"held", device_weights_->held},
                           {"device", manifest.device},
                           {"bytes", manifest.bytes},
                           {"checksum", manifest.checksum}});
}

Status Session::note_intact(const std::string& key, nlohmann::json event) {
  if (journal_ == nullptr) return {};
  event["key"] = key;
  if (!last_death_.empty()) event["after"] = last_death_;
  return journal_->append(event, Durability::kLater);
}

Status Session::settle(const std::string& key, TaskResult result) {
  FAULTLINE_TRY_STATUS(take_read_cores(false));
  if (core_file_of(result).empty()) return take(key, std::move(result));
  cores_.add(key, std::move(result));
  return {};
}

Status Session::take_read_cores(bool all) {
  for (CoreReader::Item& item : cores_.take(all)) FAULTLINE_TRY_STATUS(take(item.key, std::move(item.result)));
  return {};
}

Result<std::vector<TaskResult>> Session::run(const std::vector<WorkerTask>& asked, const std::string& label) {
  std::vector<WorkerTask> tasks = asked;
  for (WorkerTask& task : tasks) task.device = options_.device;
  PoolOptions pool_options;
  pool_options.jobs = options_.jobs;
  if (options_.jobs == 0 && options_.device != "cpu") pool_options.jobs = gpu_jobs(checkpoint_);
  // A worker that makes its weights on use takes all cores, and its part of the memory.
  if (options_.jobs == 0 && checkpoint_ != nullptr && checkpoint_->on_demand() != nullptr) pool_options.jobs = 1;
  pool_options.phase_timeout_s = options_.timeout_s;
  pool_options.memory_limit = options_.memory_limit;
  if (!options_.wrapper.empty()) {
    pool_options.program = options_.wrapper.front();
    pool_options.worker_argv = options_.wrapper;
    pool_options.worker_argv.push_back("worker");
  }
  WorkerPool pool(pool_options);
  std::map<std::string, const WorkerTask*> waiting;
  std::map<std::string, TaskResult> to_locate;  // by the key of the second run
  std::map<std::string, std::string> located_for;
  total_ = std::max(total_, done_ + static_cast<int>(tasks.size()));
  const bool anything_new =
      std::any_of(tasks.begin(), tasks.end(), [this](const WorkerTask& task) { return known_.count(task.key()) == 0; });
  if (checkpoint_ != nullptr && anything_new && !interrupted_ && !out_of_time_)
    FAULTLINE_TRY_STATUS(obtain_device_weights());
  for (const WorkerTask& task : tasks) {
    const std::string key = task.key();
    if (known_.count(key) != 0) {
      ++done_;
      continue;
    }
    if (checkpoint_ == nullptr || !waiting.emplace(key, &task).second) continue;
    pool.submit(pool_task(task));
  }

  std::map<std::string, TaskResult> arrived;
  if (!waiting.empty() && !interrupted_ && !out_of_time_) {
    PoolCallbacks callbacks;
    callbacks.on_event = [&](const Task& task, const nlohmann::json& event) -> Status {
      const std::string name = *event_name(event);
      if (name == event::kWeightsIntact) return note_intact(task.id, event);
      if (name != "result") return {};
      const auto result = event.find("result");
      if (result == event.end()) return internal_error("a worker sent an empty result");
      FAULTLINE_TRY(arrived[task.id], task_result_from_json(*result));
      return {};
    };
    callbacks.on_done = [&](const Task& task, const Death& death) -> Status {
      const auto it = arrived.find(task.id);
      if (!death.ended_well()) last_death_ = task.id;
      TaskResult result = death.ended_well() && it != arrived.end() ? std::move(it->second) : result_of_death(death);
      note_core_dump(result, death.facts);
      if (const auto first = to_locate.find(task.id); first != to_locate.end()) {
        adopt_place(first->second, std::move(result));
        return settle(located_for[task.id], std::move(first->second));
      }
      const WorkerTask& done = *waiting.at(task.id);
      if (!options_.wrapper.empty() || !needs_locating(done, result)) return settle(task.id, std::move(result));
      Task again = pool_task(locating(done));
      located_for[again.id] = task.id;
      to_locate[again.id] = std::move(result);
      pool.submit(std::move(again));
      return {};
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
    if (!interrupted_) FAULTLINE_TRY_STATUS(take_read_cores(true));
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
