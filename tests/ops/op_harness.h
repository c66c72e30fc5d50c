// Runs one op of any kind on tensors of the test's own: its model reference, and a kernel in both builds.
#pragma once

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/op.h"
#include "ops/tolerances.h"
#include "testing.h"

namespace faultline::test {

// Owns exactly its bytes, so that an address sanitizer sees the end of each tensor.
class Tensor {
 public:
  Tensor(Dtype dtype, std::initializer_list<int64_t> shape) : view_(make_view(nullptr, dtype, shape)) { allocate(); }
  Tensor(const Tensor& other) : view_(other.view_) {
    allocate();
    std::memcpy(memory_.get(), other.memory_.get(), bytes());
  }
  Tensor& operator=(const Tensor&) = delete;
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = delete;
  ~Tensor() = default;

  const TensorView& view() const { return view_; }
  size_t bytes() const { return static_cast<size_t>(view_.elements()) * dtype_bytes(view_.dtype); }
  float at(int64_t i) const { return view_.load(i); }
  int64_t integer(int64_t i) const { return view_.load_index(i); }
  void fill(uint8_t byte) { std::memset(memory_.get(), byte, bytes()); }
  bool same_bytes(const Tensor& other) const {
    return bytes() == other.bytes() && std::memcmp(memory_.get(), other.memory_.get(), bytes()) == 0;
  }

 private:
  void allocate() {
    memory_ = std::make_unique<std::byte[]>(std::max<size_t>(bytes(), 1));
    view_.data = memory_.get();
  }
  TensorView view_;
  std::unique_ptr<std::byte[]> memory_;
};

inline Tensor integers(std::initializer_list<int64_t> shape, const std::vector<int32_t>& values) {
  Tensor tensor(Dtype::kI32, shape);
  REQUIRE(tensor.view().elements() == static_cast<int64_t>(values.size()));
  if (!values.empty()) std::memcpy(tensor.view().data, values.data(), tensor.bytes());
  return tensor;
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float normal() { return std::normal_distribution<float>()(engine_); }
  int64_t below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(engine_); }
  Tensor values(Dtype dtype, std::initializer_list<int64_t> shape, float scale = 1) {
    Tensor tensor(dtype, shape);
    for (int64_t i = 0; i < tensor.view().elements(); ++i) tensor.view().store(i, normal() * scale);
    return tensor;
  }
  // A permutation of [0, count).
  std::vector<int32_t> shuffled(int64_t count) {
    std::vector<int32_t> result(static_cast<size_t>(count));
    for (size_t i = 0; i < result.size(); ++i) result[i] = static_cast<int32_t>(i);
    std::shuffle(result.begin(), result.end(), engine_);
    return result;
  }

 private:
  std::mt19937 engine_;
};

inline CacheGeometry geometry_of(Format format, int64_t slots, int64_t latent, int64_t rope, int64_t page_size = 64) {
  CacheGeometry geometry;
  geometry.format = format;
  geometry.slots = slots;
  geometry.page_size = page_size;
  geometry.latent = latent;
  geometry.rope = rope;
  return geometry;
}

// A pool whose slots hold random rows.
inline Tensor random_pool(const CacheGeometry& geometry, Random& random) {
  Tensor pool(Dtype::kU8, {geometry.total_bytes()});
  std::vector<float> row(static_cast<size_t>(geometry.width()));
  for (int64_t slot = 0; slot < geometry.slots; ++slot) {
    for (float& value : row) value = random.normal();
    encode_slot(geometry, pool.view().data, slot, row.data(), false);
  }
  return pool;
}

class OpHarness {
 public:
  explicit OpHarness(std::string kind) : kind_(std::move(kind)) {}

  OpHarness& add(const Tensor& tensor) {
    arguments_.add({tensor.view()});
    return *this;
  }
  OpHarness& add_cache(const Tensor& tensor, const CacheGeometry& geometry) {
    arguments_.add({tensor.view()}, geometry.format, geometry);
    return *this;
  }
  OpHarness& add_list(std::vector<TensorView> views, Format format = Format::kPlain) {
    arguments_.add(std::move(views), format);
    return *this;
  }
  OpHarness& add_absent() {
    arguments_.add({TensorView{}});
    return *this;
  }
  void replace(int operand, const Tensor& tensor) { arguments_.replace(operand, {tensor.view()}); }
  Attributes& attributes() { return attributes_; }

  OpCall call() const { return OpCall{arguments_.get(), &attributes_, {}, false}; }
  // The spec reference of a kernel, where its rounding points or edges are not the model's.
  void run_spec(const std::string& kernel) const { find_kernel(kind_, kernel)->spec(call()); }
  void run_model() const { op_kind(kind_).model(call()); }
  KernelResult run(const std::string& kernel, uint64_t seed = 1) const {
    OpCall with = call();
    with.launch.seed = seed;
    return find_kernel(kind_, kernel)->run(with);
  }
  // The checked build; the log says what it found.
  kernels::AccessLog run_checked(const std::string& kernel, uint64_t seed = 1) const {
    kernels::AccessLog log;
    OpCall with = call();
    with.launch.seed = seed;
    with.launch.log = &log;
    with.checked = true;
    REQUIRE(!find_kernel(kind_, kernel)->run(with));
    return log;
  }

  // The kernel agrees with the model reference within the table's tolerance, and its checked build is silent and gives
  // the same bits. `out` is the tensor that was added as `operand`.
  void require_agreement(const std::string& kernel, int operand, Tensor& out) {
    Tensor expected(out);
    replace(operand, expected);
    run_model();
    Tensor checked(out);
    replace(operand, checked);
    REQUIRE(run_checked(kernel, 5).count == 0);
    replace(operand, out);
    REQUIRE(!run(kernel, 3));
    REQUIRE(out.same_bytes(checked));
    const Tolerance tolerance = out.view().dtype == Dtype::kU8 ? tolerance_for(kind_, call().argument(operand).format)
                                                               : tolerance_for(kind_, out.view().dtype);
    if (const CacheGeometry* geometry = call().argument(operand).geometry) {
      std::vector<float> a(static_cast<size_t>(geometry->width()));
      std::vector<float> b(a.size());
      for (int64_t slot = 0; slot < geometry->slots; ++slot) {
        decode_slot(*geometry, out.view().data, slot, a.data());
        decode_slot(*geometry, expected.view().data, slot, b.data());
        for (size_t i = 0; i < a.size(); ++i) require_close(a[i], b[i], tolerance, static_cast<int64_t>(i));
      }
      return;
    }
    for (int64_t i = 0; i < out.view().elements(); ++i) require_close(out.at(i), expected.at(i), tolerance, i);
  }

 private:
  static void require_close(float value, float expected, Tolerance tolerance, int64_t at) {
    const double error = std::abs(static_cast<double>(value) - expected);
    if (!(error <= tolerance.atol + tolerance.rtol * std::abs(expected)))
      FAIL("element " << at << ": " << value << " instead of " << expected);
  }

  std::string kind_;
  ArgumentList arguments_;
  Attributes attributes_;
};

}  // namespace faultline::test
