// Puts ops together: tensors with names, operands in the order of ops/kinds.h.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/pass.h"

namespace faultline {

struct NamedTensor {
  TensorView view;
  std::string name;
};

// One op under construction; add() at the end.
class OpBuilder {
 public:
  OpBuilder(std::string name, int layer, std::string_view kind, const Kernel* kernel);

  OpBuilder& tensor(const NamedTensor& tensor);
  OpBuilder& absent();
  OpBuilder& weight(const TensorView& view, std::string name);
  OpBuilder& weights(std::vector<TensorView> views, std::string name, Format format = Format::kPlain);
  // `written` is how the bytes are; `read` how this op takes (or, as an output, writes) them.
  OpBuilder& cache(const NamedTensor& tensor, const CacheGeometry& read, const CacheGeometry& written);
  // The valid range [0, end) of an index operand, for its contract.
  OpBuilder& index_end(int operand, int64_t end);
  // The operand holds rows of a contiguous buffer, not slots: no page owns them.
  OpBuilder& no_owner(int operand);
  OpBuilder& set(std::string_view key, int64_t value);
  OpBuilder& set(std::string_view key, bool value) { return set(key, static_cast<int64_t>(value)); }
  OpBuilder& set(std::string_view key, double value);
  // Where the model's own value differs from the resolved one.
  OpBuilder& model(std::string_view key, int64_t value);
  OpBuilder& model(std::string_view key, double value);
  OpBuilder& model_arguments(ArgumentList arguments);
  OpBuilder& shadow();

  const ArgumentList& arguments() const { return op_.arguments; }
  Op take();

 private:
  Op op_;
  std::vector<std::pair<int, int64_t>> ends_;
  std::vector<int> unowned_;
};

// Memory of a pass. Layers share activation buffers of the same local name; every op of a layer writes a buffer of its
// own, so that a layer's inputs and outputs are all still there when the layer is checked.
class Workspace {
 public:
  Workspace(Pass& pass, Device& device) : pass_(pass), device_(device) {}

  // "layers.3." + local is the tensor's name in reports; `local` is what shares memory.
  NamedTensor activation(const std::string& prefix, const std::string& local, Dtype dtype,
                         std::initializer_list<int64_t> shape);
  Result<void> status() const { return status_; }

 private:
  Pass& pass_;
  Device& device_;
  std::map<std::string, size_t> index_;
  Status status_;
};

}  // namespace faultline
