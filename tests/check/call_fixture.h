// A call with tensors of its own, put together by hand.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "check/violation.h"
#include "testing.h"

namespace faultline {

class CallFixture {
 public:
  TensorView tensor(Dtype dtype, std::initializer_list<int64_t> shape) {
    TensorView view = make_view(nullptr, dtype, shape);
    memory_.push_back(
        std::make_unique<std::vector<std::byte>>(static_cast<size_t>(view.elements()) * dtype_bytes(dtype) + 1));
    view.data = memory_.back()->data();
    return view;
  }
  TensorView floats(std::initializer_list<int64_t> shape, const std::vector<float>& values) {
    const TensorView view = tensor(Dtype::kF32, shape);
    for (size_t i = 0; i < values.size(); ++i) view.as<float>()[i] = values[i];
    return view;
  }
  TensorView integers(std::initializer_list<int64_t> shape, const std::vector<int32_t>& values) {
    const TensorView view = tensor(Dtype::kI32, shape);
    for (size_t i = 0; i < values.size(); ++i) view.as<int32_t>()[i] = values[i];
    return view;
  }
  TensorView cache(const CacheGeometry& geometry) { return tensor(Dtype::kU8, {geometry.total_bytes()}); }

  void add(const TensorView& view) { arguments_.add({view}); }
  void add_cache(const TensorView& view, const CacheGeometry& geometry) {
    arguments_.add({view}, geometry.format, geometry);
  }
  OpCall call() const { return OpCall{arguments_.get(), &attributes_, {}, false}; }
  Attributes& attributes() { return attributes_; }

 private:
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
  ArgumentList arguments_;
  Attributes attributes_;
};

}  // namespace faultline
