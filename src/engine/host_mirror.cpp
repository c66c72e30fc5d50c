#include "engine/host_mirror.h"

#include <new>

namespace faultline {
namespace {

size_t bytes_of(const TensorView& tensor) {
  return static_cast<size_t>(tensor.extent()) * dtype_bytes(tensor.dtype);
}

}  // namespace

void HostMirror::add(const std::byte* memory, size_t bytes, const std::byte* host) {
  if (!device_.is_cuda() || bytes == 0) return;
  Range& range = ranges_[memory];
  range = Range{};
  range.bytes = bytes;
  range.fixed = host;
}

void HostMirror::remove(const std::byte* memory) {
  ranges_.erase(memory);
}

HostMirror::Range& HostMirror::range_of(const std::byte* address, size_t& offset) {
  auto it = ranges_.upper_bound(address);
  FAULTLINE_CHECK(it != ranges_.begin());
  --it;
  offset = static_cast<size_t>(address - it->first);
  FAULTLINE_CHECK(offset < it->second.bytes);
  return it->second;
}

std::byte* HostMirror::host_address(const std::byte* address) {
  size_t offset = 0;
  Range& range = range_of(address, offset);
  // Views are of mutable bytes everywhere; nobody stores into a weight.
  if (range.fixed != nullptr) return const_cast<std::byte*>(range.fixed) + offset;
  if (range.memory == nullptr) {
    auto memory = device_.allocate_host(range.bytes);
    if (!memory) throw std::bad_alloc();  // as a container would: the worker ends with the verdict oom
    range.memory = std::move(*memory);
  }
  return range.memory->data() + offset;
}

TensorView HostMirror::view(const TensorView& tensor) {
  if (!device_.is_cuda() || tensor.data == nullptr) return tensor;
  TensorView result = tensor;
  if (tensor.elements() != 0) result.data = host_address(tensor.data);
  return result;
}

TensorView HostMirror::pull(const TensorView& tensor) {
  TensorView result = view(tensor);
  if (!device_.is_cuda() || tensor.data == nullptr || tensor.elements() == 0) return result;
  size_t offset = 0;
  if (range_of(tensor.data, offset).fixed == nullptr) device_.copy(result.data, tensor.data, bytes_of(tensor));
  return result;
}

void HostMirror::push(const TensorView& tensor) {
  if (!device_.is_cuda() || tensor.data == nullptr || tensor.elements() == 0) return;
  device_.copy_async(tensor.data, view(tensor).data, bytes_of(tensor));
}

ArgumentList HostMirror::mirrored(const ArgumentList& arguments) {
  ArgumentList result;
  for (const Argument& argument : arguments.get()) {
    std::vector<TensorView> views(argument.views.begin(), argument.views.end());
    for (TensorView& tensor : views) tensor = view(tensor);
    result.add(std::move(views), argument.format,
               argument.geometry != nullptr ? std::optional<CacheGeometry>(*argument.geometry) : std::nullopt);
  }
  return result;
}

Op HostMirror::mirrored(const Op& op) {
  Op result = copy_op(op, mirrored(op.arguments));
  if (op.model_arguments) result.model_arguments = mirrored(*op.model_arguments);
  return result;
}

kernels::AccessLog* HostMirror::access_log() {
  if (log_ == nullptr) {
    auto memory = device_.allocate_host(sizeof(kernels::AccessLog));
    if (!memory) throw std::bad_alloc();
    log_ = std::move(*memory);
  }
  return reinterpret_cast<kernels::AccessLog*>(log_->data());
}

void HostMirror::pull(const Op& op) {
  if (!device_.is_cuda()) return;
  const auto pull_all = [&](const ArgumentList& arguments) {
    for (int i = 0; i < arguments.size(); ++i)
      if (op.kind->operands[static_cast<size_t>(i)].content != Content::kWeight && arguments[i].present())
        pull(arguments[i].view());
  };
  pull_all(op.arguments);
  if (op.model_arguments) pull_all(*op.model_arguments);
}

Op copy_op(const Op& op, ArgumentList arguments) {
  Op result;
  result.name = op.name;
  result.layer = op.layer;
  result.kind = op.kind;
  result.kernel = op.kernel;
  result.attributes = op.attributes;
  result.arguments = std::move(arguments);
  result.tensor_names = op.tensor_names;
  result.index_rules = op.index_rules;
  result.written = op.written;
  result.model_attributes = op.model_attributes;
  result.shadow = op.shadow;
  return result;
}

}  // namespace faultline
