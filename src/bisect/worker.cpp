#include "bisect/worker.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "bisect/assume_fixed.h"
#include "bisect/capsule.h"
#include "bisect/capsule_run.h"
#include "bisect/core_dump.h"
#include "bisect/engine_config.h"
#include "bisect/plant.h"
#include "bisect/plant_selector.h"
#include "bisect/probes.h"
#include "bisect/protocol.h"
#include "bisect/signature.h"
#include "bisect/spec_stand_in.h"
#include "check/compare.h"
#include "engine/device_weights.h"
#include "engine/engine.h"

namespace faultline {
namespace {

constexpr int64_t kWarmupTokens = 4;
constexpr int64_t kWarmupSteps = 2;
constexpr int kReplays = 3;
constexpr size_t kMaxEdges = 11;  // the one that matters is then found, and proven, within the runs of a conviction

class ProgressObserver : public Observer {
 public:
  explicit ProgressObserver(ProgressWriter* progress) : progress_(progress) {}
  void on_op(const PassInfo& info, int index, const Op& op) override {
    if (progress_ == nullptr) return;
    if (info.step != step_ || info.phase != phase_) {
      progress_->step(info.step, info.phase == PassPhase::kDecode);
      step_ = info.step;
      phase_ = info.phase;
    }
    progress_->op(index, op.name, op.kernel->name, op.layer);
  }
  void restart() { step_ = -1; }

 private:
  ProgressWriter* progress_;
  int64_t step_ = -1;
  PassPhase phase_ = PassPhase::kPrefill;
};

Violation to_violation(const EngineViolation& found) {
  Violation v;
  v.op = found.op;
  v.kernel = found.kernel;
  v.provenance = std::string(provenance_name(found.provenance));
  v.build = found.checked_build ? "checked" : "unchecked";
  v.phase = pass_phase_name(found.info.phase);
  v.step = found.info.step;
  v.layer = found.layer;
  v.tensor = found.tensor;
  v.kind = found.violation.kind;
  v.index = found.violation.index;
  v.value = found.violation.value;
  v.bits = fmt::format("0x{:x}", found.violation.bits);
  v.count = found.violation.count;
  v.inputs_clean = found.inputs_clean;
  v.bad_input = found.bad_input;
  v.detail = found.violation.detail;
  v.setting = found.violation.setting;
  v.attribute = found.violation.attribute;
  return v;
}

Violation to_violation(const EngineFault& fault) {
  Violation v;
  v.op = fault.op;
  v.kernel = fault.kernel;
  v.provenance = std::string(provenance_name(fault.provenance));
  v.build = "unchecked";
  v.phase = pass_phase_name(fault.info.phase);
  v.step = fault.info.step;
  v.layer = fault.layer;
  v.kind = fault.fault.verdict;
  v.inputs_clean = "unknown";
  v.detail = fault.fault.message;
  return v;
}

// Replaces every scalar scale that no kernel can multiply with. The memory lives as long as the process.
void repair_scales(ModelWeights& weights) {
  static float one = 1.0f;
  const auto repair = [](LinearWeight& weight) {
    for (TensorView* scale : {&weight.global_scale, &weight.input_scale, &weight.block_scale}) {
      if (scale->data == nullptr || scale->dtype != Dtype::kF32 || scale->elements() != 1) continue;
      const float value = scale->as<float>()[0];
      if (!(value > 0) || !std::isfinite(value)) scale->data = reinterpret_cast<std::byte*>(&one);
    }
  };
  repair(weights.lm_head);
  for (LayerWeights& layer : weights.layers) {
    for (LinearWeight* weight : {&layer.q_a, &layer.q_b, &layer.kv_a, &layer.o, &layer.index_q, &layer.index_k,
                                 &layer.index_heads, &layer.down, &layer.router, &layer.shared_down})
      repair(*weight);
    for (auto* list : {&layer.gate_up, &layer.expert_gate_up, &layer.expert_down, &layer.shared_gate_up})
      for (LinearWeight& weight : *list) repair(weight);
  }
}

class TaskRunner {
 public:
  TaskRunner(const WorkerTask& task, const Checkpoint& checkpoint, const SlabSource& slabs, ProgressWriter* progress)
      : task_(task), checkpoint_(checkpoint), progress_(progress), observer_(progress), slabs_(slabs) {}

  Result<TaskResult> run() {
    const double start = monotonic_seconds();
    FAULTLINE_TRY_STATUS(prepare());
    FAULTLINE_TRY_STATUS(all_probes());
    if (result_.verdict.empty()) result_.verdict = "pass";
    result_.launches = engine_->state().launches;
    if (stand_in_ != nullptr) {
      result_.launches = stand_in_->calls();
      result_.last_kernel_op = stand_in_->last_op();
      result_.last_kernel = stand_in_->last_kernel();
    }
    if (plant_ != nullptr) result_.plant_fired = plant_->fired();
    result_.seconds = monotonic_seconds() - start;
    return std::move(result_);
  }

 private:
  void mark(WorkerPhase phase, std::string_view text = {}, int64_t probe = -1) {
    if (progress_ != nullptr) {
      progress_->phase(phase, text);
      progress_->probe(probe);
    }
    observer_.restart();
  }

  Status prepare() {
    mark(WorkerPhase::kLoad);
    if (checkpoint_.on_demand() != nullptr) set_parallel_threads(usable_cpus());  // it is alone (Session::run)
    FAULTLINE_TRY(weights_, load_weights(checkpoint_));
    const uint64_t draw = CounterRng(task_.seed, task_.id).bits(0);  // each configuration draws for itself
    if (!task_.plant.empty() && plant_is_there(task_.plant, draw, task_.options.repeat)) {
      FAULTLINE_TRY(plant_, make_plant(task_.plant, weights_.config));
      plant_->weights(weights_);
    }
    if (task_.options.repair_scales || assumes_weights(task_.assume_fixed)) repair_scales(weights_);
    FAULTLINE_TRY_STATUS(place_weights());
    mark(WorkerPhase::kBuild);
    FAULTLINE_TRY(const CheckLevel checks, check_level(task_.checks));
    FAULTLINE_TRY(EngineConfig config, engine_config(task_.resolved, checks, task_.seed, task_.probes.chunk));
    if (task_.options.eager) config.cuda_graph = false;
    if (task_.options.op_by_op) config.checks = CheckLevel::kReference;
    EngineLimits limits;
    limits.max_requests = largest_batch(task_.probes);
    limits.max_context = std::max(longest_sequence(task_.probes), kWarmupTokens + kWarmupSteps + 1);
    SamplingParams sampling{task_.probes.temperature, task_.probes.top_p};
    EngineHooks hooks;
    hooks.injector = plant_.get();
    if (task_.options.outputs) {
      stand_in_ = std::make_unique<SpecStandIn>(task_.options, plant_.get(), *mirror_);
      hooks.injector = stand_in_.get();
    }
    hooks.observer = &observer_;
    hooks.op_by_op = task_.options.op_by_op;
    hooks.serialize_all = task_.options.serialize_all;
    hooks.serialize = {task_.options.serialize.begin(), task_.options.serialize.end()};
    hooks.refresh = {task_.options.refresh.begin(), task_.options.refresh.end()};
    if (task_.options.kernel_limit >= 0 || !task_.options.reference.empty() || !task_.assume_fixed.empty())
      hooks.use_reference = [this](const Op& op, int64_t launch) { return on_reference(op, launch); };
    if (progress_ != nullptr && device_->is_cuda()) {
      hooks.device_page = &progress_->device_page();
      FAULTLINE_TRY(hooks.device_page_there,
                    device_->map_host(reinterpret_cast<std::byte*>(hooks.device_page), sizeof(DeviceCheckPage)));
    }
    FAULTLINE_TRY(engine_, Engine::create(*placed_, config, limits, sampling, std::move(hooks), mirror_.get()));
    if (config.cuda_graph) {
      mark(WorkerPhase::kCapture);
      FAULTLINE_TRY(const PassOutcome outcome,
                    engine_->capture(limits.max_requests, task_.probes.server_sequence || greedy()));
      take(outcome, -1);
    }
    return {};
  }

  // Whether a reference stands in the place of the op's kernel.
  bool on_reference(const Op& op, int64_t launch) {
    if (assumed_fixed(task_.assume_fixed, op)) return true;
    if (task_.options.kernel_limit >= 0) {
      if (launch >= task_.options.kernel_limit) return true;
      result_.last_kernel_op = op.name;
      result_.last_kernel = op.kernel->name;
    }
    return std::any_of(task_.options.reference.begin(), task_.options.reference.end(), [&](const std::string& pattern) {
      return pattern == op.name || pattern == op_pattern(op.name) ||
             (pattern.starts_with(kSettingPrefix) &&
              structural_difference(op) == pattern.substr(kSettingPrefix.size()));
    });
  }

  // The device, and the weights where its kernels read them.
  Status place_weights() {
    FAULTLINE_TRY(device_, make_device(task_.device));
    mirror_ = std::make_unique<HostMirror>(*device_);
    placed_ = &weights_;
    if (!device_->is_cuda()) return {};
    if (plant_ != nullptr) plant_->use_device(*device_);
    auto on_device = slabs_.descriptors.empty()
                         ? DeviceWeights::upload(*device_, checkpoint_)
                         : DeviceWeights::attach(*device_, checkpoint_, slabs_.manifest, slabs_.descriptors);
    if (!on_device) return tl::make_unexpected(std::move(on_device).error());
    device_weights_.emplace(std::move(*on_device));
    if (!slabs_.descriptors.empty()) FAULTLINE_TRY_STATUS(prove_intact());
    FAULTLINE_TRY(on_device_, device_weights_->to_device(weights_));
    for (const DeviceWeights::Range& range : device_weights_->ranges())
      mirror_->add(range.device, range.bytes, range.host);
    placed_ = &on_device_;
    return {};
  }

  // Whatever the worker before this one did to the weights shows before the first kernel of this one.
  Status prove_intact() {
    const Stopwatch watch;
    FAULTLINE_TRY_STATUS(device_weights_->verify());
    if (!slabs_.report) return {};
    return slabs_.report({{"event", event::kWeightsIntact},
                          {"checksum", device_weights_->checksum()},
                          {"bytes", device_weights_->bytes()},
                          {"seconds", watch.seconds()}});
  }

  bool greedy() const { return !(task_.probes.temperature > 0); }

  Status all_probes() {
    if (result_.failed()) return {};  // the capture has failed
    // The server's sequence: a greedy warm-up query comes before the first sampled one, and argmax hides a NaN.
    if (task_.probes.server_sequence) {
      mark(WorkerPhase::kWarmUp, "greedy warm-up");
      const Probe warmup{Probe::Kind::kDecode, {kWarmupTokens}, kWarmupSteps};
      FAULTLINE_TRY(const bool go_on, one_probe(warmup, -1, true));
      if (!go_on) return {};
    }
    const std::vector<Probe> probes = list_probes(task_.probes);
    for (size_t i = 0; i < probes.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      if (task_.options.only_probe >= 0 && task_.options.only_probe != index) continue;
      FAULTLINE_TRY(const bool go_on, one_probe(probes[i], index, false));
      if (!go_on) return {};
    }
    return {};
  }

  // False: the probe failed.
  Result<bool> one_probe(const Probe& probe, int64_t index, bool warmup) {
    mark(warmup ? WorkerPhase::kWarmUp : WorkerPhase::kPrefill, probe.text(), index);
    Engine::StepOptions options;
    options.greedy = warmup || greedy();
    options.warmup = warmup;
    std::vector<Sequence> sequences;
    std::vector<Sequence*> pointers;
    sequences.reserve(probe.lengths.size());
    for (size_t row = 0; row < probe.lengths.size(); ++row) {
      FAULTLINE_TRY(Sequence sequence,
                    engine_->open(probe_tokens(task_.probes, task_.seed, weights_.config.vocab_size, index,
                                               static_cast<int64_t>(row), probe.lengths[row])));
      sequences.push_back(std::move(sequence));
      pointers.push_back(&sequences.back());
    }
    bool failed = false;
    bool done = false;
    while (!done && !failed) {
      FAULTLINE_TRY(const PassOutcome outcome, engine_->prefill(pointers, options, done));
      failed = take(outcome, index);
      if (task_.options.outputs && !warmup && !failed) note_outputs(sequences, done && sequences.size() == 1, index);
    }
    if (probe.steps > 0 && !failed && !warmup) mark(WorkerPhase::kDecode, probe.text(), index);
    for (int64_t step = 0; step < probe.steps && !failed; ++step) {
      FAULTLINE_TRY(const PassOutcome outcome, engine_->decode(pointers, options));
      failed = take(outcome, index);
      if (task_.options.outputs && !warmup && !failed) note_outputs(sequences, true, index);
    }
    for (Sequence& sequence : sequences) engine_->close(sequence);
    ++result_.probes;
    return !failed;
  }

  // Samples the logits where `complete`, and goes on with tokens that every such run has, whatever was sampled: runs
  // then differ in what they compute, not in what they are asked.
  void note_outputs(std::vector<Sequence>& sequences, bool complete, int64_t probe) {
    const CounterRng columns(task_.seed, "sampled logits");
    const CounterRng tokens(task_.seed, fmt::format("fixed tokens {}", probe));
    const auto vocab = static_cast<uint32_t>(weights_.config.vocab_size);
    const TensorView logits = engine_->host_view(engine_->last_pass().logits);
    for (size_t row = 0; row < sequences.size(); ++row) {
      Sequence& sequence = sequences[row];
      if (static_cast<int64_t>(sequence.tokens.size()) > sequence.prompt)
        sequence.tokens.back() = static_cast<int32_t>(tokens.below(row << 32 | sequence.tokens.size(), vocab));
      if (!complete) continue;
      for (size_t i = 0; i < kSampledLogits; ++i) {
        const auto column = static_cast<int64_t>(columns.below(i, vocab));
        const float value = logits.load(static_cast<int64_t>(row) * logits.stride[0] + column);
        result_.outputs.push_back(std::bit_cast<uint32_t>(value));
      }
    }
  }

  Violation named(Violation violation, int op_index, int64_t probe) const {
    violation.probe = probe;
    violation.follows = engine_->last_pass().ops[static_cast<size_t>(op_index)].kernel->follows;
    return violation;
  }

  // True: the run has failed.
  bool take(const PassOutcome& outcome, int64_t probe) {
    for (const EngineViolation& found : outcome.settings) {
      Violation setting = named(to_violation(found), found.op_index, probe);
      bool known = false;
      // One setting shows in every op that takes it (theta in four RoPE ops a layer): the first stands for all.
      for (const Violation& old : result_.settings)
        known = known || (old.kernel == setting.kernel && old.attribute == setting.attribute);
      if (!known) result_.settings.push_back(std::move(setting));
    }
    if (outcome.clean()) return false;
    result_.probe = probe;
    if (!outcome.violations.empty()) {
      const EngineViolation& first = outcome.violations.front();
      result_.violation = named(to_violation(first), first.op_index, probe);
      result_.verdict = first.violation.kind;
      result_.message = first.violation.detail;
      for (const Op* op : edges_before(first.op_index)) {
        result_.edges.push_back(op->name);
        result_.edge_kernels.push_back(op->kernel->name);
      }
      if (task_.options.op_by_op) result_.replayed = replay(first);
      if (!task_.options.capsule.empty()) result_.capsule = save_capsule(first);
      return true;
    }
    result_.violation = named(to_violation(*outcome.fault), outcome.fault->op_index, probe);
    result_.verdict = outcome.fault->fault.verdict;
    result_.message = outcome.fault->fault.message;
    return true;
  }

  // The ops whose results may not have been there yet: those whose output the op reads, then the others of its layer,
  // nearest first.
  std::vector<const Op*> edges_before(int op_index) const {
    const Pass& pass = engine_->last_pass();
    const Op& op = pass.ops[static_cast<size_t>(op_index)];
    std::vector<const Op*> producers;
    std::vector<const Op*> others;
    for (int i = op_index - 1; i >= 0 && others.size() < kMaxEdges; --i) {
      const Op& before = pass.ops[static_cast<size_t>(i)];
      if (before.shadow) continue;
      bool feeds = false;
      for (size_t o = 0; o < op.kind->operands.size(); ++o)
        for (size_t w = 0; w < before.kind->operands.size(); ++w)
          feeds = feeds || (op.kind->operands[o].direction == Direction::kIn &&
                            before.kind->operands[w].direction == Direction::kOut && !op.tensor_names[o].empty() &&
                            op.tensor_names[o] == before.tensor_names[w]);
      (feeds ? producers : others).push_back(&before);
    }
    producers.insert(producers.end(), others.begin(), others.end());
    if (producers.size() > kMaxEdges) producers.resize(kMaxEdges);
    return producers;
  }

  // The same op on the same inputs, several times, in scratch memory: does it break again?
  std::string replay(const EngineViolation& found) {
    const Pass& pass = engine_->last_pass();
    const OpKind& kind = *pass.ops[static_cast<size_t>(found.op_index)].kind;
    // A scale of the checkpoint is what it is: nothing was run to make it so.
    if (kind.operands[static_cast<size_t>(found.violation.operand)].content == Content::kWeight) return "yes";
    mark(WorkerPhase::kReplay, found.op);
    int broken = 0;
    for (int i = 0; i < kReplays; ++i)
      if (replay_op(pass, found.op_index, engine_->last_info(), engine_->hooks(),
                    task_.seed + static_cast<uint64_t>(i)))
        ++broken;
    return broken == kReplays ? "yes" : "no";
  }

  // Writes the op with its inputs, and replays it from the file. "yes", "no", or why it could not be done.
  std::string save_capsule(const EngineViolation& found) {
    mark(WorkerPhase::kReplay, found.op);
    const CapsuleSource source{engine_->host_op(found.op_index),
                               engine_->last_info(),
                               *result_.violation,
                               checkpoint_,
                               task_.id,
                               plant_ == nullptr ? "" : fmt::format("{}@{}", plant_->info().name, plant_->where()),
                               task_.seed,
                               CapsuleSource::kEmbeddedWeights,
                               task_.device};
    const auto replayed = write_proven_capsule(task_.options.capsule, source, *device_);
    if (!replayed) return replayed.error().message;
    return replayed->broken == replayed->runs ? "yes" : "no";
  }

  const WorkerTask& task_;
  const Checkpoint& checkpoint_;
  ProgressWriter* progress_;
  ProgressObserver observer_;
  const SlabSource& slabs_;
  ModelWeights weights_;
  std::unique_ptr<PlantedFault> plant_;
  std::unique_ptr<SpecStandIn> stand_in_;  // uses the plant and the mirror
  // In the order in which they are made: what stands on the device ends before it.
  std::unique_ptr<Device> device_;
  std::optional<DeviceWeights> device_weights_;
  ModelWeights on_device_;
  const ModelWeights* placed_ = nullptr;
  std::unique_ptr<HostMirror> mirror_;
  std::unique_ptr<Engine> engine_;
  TaskResult result_;
};

Result<Checkpoint> attach_checkpoint(const nlohmann::json& payload) {
  const auto manifest = payload.find("manifest");
  const auto descriptors = payload.find("descriptors");
  if (manifest == payload.end() || !manifest->is_string() || descriptors == payload.end() ||
      !descriptors->is_number_integer())
    return internal_error("the worker was given no checkpoint");
  std::vector<int> fds;
  const int64_t count = *descriptors->get_ptr<const int64_t*>();
  for (int64_t i = 0; i < count; ++i) fds.push_back(kFirstTaskFd + static_cast<int>(i));
  return Checkpoint::attach(manifest->get_ref<const std::string&>(), fds);
}

// The slabs of device weights follow the checkpoint's descriptors.
SlabSource slabs_of(const nlohmann::json& payload) {
  SlabSource slabs;
  const auto manifest = payload.find("slab_manifest");
  const auto count = payload.find("slabs");
  const auto before = payload.find("descriptors");
  if (manifest == payload.end() || !manifest->is_string() || count == payload.end() || !count->is_number_integer() ||
      before == payload.end() || !before->is_number_integer())
    return slabs;
  slabs.manifest = manifest->get_ref<const std::string&>();
  for (int64_t i = 0; i < *count->get_ptr<const int64_t*>(); ++i)
    slabs.descriptors.push_back(kFirstTaskFd + static_cast<int>(*before->get_ptr<const int64_t*>() + i));
  return slabs;
}

Result<TaskResult> work_of(WorkerChannel& channel) {
  const nlohmann::json& payload = channel.task();
  ProgressWriter& progress = channel.progress();
  if (const auto capsule = payload.find("capsule"); capsule != payload.end()) {
    progress.phase(WorkerPhase::kReplay);
    if (payload.find("manifest") == payload.end()) return run_capsule_task(*capsule, nullptr);
    FAULTLINE_TRY(const Checkpoint checkpoint, attach_checkpoint(payload));
    return run_capsule_task(*capsule, &checkpoint);
  }
  const auto task_json = payload.find("task");
  if (task_json == payload.end()) return internal_error("the worker was given no task");
  FAULTLINE_TRY(const WorkerTask task, task_from_json(*task_json));
  FAULTLINE_TRY(const Checkpoint checkpoint, attach_checkpoint(payload));
  SlabSource slabs = slabs_of(payload);
  slabs.report = [&channel](const nlohmann::json& event) { return channel.send(event); };
  return run_task(task, checkpoint, slabs, &progress);
}

Status worker_body(WorkerChannel& channel) {
  FAULTLINE_TRY(const TaskResult result, work_of(channel));
  await_late_faults();
  channel.progress().phase(WorkerPhase::kFinish);
  return channel.send({{"event", "result"}, {"result", to_json(result)}});
}

}  // namespace

nlohmann::json worker_payload(const WorkerTask& task, const Checkpoint& checkpoint, const RunWeights* slabs) {
  nlohmann::json payload = {{"task", to_json(task)},
                            {"manifest", checkpoint.manifest()},
                            {"descriptors", static_cast<int64_t>(checkpoint.descriptors().size())}};
  if (slabs != nullptr) {
    payload["slab_manifest"] = to_text(slabs->manifest);
    payload["slabs"] = static_cast<int64_t>(slabs->slabs.size());
  }
  return payload;
}

Result<TaskResult> run_task(const WorkerTask& task, const Checkpoint& checkpoint, const SlabSource& slabs,
                            ProgressWriter* progress) {
  return TaskRunner(task, checkpoint, slabs, progress).run();
}

int worker_main() {
  return run_worker(worker_body);
}

}  // namespace faultline
