#include "engine/run_pass.h"

#include <algorithm>

#include "check/compare.h"
#include "check/poison.h"
#include "engine/call_op.h"
#include "engine/describe.h"
#include "engine/op_contract.h"
#include "ops/weights_in_use.h"
#ifdef FAULTLINE_HAVE_CUDA
#include "engine/cuda_stream_pass.h"
#endif

namespace faultline {
namespace {

class Runner {
 public:
  Runner(const Pass& pass, const PassInfo& info, CheckLevel level, const EngineHooks& hooks, RunState& state)
      : pass_(pass),
        info_(info),
        level_(hooks.op_by_op ? CheckLevel::kReference : level),
        hooks_(hooks),
        state_(state),
        caller_(pass, info, hooks),
        seen_(pass.ops.size()) {}

  PassOutcome run() {
    const int count = static_cast<int>(pass_.ops.size());
    int begin = 0;
    while (begin < count) {
      int end = begin;
      while (end < count && pass_.group[static_cast<size_t>(end)] == pass_.group[static_cast<size_t>(begin)]) ++end;
      if (poisons() && !hooks_.op_by_op) poison(begin, end);
      for (int i = begin; i < end && !outcome_.fault; ++i) {
        if (hooks_.op_by_op && poisons()) poison(i, i + 1);
        run_op(i);
        if (hooks_.op_by_op) {
          if (outcome_.fault) return std::move(outcome_);  // what it left behind means nothing
          check(i);
          if (!outcome_.violations.empty()) return std::move(outcome_);
        } else if (stop_) {
          break;
        }
      }
      if (!hooks_.op_by_op && !stop_) {
        const int last = outcome_.fault ? outcome_.fault->op_index : end;
        for (int i = begin; i < last && level_ > CheckLevel::kOff; ++i) check(i);
      }
      if (outcome_.clean() && level_ >= CheckLevel::kFull) check_canaries(begin);
      if (!outcome_.clean()) {
        std::stable_sort(outcome_.violations.begin(), outcome_.violations.end(),
                         [](const auto& a, const auto& b) { return a.op_index < b.op_index; });
        return std::move(outcome_);
      }
      const int layer = pass_.ops[static_cast<size_t>(begin)].layer;
      if (hooks_.on_layer && layer >= 0) hooks_.on_layer(pass_, info_, layer);
      begin = end;
    }
    return std::move(outcome_);
  }

 private:
  bool poisons() const { return level_ >= CheckLevel::kFull && !hooks_.no_poison; }

  // The op as the host sees it: on a GPU, views of the mirror's.
  const Op& seen(int i) {
    if (!pass_.on_gpu()) return pass_.ops[static_cast<size_t>(i)];
    auto& op = seen_[static_cast<size_t>(i)];
    if (op == nullptr) op = std::make_unique<Op>(pass_.mirror->mirrored(pass_.ops[static_cast<size_t>(i)]));
    return *op;
  }
  // Brings the host's copies of an op's outputs to the device.
  void push_outputs(int i, bool caches) {
    if (!pass_.on_gpu()) return;
    const Op& op = pass_.ops[static_cast<size_t>(i)];
    for (int o = 0; o < op.arguments.size(); ++o) {
      const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
      if (is_checked_output(spec) && op.arguments[o].present() && (spec.content == Content::kCache) == caches)
        pass_.mirror->push(op.arguments[o].view());
    }
  }
  // Waits for the device, and lets the host see what the op left.
  KernelResult settle(int i) {
    if (!pass_.on_gpu()) return std::nullopt;
    if (const auto fault = pass_.mirror->device().wait()) return KernelFault{fault->verdict, fault->message};
    pass_.mirror->pull(pass_.ops[static_cast<size_t>(i)]);
    return std::nullopt;
  }

  void poison(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const Op& op = seen(i);
      if (op.shadow) continue;
      if (pass_.on_gpu()) pass_.mirror->pull(pass_.ops[static_cast<size_t>(i)]);
      const OpCall call = op.call();
      for (int o = 0; o < static_cast<int>(op.kind->operands.size()); ++o) {
        const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
        // Index outputs steer where a cache write lands, so a cache is poisoned by its op, right before it runs.
        if (is_checked_output(spec) && spec.content != Content::kCache && call.argument(o).present())
          poison_output(call, spec, o, 0);
      }
      push_outputs(i, false);
    }
  }

  KernelResult call_kernel(int i, const OpCall& call, bool in_place) {
    KernelResult result = caller_.run(pass_.ops[static_cast<size_t>(i)], call, in_place);
    const KernelResult died = settle(i);
    return died ? died : result;
  }

  void run_op(int i) {
    const Op& op = seen(i);
    const int64_t launch = state_.launches++;
    if (hooks_.observer != nullptr && !op.shadow) hooks_.observer->on_op(info_, i, op);
    const bool in_place = caller_.swapped(op, launch);
    swapped_[static_cast<size_t>(i)] = in_place;
    const bool reference = in_place || op.kernel->provenance == Provenance::kReference;
    const OpCall call = caller_.call(pass_.ops[static_cast<size_t>(i)], ++state_.seed, hooks_.op_by_op);
    const OpCall host_call = op.call();
    if (pass_.on_gpu()) pass_.mirror->pull(pass_.ops[static_cast<size_t>(i)]);
    if (!op.shadow && !reference && level_ >= CheckLevel::kFull) {
      if (auto found = check_layouts(op, host_call, info_.live)) report(i, std::move(*found));
    }

    const int outputs = static_cast<int>(op.kind->operands.size());
    const bool watch = level_ >= CheckLevel::kFull && !op.shadow && !hooks_.no_poison;
    if (!pass_.on_gpu()) {
      if (const Status there = bring_weights(*op.kind, host_call); !there) {
        outcome_.fault = EngineFault{KernelFault{"oom", there.error().message},
                                     op.name,
                                     i,
                                     op.layer,
                                     op.kernel->name,
                                     op.kernel->provenance,
                                     info_};
        return;
      }
    }
    std::vector<std::pair<int, NeighbourSum>> neighbours;
    std::vector<std::pair<int, std::vector<std::byte>>> first;
    bool twice = false;
    if (watch) {
      for (int o = 0; o < outputs; ++o) {
        const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
        if (!is_checked_output(spec) || !host_call.argument(o).present()) continue;
        if (spec.content == Content::kCache) {
          poison_output(host_call, spec, o, 0);
          // An op that packs the whole pool anew may write everywhere; only its live slots have a contract.
          if (spec.region.sum_operand < 0) neighbours.emplace_back(o, NeighbourSum(host_call, spec, o));
        }
        twice = twice || (needs_two_poisons(spec, host_call.argument(o)) && !reference);
      }
      push_outputs(i, true);
    }
    KernelResult result = call_kernel(i, call, in_place);
    if (twice && !result) {
      for (int o = 0; o < outputs; ++o) {
        const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
        if (!is_checked_output(spec) || !host_call.argument(o).present() ||
            !needs_two_poisons(spec, host_call.argument(o)))
          continue;
        const std::byte* data = host_call.view(o).data;
        const size_t bytes = host_call.argument(o).geometry != nullptr
                                 ? static_cast<size_t>(host_call.argument(o).geometry->total_bytes())
                                 : static_cast<size_t>(host_call.view(o).extent());
        first.emplace_back(o, std::vector<std::byte>(data, data + bytes));
        poison_output(host_call, spec, o, 1);
        if (pass_.on_gpu()) pass_.mirror->push(pass_.ops[static_cast<size_t>(i)].arguments[o].view());
      }
      result = call_kernel(i, call, in_place);
      for (const auto& [o, bytes] : first) {
        if (auto found =
                find_unwritten_codes(host_call, op.kind->operands[static_cast<size_t>(o)], o, info_.live, bytes.data()))
          report(i, std::move(*found));
      }
    }
    if (result) {
      outcome_.fault = EngineFault{*result, op.name, i, op.layer, op.kernel->name, op.kernel->provenance, info_};
      return;
    }
    for (const auto& [o, sum] : neighbours) {
      const int64_t page = sum.changed();
      if (page >= 0) report(i, changed_neighbour(o, page));
    }
    if (call.checked && caller_.log().count > 0) report(i, bad_access(caller_.log()));
    // Indices are checked before their consumer can die of them.
    if (level_ >= CheckLevel::kFull && !op.shadow && !hooks_.op_by_op) {
      for (int o = 0; o < outputs; ++o) {
        const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
        if (spec.content != Content::kIndices || !is_checked_output(spec) || !host_call.argument(o).present()) continue;
        if (auto found = check_operand(op, host_call, o, info_.live, level_)) {
          report(i, std::move(*found));
          stop_ = true;
        }
      }
    }
  }

  void check(int i) {
    const Op& op = seen(i);
    if (op.shadow || level_ == CheckLevel::kOff) return;
    const bool known = std::any_of(outcome_.violations.begin(), outcome_.violations.end(),
                                   [&](const EngineViolation& v) { return v.op_index == i; });
    if (known) return;
    const OpCall call = op.call();
    if (level_ >= CheckLevel::kFull) {
      if (auto found = check_scales(op, call)) {
        report(i, std::move(*found));
        return;
      }
    }
    if (auto found = check_outputs(op, call, info_.live, level_, poisons())) {
      report(i, std::move(*found));
      return;
    }
    if (level_ < CheckLevel::kReference) return;
    // They may have gone since the op ran. That they fit was seen then.
    FAULTLINE_CHECK(bring_weights(*op.kind, call).has_value());
    if (swapped_[static_cast<size_t>(i)]) return;
    if (op.kernel->provenance != Provenance::kReference) {
      if (auto found = compare_to_spec(op, info_.live)) {
        report(i, std::move(*found));
        return;
      }
    }
    if (auto found = compare_to_model(op, info_.live))
      outcome_.settings.push_back(describe_violation(seen(i), i, info_, hooks_.op_by_op, std::move(*found)));
  }

  void check_canaries(int first_op) {
    for (size_t b = 0; b < pass_.buffers.size(); ++b) {
      int64_t offset = 0;
      if (!pass_.buffers[b]->canary_broken(offset)) continue;
      EngineViolation found = describe_violation(
          seen(first_op), first_op, info_, hooks_.op_by_op,
          OpViolation{
              0,
              "canary",
              {offset},
              "",
              0,
              1,
              fmt::format("the bytes around tensor {} were overwritten at byte {}", pass_.buffer_names[b], offset),
              false});
      found.tensor = pass_.buffer_names[b];
      outcome_.violations.push_back(std::move(found));
      return;
    }
  }

  void report(int i, OpViolation violation) {
    outcome_.violations.push_back(describe_violation(seen(i), i, info_, hooks_.op_by_op, std::move(violation)));
  }

  const Pass& pass_;
  const PassInfo& info_;
  const CheckLevel level_;
  const EngineHooks& hooks_;
  RunState& state_;
  PassOutcome outcome_;
  std::vector<bool> swapped_ =
      std::vector<bool>(pass_.ops.size());  // ops that ran on the reference in their kernel's place
  OpCaller caller_;
  std::vector<std::unique_ptr<Op>> seen_;  // on a GPU
  bool stop_ = false;
};

}  // namespace

PassOutcome run_pass(const Pass& pass, const PassInfo& info, CheckLevel level, const EngineHooks& hooks,
                     RunState& state) {
#ifdef FAULTLINE_HAVE_CUDA
  const bool host_checks = hooks.op_by_op || level == CheckLevel::kReference;
  if (pass.on_gpu() && !host_checks) return stream_pass(pass, info, level, hooks, state);
#endif
  return Runner(pass, info, level, hooks, state).run();
}

}  // namespace faultline
