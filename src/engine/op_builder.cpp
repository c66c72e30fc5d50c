#include "engine/op_builder.h"

#include <algorithm>

namespace faultline {

OpBuilder::OpBuilder(std::string name, int layer, std::string_view kind, const Kernel* kernel) {
  op_.name = std::move(name);
  op_.layer = layer;
  op_.kind = &op_kind(kind);
  op_.kernel = kernel;
}

OpBuilder& OpBuilder::tensor(const NamedTensor& tensor) {
  op_.arguments.add({tensor.view});
  op_.tensor_names.push_back(tensor.name);
  op_.written.emplace_back();
  return *this;
}

OpBuilder& OpBuilder::absent() {
  return tensor({});
}

OpBuilder& OpBuilder::weight(const TensorView& view, std::string name) {
  return tensor({view, std::move(name)});
}

OpBuilder& OpBuilder::weights(std::vector<TensorView> views, std::string name, Format format) {
  op_.arguments.add(std::move(views), format);
  op_.tensor_names.push_back(std::move(name));
  op_.written.emplace_back();
  return *this;
}

OpBuilder& OpBuilder::cache(const NamedTensor& tensor, const CacheGeometry& read, const CacheGeometry& written) {
  op_.arguments.add({tensor.view}, read.format, read);
  op_.tensor_names.push_back(tensor.name);
  op_.written.emplace_back(written);
  return *this;
}

OpBuilder& OpBuilder::index_end(int operand, int64_t end) {
  ends_.emplace_back(operand, end);
  return *this;
}

OpBuilder& OpBuilder::no_owner(int operand) {
  unowned_.push_back(operand);
  return *this;
}

OpBuilder& OpBuilder::set(std::string_view key, int64_t value) {
  op_.attributes.set(key, value);
  op_.model_attributes.set(key, value);
  return *this;
}

OpBuilder& OpBuilder::set(std::string_view key, double value) {
  op_.attributes.set(key, value);
  op_.model_attributes.set(key, value);
  return *this;
}

OpBuilder& OpBuilder::model(std::string_view key, int64_t value) {
  op_.model_attributes.set(key, value);
  return *this;
}

OpBuilder& OpBuilder::model(std::string_view key, double value) {
  op_.model_attributes.set(key, value);
  return *this;
}

OpBuilder& OpBuilder::model_arguments(ArgumentList arguments) {
  op_.model_arguments = std::move(arguments);
  return *this;
}

OpBuilder& OpBuilder::shadow() {
  op_.shadow = true;
  return *this;
}

Op OpBuilder::take() {
  FAULTLINE_CHECK(static_cast<size_t>(op_.arguments.size()) == op_.kind->operands.size());
  for (const OperandSpec& spec : op_.kind->operands) op_.index_rules.push_back(spec.index);
  for (const auto& [operand, end] : ends_) op_.index_rules[static_cast<size_t>(operand)].end = end;
  for (const int operand : unowned_) op_.index_rules[static_cast<size_t>(operand)].page_table_operand = -1;
  return std::move(op_);
}

NamedTensor Workspace::activation(const std::string& prefix, const std::string& local, Dtype dtype,
                                  std::initializer_list<int64_t> shape) {
  TensorView view = make_view(nullptr, dtype, shape);
  const size_t bytes = static_cast<size_t>(view.elements()) * dtype_bytes(dtype);
  const auto it = index_.find(local);
  if (it != index_.end()) {
    FAULTLINE_CHECK(pass_.buffers[it->second]->bytes() == bytes);
    view.data = pass_.buffers[it->second]->data();
    return {view, prefix + local};
  }
  auto buffer = device_.allocate(bytes);
  if (!buffer) {
    if (status_) status_ = tl::make_unexpected(buffer.error());
    return {view, prefix + local};
  }
  view.data = (*buffer)->data();
  index_[local] = pass_.buffers.size();
  pass_.buffers.push_back(std::move(*buffer));
  pass_.buffer_names.push_back(local);
  return {view, prefix + local};
}

}  // namespace faultline
