#include "bisect/capsule_run.h"

#include "base/clock.h"
#include "bisect/held_weights.h"
#include "bisect/pool.h"
#include "bisect/protocol.h"
#include "bisect/session.h"
#include "bisect/worker_channel.h"

namespace faultline {
namespace {

Violation to_violation(const Capsule& capsule, const OpViolation& found) {
  const Op& op = capsule.op;
  Violation v;
  v.op = op.name;
  v.kernel = op.kernel->name;
  v.provenance = provenance_name(op.kernel->provenance);
  v.build = "checked";
  v.phase = pass_phase_name(capsule.info.phase);
  v.step = capsule.info.step;
  v.layer = op.layer;
  v.tensor = op.tensor_names[static_cast<size_t>(found.operand)];
  v.kind = found.kind;
  v.index = found.index;
  v.value = found.value;
  v.bits = fmt::format("0x{:x}", found.bits);
  v.count = found.count;
  v.inputs_clean = capsule.violation.inputs_clean;
  v.bad_input = capsule.violation.bad_input;
  v.detail = found.detail;
  return v;
}

Result<Checkpoint> open_model(const CapsuleOptions& options, const Capsule& capsule) {
  if (!options.model.empty()) return open_checkpoint(options.model);
  auto opened = open_checkpoint(capsule.model);
  if (!opened)
    return cannot_run("{}; the capsule takes weights from there: name the checkpoint by --model",
                      opened.error().message);
  return opened;
}

}  // namespace

Result<TaskResult> run_capsule_task(const nlohmann::json& work, const Checkpoint* checkpoint) {
  const auto path = work.find("path");
  const auto plant = work.find("plant");
  const auto device_name = work.find("device");
  if (path == work.end() || !path->is_string() || plant == work.end() || !plant->is_boolean() ||
      device_name == work.end() || !device_name->is_string())
    return internal_error("the worker was given no capsule");
  const double start = monotonic_seconds();
  FAULTLINE_TRY(Capsule capsule, read_capsule(path->get_ref<const std::string&>()));
  if (checkpoint != nullptr) FAULTLINE_TRY_STATUS(bind_weights(capsule, *checkpoint));
  FAULTLINE_TRY(const auto device, make_device(device_name->get_ref<const std::string&>()));
  FAULTLINE_TRY(const CapsuleReplay replay, replay_capsule(capsule, *plant->get_ptr<const bool*>(), *device));
  TaskResult result;
  result.verdict = "pass";
  result.seconds = monotonic_seconds() - start;
  if (!replay.violation) return result;
  result.violation = to_violation(capsule, *replay.violation);
  result.verdict = result.violation->kind;
  result.message = fmt::format("broke in {} of {} runs", replay.broken, replay.runs);
  return result;
}

Result<CapsuleOutcome> run_capsule(const CapsuleOptions& options) {
  FAULTLINE_TRY(const std::string device, usable_device(options.device));
  FAULTLINE_TRY(Capsule capsule, read_capsule(options.path));
  Task task;
  task.id = options.path;
  task.payload = {{"capsule", {{"path", options.path}, {"plant", options.with_plant}, {"device", device}}}};
  std::optional<Checkpoint> checkpoint;
  if (!capsule.weights.empty()) {
    FAULTLINE_TRY(checkpoint, open_model(options, capsule));
    FAULTLINE_TRY_STATUS(bind_weights(capsule, *checkpoint));
    task.payload["manifest"] = checkpoint->manifest();
    for (const int fd : checkpoint->descriptors())
      task.fds.push_back({fd, kFirstTaskFd + static_cast<int>(task.fds.size())});
    task.payload["descriptors"] = static_cast<int64_t>(task.fds.size());
  }
  CapsuleOutcome outcome;
  outcome.op = capsule.op.name;
  outcome.kernel = capsule.op.kernel->name;
  outcome.plant = options.with_plant ? capsule.plant : "";
  outcome.recorded = capsule.violation;
  outcome.configuration = capsule.configuration;
  outcome.alone = capsule.alone;

  PoolOptions pool_options;
  pool_options.jobs = 1;
  pool_options.phase_timeout_s = options.timeout_s;
  pool_options.memory_limit = options.memory_limit;
  WorkerPool pool(pool_options);
  pool.submit(std::move(task));
  bool arrived = false;
  PoolCallbacks callbacks;
  callbacks.on_event = [&](const Task&, const nlohmann::json& event) -> Status {
    if (*event_name(event) != "result") return {};
    const auto result = event.find("result");
    if (result == event.end()) return internal_error("a worker sent an empty result");
    FAULTLINE_TRY(outcome.result, task_result_from_json(*result));
    arrived = true;
    return {};
  };
  callbacks.on_done = [&](const Task&, const Death& death) -> Status {
    if (!death.ended_well() || !arrived) outcome.result = result_of_death(death);
    return {};
  };
  FAULTLINE_TRY(const PoolEnd end, pool.run(callbacks));
  if (!outcome.result.error.empty()) return internal_error("{}: {}", options.path, outcome.result.error);
  if (end == PoolEnd::kInterrupted)
    outcome.exit_code = ExitCode::kInterrupted;
  else if (outcome.result.failed())
    outcome.exit_code = ExitCode::kFailuresLocalized;
  else
    outcome.exit_code = outcome.alone ? ExitCode::kCannotRunHere : ExitCode::kGood;
  return outcome;
}

}  // namespace faultline
