#include "bisect/plant_fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "check/violation.h"
#include "ops/fp4_tiles.h"

namespace faultline::plants {
namespace {

// Calls visit(byte offset) for each element.
template <class Visit>
void for_each_element(const TensorView& view, Visit&& visit) {
  const auto size = static_cast<int64_t>(dtype_bytes(view.dtype));
  const int64_t columns = view.rank > 1 ? view.dim(1) : 1;
  const int64_t depth = view.rank > 2 ? view.dim(2) : 1;
  for (int64_t row = 0; row < view.dim(0); ++row)
    for (int64_t column = 0; column < columns; ++column)
      for (int64_t i = 0; i < depth; ++i) {
        int64_t at = row * view.stride[0];
        if (view.rank > 1) at += column * view.stride[1];
        if (view.rank > 2) at += i * view.stride[2];
        visit(at * size);
      }
}

size_t bytes_reached(const TensorView& view) {
  return static_cast<size_t>(view.extent()) * dtype_bytes(view.dtype);
}

}  // namespace

KernelResult Blow::kernel(const ArgumentList& arguments) const {
  OpCall changed = call;
  changed.arguments = arguments.get();
  return op.kernel->run(changed);
}

KernelResult Blow::kernel(const Attributes& attributes) const {
  OpCall changed = call;
  changed.attributes = &attributes;
  return op.kernel->run(changed);
}

KernelResult Blow::miss() {
  struck = false;
  return kernel();
}

Device* Blow::gpu() const {
  if (!call.launch.cuda) return nullptr;
  FAULTLINE_CHECK(device != nullptr);
  return device;
}

int64_t Blow::live_rows_of(int operand) const {
  const Region& region = op.kind->operands[static_cast<size_t>(operand)].region;
  const HostCall host(*this, {region.sum_operand});
  return live_rows(host.call(), region, operand, info.live);
}

std::optional<int64_t> Blow::row_of(int operand) const {
  const int64_t rows = live_rows_of(operand);
  const int64_t wanted = row.value_or(rows - 1);
  if (wanted < 0 || wanted >= rows) return std::nullopt;
  return wanted;
}

KernelResult OpFault::run(const PassInfo& info, const Op& op, const OpCall& call, bool) {
  if (!site_.selector.matches(info, op, call.checked)) return op.kernel->run(call);
  Blow blow{info, op, call, site_.selector.row, device_};
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

HostTensor::HostTensor(Device* gpu, const TensorView& view) : gpu_(gpu), from_(view.data), view_(view) {
  if (gpu_ == nullptr) return;
  bytes_.resize(bytes_reached(view));
  gpu_->copy(bytes_.data(), from_, bytes_.size());
  view_.data = bytes_.data();
}

void HostTensor::write_back() const {
  if (gpu_ != nullptr) gpu_->copy(from_, bytes_.data(), bytes_.size());
}

HostCall::HostCall(const Blow& blow, std::initializer_list<int> operands) : call_(blow.call) {
  Device* const gpu = blow.gpu();
  if (gpu == nullptr) return;
  arguments_ = copy_arguments(blow.call);
  tensors_.reserve(operands.size());
  for (const int operand : operands) {
    if (operand < 0 || !blow.call.argument(operand).present()) continue;
    tensors_.emplace_back(gpu, blow.call.view(operand));
    arguments_.replace(operand, {tensors_.back().view()});
  }
  call_.arguments = arguments_.get();
}

void HostCall::write_back() const {
  for (const HostTensor& tensor : tensors_) tensor.write_back();
}

TensorCopy::TensorCopy(Device* gpu, const TensorView& view) : gpu_(gpu), bytes_(bytes_reached(view)), host_(view) {
  if (gpu_ != nullptr)
    gpu_->copy(bytes_.data(), view.data, bytes_.size());
  else if (!bytes_.empty())
    std::memcpy(bytes_.data(), view.data, bytes_.size());
  host_.data = bytes_.data();
}

// The kernel may still be reading. A fault that shows here shows again wherever the device is asked next.
TensorCopy::~TensorCopy() {
  if (buffer_ != nullptr) static_cast<void>(gpu_->wait());
}

TensorView TensorCopy::publish() {
  if (gpu_ == nullptr) return host_;
  auto buffer = gpu_->allocate(bytes_.size());
  if (!buffer) throw std::bad_alloc();
  buffer_ = std::move(*buffer);
  gpu_->copy(buffer_->data(), bytes_.data(), bytes_.size());
  TensorView view = host_;
  view.data = buffer_->data();
  return view;
}

RowBlock::RowBlock(Device* gpu, const TensorView& view, int64_t begin, int64_t end)
    : gpu_(gpu), begin_(begin), end_(end) {
  const HostTensor rows(gpu_, slice_rows(view, begin_, end_ - begin_));
  const size_t size = dtype_bytes(view.dtype);
  const std::byte* data = rows.view().data;
  for_each_element(rows.view(), [&](int64_t at) { bytes_.insert(bytes_.end(), data + at, data + at + size); });
}

void RowBlock::restore(const TensorView& view) const {
  const HostTensor rows(gpu_, slice_rows(view, begin_, end_ - begin_));
  const size_t size = dtype_bytes(view.dtype);
  const std::byte* from = bytes_.data();
  for_each_element(rows.view(), [&](int64_t at) {
    std::memcpy(rows.view().data + at, from, size);
    from += size;
  });
  rows.write_back();
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
