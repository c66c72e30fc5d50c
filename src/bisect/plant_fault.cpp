#include "bisect/plant_fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "check/violation.h"
#include "ops/fp4_tiles.h"

namespace faultline::plants {
namespace {

// Calls visit(byte offset) for each element of rows [begin, end).
template <class Visit>
void for_each_element(const TensorView& view, int64_t begin, int64_t end, Visit&& visit) {
  const auto size = static_cast<int64_t>(dtype_bytes(view.dtype));
  const int64_t columns = view.rank > 1 ? view.dim(1) : 1;
  const int64_t depth = view.rank > 2 ? view.dim(2) : 1;
  for (int64_t row = begin; row < end; ++row)
    for (int64_t column = 0; column < columns; ++column)
      for (int64_t i = 0; i < depth; ++i) {
        int64_t at = row * view.stride[0];
        if (view.rank > 1) at += column * view.stride[1];
        if (view.rank > 2) at += i * view.stride[2];
        visit(at * size);
      }
}

}  // namespace

KernelResult Blow::kernel(const ArgumentList& arguments) const {
  OpCall changed = call;
  changed.arguments = arguments.get();
  return op.kernel->run(changed);
}

KernelResult Blow::miss() {
  struck = false;
  return kernel();
}

int64_t Blow::live_rows_of(int operand) const {
  return live_rows(call, op.kind->operands[static_cast<size_t>(operand)].region, operand, info.live);
}

std::optional<int64_t> Blow::row_of(int operand) const {
  const int64_t rows = live_rows_of(operand);
  const int64_t wanted = row.value_or(rows - 1);
  if (wanted < 0 || wanted >= rows) return std::nullopt;
  return wanted;
}

KernelResult OpFault::run(const PassInfo& info, const Op& op, const OpCall& call, bool) {
  if (!site_.selector.matches(info, op, call.checked)) return op.kernel->run(call);
  Blow blow{info, op, call, site_.selector.row};
  KernelResult result = strike_(blow);
  if (blow.struck) ++fired_;
  return result;
}

void OpFault::weights(ModelWeights&) {}

ArgumentList copy_arguments(const OpCall& call) {
  ArgumentList result;
  for (const Argument& argument : call.arguments)
    result.add({argument.views.begin(), argument.views.end()}, argument.format,
               argument.geometry != nullptr ? std::optional<CacheGeometry>(*argument.geometry) : std::nullopt);
  return result;
}

TensorCopy::TensorCopy(const TensorView& view) : view_(view) {
  const size_t bytes = static_cast<size_t>(view.extent()) * dtype_bytes(view.dtype);
  bytes_.assign(view.data, view.data + bytes);
  view_.data = bytes_.data();
}

RowBlock::RowBlock(const TensorView& view, int64_t begin, int64_t end) : begin_(begin), end_(end) {
  const size_t size = dtype_bytes(view.dtype);
  for_each_element(view, begin_, end_,
                   [&](int64_t at) { bytes_.insert(bytes_.end(), view.data + at, view.data + at + size); });
}

void RowBlock::restore(const TensorView& view) const {
  const size_t size = dtype_bytes(view.dtype);
  const std::byte* from = bytes_.data();
  for_each_element(view, begin_, end_, [&](int64_t at) {
    std::memcpy(view.data + at, from, size);
    from += size;
  });
}

std::pair<int64_t, int64_t> tile_of(const TensorView& view, int64_t row) {
  const int64_t begin = row / kTileRows * kTileRows;
  return {begin, std::min(begin + kTileRows, view.dim(0))};
}

int value_output(const Op& op, const OpCall& call) {
  for (size_t i = 0; i < op.kind->operands.size(); ++i) {
    const OperandSpec& spec = op.kind->operands[i];
    const bool floats = spec.content == Content::kValues || spec.content == Content::kProbabilities;
    if (spec.direction == Direction::kOut && floats && call.argument(static_cast<int>(i)).present())
      return static_cast<int>(i);
  }
  return -1;
}

std::vector<Fp4Product> fp4_products(ModelWeights& weights) {
  std::vector<Fp4Product> result;
  const auto add = [&](size_t layer, const char* local, std::vector<LinearWeight*> group) {
    const bool quantized = !group.empty() && std::all_of(group.begin(), group.end(), [](const LinearWeight* weight) {
      return weight->precision == Precision::kNvfp4 && weight->input_scale.data != nullptr;
    });
    if (!quantized) return;
    result.push_back({fmt::format("layers.{}.{}", layer, local), static_cast<int64_t>(layer), std::move(group)});
  };
  const auto all = [](std::vector<LinearWeight>& list) {
    std::vector<LinearWeight*> group;
    for (LinearWeight& weight : list) group.push_back(&weight);
    return group;
  };
  for (size_t l = 0; l < weights.layers.size(); ++l) {
    LayerWeights& w = weights.layers[l];
    add(l, "self_attn.q_a_proj", {&w.q_a});
    add(l, "self_attn.kv_a_proj", {&w.kv_a});
    add(l, "self_attn.q_b_proj", {&w.q_b});
    add(l, "self_attn.o_proj", {&w.o});
    if (!w.is_moe) {
      add(l, "mlp.gate_up_proj", all(w.gate_up));
      add(l, "mlp.down_proj", {&w.down});
      continue;
    }
    add(l, "mlp.experts.gate_up_proj", all(w.expert_gate_up));
    add(l, "mlp.experts.down_proj", all(w.expert_down));
    if (w.shared_gate_up.empty()) continue;
    add(l, "mlp.shared_experts.gate_up_proj", all(w.shared_gate_up));
    add(l, "mlp.shared_experts.down_proj", {&w.shared_down});
  }
  return result;
}

}  // namespace faultline::plants
