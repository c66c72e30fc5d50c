#include "engine/run_pass.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "check/compare.h"
#include "check/inspect.h"
#include "check/layout.h"
#include "check/poison.h"

namespace faultline {
namespace {

// A cache's bytes around the slots that an op may write: the pages it touches, without those slots.
class NeighbourSum {
 public:
  NeighbourSum(const OpCall& call, const OperandSpec& spec, int operand) : argument_(call.argument(operand)) {
    const CacheGeometry& geometry = *argument_.geometry;
    const TensorView& slots = call.view(spec.region.slots_operand);
    for (int64_t i = 0; i < slots.elements(); ++i) {
      const int64_t slot = slots.load_index(i);
      if (slot >= 0 && slot < geometry.slots) written_.insert(slot);
    }
    for (const int64_t slot : written_) pages_.insert(slot / geometry.page_size);
    before_ = sum();
  }
  // The page whose neighbours changed, or -1.
  int64_t changed() const {
    const auto after = sum();
    size_t i = 0;
    for (const int64_t page : pages_) {
      if (after[i] != before_[i]) return page;
      ++i;
    }
    return -1;
  }

 private:
  std::vector<uint64_t> sum() const {
    const CacheGeometry& geometry = *argument_.geometry;
    std::vector<uint64_t> sums;
    for (const int64_t page : pages_) {
      uint64_t sum = 0;
      for (int64_t slot = page * geometry.page_size; slot < (page + 1) * geometry.page_size; ++slot) {
        if (written_.count(slot) != 0) continue;
        for (const ByteRange& range : slot_bytes(geometry, slot))
          if (range.end > range.begin)
            sum = XXH64(argument_.view().data + range.begin, static_cast<size_t>(range.end - range.begin), sum);
      }
      sums.push_back(sum);
    }
    return sums;
  }

  const Argument& argument_;
  std::set<int64_t> written_;
  std::set<int64_t> pages_;
  std::vector<uint64_t> before_;
};

bool is_out(const OperandSpec& spec) {
  return spec.direction == Direction::kOut && spec.content != Content::kScratch;
}

// Finite values, probability rows, index rules, per level, of one operand as it lies in memory.
std::optional<OpViolation> check_operand(const Op& op, const OpCall& call, int i, const LiveCounts& live,
                                         CheckLevel level) {
  const OperandSpec& spec = op.kind->operands[static_cast<size_t>(i)];
  switch (spec.content) {
    case Content::kValues:
    case Content::kE4m3Scales:
      return find_nonfinite(call, spec, i, live);
    case Content::kProbabilities: {
      auto found = find_nonfinite(call, spec, i, live);
      return found ? found : find_bad_probability(call, spec, i, live);
    }
    case Content::kIndices:
      if (level < CheckLevel::kFull) return std::nullopt;
      return find_bad_index(call, spec, op.index_rules[static_cast<size_t>(i)], i, live);
    case Content::kCache: {
      return find_nonfinite_slots(call.argument(i), *call.argument(i).geometry, i, slots_written(call, spec, i, live));
    }
    case Content::kMetadata:
    case Content::kFp4Codes:
    case Content::kWeight:
    case Content::kScratch:
      return std::nullopt;
  }
  return std::nullopt;
}

// The contract of an op's outputs as they lie in memory, without references.
std::optional<OpViolation> check_outputs(const Op& op, const OpCall& call, const LiveCounts& live, CheckLevel level,
                                         bool poisoned) {
  for (int i = 0; i < static_cast<int>(op.kind->operands.size()); ++i) {
    const OperandSpec& spec = op.kind->operands[static_cast<size_t>(i)];
    if (!is_out(spec) || !call.argument(i).present()) continue;
    if (poisoned && level >= CheckLevel::kFull) {
      if (auto found = find_unwritten(call, spec, i, live)) return found;
    }
    if (auto found = check_operand(op, call, i, live, level)) return found;
  }
  return std::nullopt;
}

// A precondition: the scalar scales that the op multiplies with are usable numbers.
std::optional<OpViolation> check_scales(const Op& op, const OpCall& call) {
  for (int o = 0; o < op.arguments.size(); ++o) {
    const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
    if (spec.content != Content::kWeight || !call.argument(o).present()) continue;
    const bool input_scale = spec.name == "input_scale";
    const bool scale = input_scale || spec.name == "global_scale" || spec.name == "block_scale";
    if (!scale) continue;
    if (auto found = find_bad_scalar_scale(call.argument(o), o, input_scale)) return found;
  }
  return std::nullopt;
}

class Runner {
 public:
  Runner(const Pass& pass, const PassInfo& info, CheckLevel level, const EngineHooks& hooks, RunState& state)
      : pass_(pass),
        info_(info),
        level_(hooks.op_by_op ? CheckLevel::kReference : level),
        hooks_(hooks),
        state_(state) {}

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

  // A reference stands in the kernel's place (a kernel that is the reference itself does what the row resolves to).
  bool swapped(const Op& op, int64_t launch) const {
    return !op.shadow && hooks_.use_reference && hooks_.use_reference(op, launch);
  }

  void poison(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const Op& op = pass_.ops[static_cast<size_t>(i)];
      if (op.shadow) continue;
      const OpCall call = op.call();
      for (int o = 0; o < static_cast<int>(op.kind->operands.size()); ++o) {
        const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
        // Index outputs steer where a cache write lands, so a cache is poisoned by its op, right before it runs.
        if (is_out(spec) && spec.content != Content::kCache && call.argument(o).present())
          poison_output(call, spec, o, 0);
      }
    }
  }

  KernelResult call_kernel(const Op& op, const OpCall& call, bool in_place) {
    if (in_place) {
      run_reference(op);
      return std::nullopt;
    }
    if (op.kernel->provenance == Provenance::kReference) {
      op.kind->model(call);
      return std::nullopt;
    }
    if (hooks_.injector != nullptr)
      return hooks_.injector->run(info_, op, call,
                                  hooks_.serialize_all || hooks_.op_by_op || hooks_.serialize.count(op.name) != 0);
    return op.kernel->run(call);
  }

  // The model reference on the run's inputs, each cache taken by the format that it was truly written in.
  static void run_reference(const Op& op) {
    if (op.model_arguments) {
      op.kind->model(OpCall{op.model_arguments->get(), &op.model_attributes, {}, false});
      return;
    }
    ArgumentList arguments = op.arguments.clone();
    for (int i = 0; i < arguments.size(); ++i) {
      const auto& written = op.written[static_cast<size_t>(i)];
      if (written) arguments.replace(i, {arguments[i].view()}, written->format, *written);
    }
    Attributes attributes = op.model_attributes;
    if (structural_difference(op) == "dense") attributes = op.attributes;  // no shadow selection to be sparse with
    op.kind->model(OpCall{arguments.get(), &attributes, {}, false});
  }

  void run_op(int i) {
    const Op& op = pass_.ops[static_cast<size_t>(i)];
    const int64_t launch = state_.launches++;
    if (hooks_.observer != nullptr && !op.shadow) hooks_.observer->on_op(info_, i, op);
    const bool in_place = swapped(op, launch);
    swapped_[static_cast<size_t>(i)] = in_place;
    const bool reference = in_place || op.kernel->provenance == Provenance::kReference;
    OpCall call = op.call();
    kernels::AccessLog log;
    call.launch.seed = ++state_.seed;
    call.launch.log = &log;
    call.checked = hooks_.op_by_op;
    if (!op.shadow && !reference && level_ >= CheckLevel::kFull) check_layout(op, i, call);

    const int outputs = static_cast<int>(op.kind->operands.size());
    const bool watch = level_ >= CheckLevel::kFull && !op.shadow && !hooks_.no_poison;
    std::vector<std::pair<int, NeighbourSum>> neighbours;
    std::vector<std::pair<int, std::vector<std::byte>>> first;
    bool twice = false;
    if (watch) {
      for (int o = 0; o < outputs; ++o) {
        const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
        if (!is_out(spec) || !call.argument(o).present()) continue;
        if (spec.content == Content::kCache) {
          poison_output(call, spec, o, 0);
          // An op that packs the whole pool anew may write everywhere; only its live slots have a contract.
          if (spec.region.sum_operand < 0) neighbours.emplace_back(o, NeighbourSum(call, spec, o));
        }
        twice = twice || (needs_two_poisons(spec, call.argument(o)) && !reference);
      }
    }
    KernelResult result = call_kernel(op, call, in_place);
    if (twice && !result) {
      for (int o = 0; o < outputs; ++o) {
        const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
        if (!is_out(spec) || !call.argument(o).present() || !needs_two_poisons(spec, call.argument(o))) continue;
        const std::byte* data = call.view(o).data;
        const size_t bytes = call.argument(o).geometry != nullptr
                                 ? static_cast<size_t>(call.argument(o).geometry->total_bytes())
                                 : static_cast<size_t>(call.view(o).extent());
        first.emplace_back(o, std::vector<std::byte>(data, data + bytes));
        poison_output(call, spec, o, 1);
      }
      result = call_kernel(op, call, in_place);
      for (const auto& [o, bytes] : first) {
        if (auto found =
                find_unwritten_codes(call, op.kind->operands[static_cast<size_t>(o)], o, info_.live, bytes.data()))
          report(i, std::move(*found));
      }
    }
    if (result) {
      outcome_.fault = EngineFault{*result, op.name, i, op.layer, op.kernel->name, op.kernel->provenance, info_};
      return;
    }
    for (const auto& [o, sum] : neighbours) {
      const int64_t page = sum.changed();
      if (page >= 0)
        report(i,
               OpViolation{o,
                           "bounds",
                           {page},
                           "",
                           0,
                           1,
                           fmt::format("bytes of page {} outside the slots that this op may write have changed", page),
                           false});
    }
    if (call.checked && log.count > 0) {
      const kernels::BadAccess& bad = log.first[0];
      report(i, OpViolation{bad.operand,
                            "bounds",
                            {bad.index},
                            fmt::format("{}", bad.index),
                            0,
                            log.count,
                            fmt::format("{} at element {} of [0, {}) by block {} thread {}",
                                        bad.is_write ? "write" : "read", bad.index, bad.extent, bad.block, bad.thread),
                            false});
    }
    // Indices are checked before their consumer can die of them.
    if (level_ >= CheckLevel::kFull && !op.shadow && !hooks_.op_by_op) {
      for (int o = 0; o < outputs; ++o) {
        const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
        if (spec.content != Content::kIndices || !is_out(spec) || !call.argument(o).present()) continue;
        if (auto found = check_operand(op, call, o, info_.live, level_)) {
          report(i, std::move(*found));
          stop_ = true;
        }
      }
    }
  }

  void check_layout(const Op& op, int i, const OpCall& call) {
    for (int o = 0; o < op.arguments.size(); ++o) {
      const auto& written = op.written[static_cast<size_t>(o)];
      const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
      if (!written || spec.direction != Direction::kIn || same_layout(*call.argument(o).geometry, *written)) continue;
      if (auto found = find_layout_conflict(call.argument(o), *written, o, slots_read(call, *op.kind, o, info_.live)))
        report(i, std::move(*found));
    }
  }

  void check(int i) {
    const Op& op = pass_.ops[static_cast<size_t>(i)];
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
    if (swapped_[static_cast<size_t>(i)]) return;
    if (op.kernel->provenance != Provenance::kReference) {
      if (auto found = compare_to_spec(op, info_.live)) {
        report(i, std::move(*found));
        return;
      }
    }
    if (auto found = compare_to_model(op, info_.live)) outcome_.settings.push_back(describe(i, std::move(*found)));
  }

  void check_canaries(int first_op) {
    for (size_t b = 0; b < pass_.buffers.size(); ++b) {
      int64_t offset = 0;
      if (!pass_.buffers[b]->canary_broken(offset)) continue;
      EngineViolation found =
          describe(first_op, OpViolation{0,
                                         "canary",
                                         {offset},
                                         "",
                                         0,
                                         1,
                                         fmt::format("the bytes around tensor {} were overwritten at byte {}",
                                                     pass_.buffer_names[b], offset),
                                         false});
      found.tensor = pass_.buffer_names[b];
      outcome_.violations.push_back(std::move(found));
      return;
    }
  }

  EngineViolation describe(int i, OpViolation violation) {
    const Op& op = pass_.ops[static_cast<size_t>(i)];
    EngineViolation result;
    result.op = op.name;
    result.op_index = i;
    result.layer = op.layer;
    result.kernel = op.kernel->name;
    result.provenance = op.kernel->provenance;
    result.checked_build = hooks_.op_by_op;
    result.tensor = op.tensor_names[static_cast<size_t>(violation.operand)];
    result.info = info_;
    result.violation = std::move(violation);
    judge_inputs(op, result);
    return result;
  }

  // Whether the op was given sound inputs: values finite, indices in their rules, caches finite as written, scales
  // usable.
  void judge_inputs(const Op& op, EngineViolation& result) {
    const OpCall call = op.call();
    result.inputs_clean = "yes";
    for (int o = 0; o < op.arguments.size(); ++o) {
      const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
      const Argument& argument = call.argument(o);
      if (spec.direction != Direction::kIn || !argument.present()) continue;
      std::optional<OpViolation> found;
      if (spec.content == Content::kWeight)
        found = find_bad_scale(argument, o);
      else if (spec.content == Content::kCache)
        found = find_nonfinite_slots(argument, *op.written[static_cast<size_t>(o)], o,
                                     slots_read(call, *op.kind, o, info_.live));
      else
        found = check_operand(op, call, o, info_.live, CheckLevel::kFull);
      if (!found) continue;
      result.inputs_clean = "no";
      result.bad_input = op.tensor_names[static_cast<size_t>(o)];
      return;
    }
  }

  void report(int i, OpViolation violation) { outcome_.violations.push_back(describe(i, std::move(violation))); }

  const Pass& pass_;
  const PassInfo& info_;
  const CheckLevel level_;
  const EngineHooks& hooks_;
  RunState& state_;
  PassOutcome outcome_;
  std::vector<bool> swapped_ =
      std::vector<bool>(pass_.ops.size());  // ops that ran on the reference in their kernel's place
  bool stop_ = false;
};

}  // namespace

PassOutcome run_pass(const Pass& pass, const PassInfo& info, CheckLevel level, const EngineHooks& hooks,
                     RunState& state) {
  return Runner(pass, info, level, hooks, state).run();
}

std::optional<OpViolation> replay_op(const Pass& pass, int op_index, const PassInfo& info, const EngineHooks& hooks,
                                     uint64_t seed) {
  return replay_alone(pass.ops[static_cast<size_t>(op_index)], info, hooks.injector, seed);
}

std::optional<OpViolation> replay_alone(const Op& op, const PassInfo& info, FaultInjector* injector, uint64_t seed) {
  if (auto found = check_scales(op, op.call())) return found;
  const ScratchOutputs scratch(op);
  OpCall call = scratch.call(op.attributes);
  kernels::AccessLog log;
  call.launch.seed = seed;
  call.launch.log = &log;
  call.checked = true;
  for (int o = 0; o < op.arguments.size(); ++o) {
    const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
    if (is_out(spec) && call.argument(o).present()) poison_output(call, spec, o, 0);
  }
  KernelResult result;
  if (op.kernel->provenance == Provenance::kReference)
    op.kind->model(call);
  else
    result = injector != nullptr ? injector->run(info, op, call, true) : op.kernel->run(call);
  if (result) return OpViolation{0, result->verdict, {}, "", 0, 1, result->message, false};
  for (int o = 0; o < op.arguments.size(); ++o) {
    const auto& written = op.written[static_cast<size_t>(o)];
    if (!written || op.kind->operands[static_cast<size_t>(o)].direction != Direction::kIn) continue;
    if (auto found = find_layout_conflict(call.argument(o), *written, o, slots_read(call, *op.kind, o, info.live)))
      return found;
  }
  if (log.count > 0)
    return OpViolation{log.first[0].operand,
                       "bounds",
                       {log.first[0].index},
                       fmt::format("{}", log.first[0].index),
                       0,
                       log.count,
                       "out of range in the checked build",
                       false};
  if (auto found = check_outputs(op, call, info.live, CheckLevel::kFull, true)) return found;

  // The spec reference on the same inputs, against the scratch outputs.
  Op again;
  again.name = op.name;
  again.layer = op.layer;
  again.kind = op.kind;
  again.kernel = op.kernel;
  again.attributes = op.attributes;
  again.model_attributes = op.model_attributes;
  again.index_rules = op.index_rules;
  again.tensor_names = op.tensor_names;
  for (int o = 0; o < op.arguments.size(); ++o) {
    const Argument& argument = scratch.argument(o);
    again.arguments.add({argument.views.begin(), argument.views.end()}, argument.format,
                        argument.geometry ? std::optional<CacheGeometry>(*argument.geometry) : std::nullopt);
  }
  if (auto found = compare_to_spec(again, info.live)) return found;
  if (op.model_arguments) again.model_arguments = op.model_arguments->clone();
  return compare_to_model(again, info.live);
}

}  // namespace faultline
