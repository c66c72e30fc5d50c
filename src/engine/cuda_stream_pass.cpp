#include "engine/cuda_stream_pass.h"

#include <algorithm>

#include "engine/call_op.h"
#include "engine/describe.h"
#include "engine/op_contract.h"

namespace faultline {
namespace {

class StreamRunner {
 public:
  StreamRunner(const Pass& pass, const PassInfo& info, CheckLevel level, const EngineHooks& hooks, RunState& state)
      : pass_(pass),
        info_(info),
        level_(level),
        hooks_(hooks),
        state_(state),
        caller_(pass, info, hooks),
        checks_(level > CheckLevel::kOff ? pass.checks.get() : nullptr),
        device_(pass.mirror->device()),
        count_(static_cast<int>(pass.ops.size())) {}

  PassOutcome run() {
    if (checks_ != nullptr) checks_->set_live(info_.live);
    check_scalar_scales();
    if (outcome_.clean()) {
      if (replayable(pass_, hooks_) && !pass_.segments.empty())
        replay();
      else
        eager(0, count_);
    }
    finish();
    return std::move(outcome_);
  }

  // Whether nothing but launches makes up the run of a recorded pass.
  static bool replayable(const Pass&, const EngineHooks& hooks) {
    return !hooks.use_reference && !hooks.serialize_all && hooks.serialize.empty();
  }

  // Gives ops [begin, end) to the stream.
  void eager(int begin, int end) {
    for (int i = begin; i < end && !stopped(); ++i) {
      if (i == 0 && checks_ != nullptr) checks_->poison(group(0));
      launch(i);
      if (!stopped() && ends_group(i)) end_group(i);
    }
  }

  // Ops that the host has a hand in, in this run.
  bool cut(int i) const {
    const Op& op = pass_.ops[static_cast<size_t>(i)];
    const bool conflict = level_ >= CheckLevel::kFull && !op.shadow && has_layout_conflict(op);
    return caller_.hosted(op) || conflict || op.kernel->provenance == Provenance::kReference;
  }

 private:
  bool stopped() const { return outcome_.fault.has_value() || !outcome_.violations.empty(); }
  bool ends_group(int i) const { return i + 1 == count_ || pass_.group[static_cast<size_t>(i + 1)] != group(i); }
  int group(int i) const { return pass_.group[static_cast<size_t>(i)]; }

  // Checks the group, and lays the poison of the one after it.
  void end_group(int i) {
    const bool last = i + 1 == count_;
    const bool look = hooks_.on_layer && pass_.ops[static_cast<size_t>(i)].layer >= 0;
    if (checks_ != nullptr && !look && !last) {
      checks_->check_and_poison(group(i), group(i + 1));
      return;
    }
    if (checks_ != nullptr) checks_->check(group(i));
    if (!look || !wait(i)) return;
    hooks_.on_layer(pass_, info_, pass_.ops[static_cast<size_t>(i)].layer);
    if (checks_ != nullptr && !last) checks_->poison(group(i + 1));
  }

  void launch(int i) {
    const Op& op = pass_.ops[static_cast<size_t>(i)];
    const int64_t number = state_.launches++;
    const bool in_place = caller_.swapped(op, number);
    const bool alone = caller_.serialized(op) || caller_.hosted(op);
    if (alone && !wait(i - 1)) return;
    if (hooks_.observer != nullptr && !op.shadow && (alone || i == 0)) hooks_.observer->on_op(info_, i, op);
    if (level_ >= CheckLevel::kFull && !op.shadow && !in_place && has_layout_conflict(op)) {
      if (!wait(i - 1)) return;
      look_at_layouts(i);
      if (stopped()) return;
    }
    const OpCall call = caller_.call(op, ++state_.seed, false);
    if (KernelResult result = caller_.run(op, call, in_place)) {
      fault(i, std::move(*result));
      return;
    }
    if (checks_ != nullptr && level_ >= CheckLevel::kFull && !op.shadow) checks_->check_indices(i);
    if (alone) wait(i);
  }

  // The graphs, and what lies between them.
  void replay() {
    for (const PassSegment& segment : pass_.segments) {
      if (stopped()) return;
      if (segment.graph == nullptr) {
        eager(segment.begin, segment.end);
        continue;
      }
      if (hooks_.observer != nullptr)
        hooks_.observer->on_op(info_, segment.begin, pass_.ops[static_cast<size_t>(segment.begin)]);
      state_.launches += segment.end - segment.begin;
      state_.seed += static_cast<uint64_t>(segment.end - segment.begin);
      if (const Status launched = device_.launch(*segment.graph); !launched)
        fault(segment.begin, KernelFault{"launch-failure", launched.error().message});
    }
  }

  void look_at_layouts(int i) {
    const Op& op = pass_.ops[static_cast<size_t>(i)];
    pass_.mirror->pull(op);
    const Op host = pass_.mirror->mirrored(op);
    if (auto found = check_layouts(host, host.call(), info_.live))
      outcome_.violations.push_back(describe_violation(host, i, info_, false, std::move(*found)));
  }

  // Scalar scales lie in the checkpoint: the host's copy of it says the same, and once is enough (thousands of views a
  // layer, looked up one by one before the first launch). All passes of an engine have the same weights.
  void check_scalar_scales() {
    if (level_ < CheckLevel::kFull || state_.scales_sound) return;
    for (int i = 0; i < count_; ++i) {
      const Op& op = pass_.ops[static_cast<size_t>(i)];
      if (op.shadow || !has_scalar_scales(op)) continue;
      const Op host = pass_.mirror->mirrored(op);
      auto found = check_scales(host, host.call(), false);
      if (!found) continue;
      outcome_.violations.push_back(describe_late_violation(host, i, info_, std::move(*found), "yes"));
      return;
    }
    state_.scales_sound = true;
  }

  static bool has_scalar_scales(const Op& op) {
    return std::any_of(op.kind->operands.begin(), op.kind->operands.end(), [](const OperandSpec& spec) {
      return spec.name == "input_scale" || spec.name == "global_scale";
    });
  }

  // False: the device has died; `i` is the last op that was given to it.
  bool wait(int i) {
    const auto died = device_.wait();
    if (!died) return true;
    if (!outcome_.fault) fault(std::max(i, 0), KernelFault{died->verdict, died->message});
    return false;
  }

  void fault(int i, KernelFault what) {
    const Op& op = pass_.ops[static_cast<size_t>(i)];
    outcome_.fault = EngineFault{std::move(what), op.name, i, op.layer, op.kernel->name, op.kernel->provenance, info_};
  }

  void finish() {
    wait(count_ - 1);
    if (checks_ == nullptr) return;
    // All inputs of the first op whose outputs are broken were looked at when they were made.
    const char* inputs_clean = level_ >= CheckLevel::kFull ? "yes" : "unknown";
    for (DeviceFinding& broken : checks_->read()) {
      const Op host = pass_.mirror->mirrored(pass_.ops[static_cast<size_t>(broken.op)]);
      EngineViolation found =
          describe_late_violation(host, broken.op, info_, std::move(broken.violation), inputs_clean);
      if (!broken.buffer.empty()) found.tensor = broken.buffer;
      outcome_.violations.push_back(std::move(found));
      inputs_clean = "unknown";
    }
    std::stable_sort(outcome_.violations.begin(), outcome_.violations.end(),
                     [](const auto& a, const auto& b) { return a.op_index < b.op_index; });
  }

  const Pass& pass_;
  const PassInfo& info_;
  const CheckLevel level_;
  const EngineHooks& hooks_;
  RunState& state_;
  OpCaller caller_;
  DeviceChecks* checks_;
  Device& device_;
  const int count_;
  PassOutcome outcome_;
};

}  // namespace

PassOutcome stream_pass(const Pass& pass, const PassInfo& info, CheckLevel level, const EngineHooks& hooks,
                        RunState& state) {
  return StreamRunner(pass, info, level, hooks, state).run();
}

Result<std::shared_ptr<DeviceChecks>> make_device_checks(const Pass& pass, CheckLevel level, bool poison,
                                                         DeviceCheckPage* page, std::byte* page_on_device) {
  std::vector<GuardedBuffer> buffers;
  for (size_t b = 0; b < pass.buffers.size(); ++b)
    buffers.push_back({pass.buffers[b]->data(), pass.buffers[b]->bytes(), pass.buffer_names[b]});
  DeviceCheckOptions options;
  options.full = level >= CheckLevel::kFull;
  options.poison = poison;
  options.page = page;
  options.page_on_device = page_on_device;
  FAULTLINE_TRY(auto checks, DeviceChecks::create(pass.mirror->device(), pass.ops, pass.group, buffers, options));
  return std::shared_ptr<DeviceChecks>(std::move(checks));
}

Result<PassOutcome> record_pass(Pass& pass, const PassInfo& info, CheckLevel level, const EngineHooks& hooks) {
  if (level == CheckLevel::kReference || hooks.op_by_op || !StreamRunner::replayable(pass, hooks)) return PassOutcome{};
  // Warm-up without planted faults, references or observers: it is not a run of the probe's.
  RunState warm_up_state;
  const EngineHooks none;
  PassOutcome warm_up = stream_pass(pass, info, CheckLevel::kOff, none, warm_up_state);
  if (!warm_up.clean()) return warm_up;

  Device& device = pass.mirror->device();
  RunState state;
  const int count = static_cast<int>(pass.ops.size());
  for (int begin = 0; begin < count;) {
    StreamRunner runner(pass, info, level, hooks, state);
    PassSegment segment;
    segment.begin = begin;
    segment.end = begin + 1;
    if (!runner.cut(begin)) {
      while (segment.end < count && !runner.cut(segment.end)) ++segment.end;
      FAULTLINE_TRY_STATUS(device.begin_capture());
      EngineHooks silent = hooks;
      silent.observer = nullptr;
      silent.on_layer = nullptr;
      StreamRunner recorder(pass, info, level, silent, state);
      recorder.eager(segment.begin, segment.end);
      FAULTLINE_TRY(segment.graph, device.end_capture());
    }
    begin = segment.end;
    pass.segments.push_back(std::move(segment));
  }
  return PassOutcome{};
}

}  // namespace faultline
