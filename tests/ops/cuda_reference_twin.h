// The references on the device against those on the host, element by element: integers, codes and whatever a reference
// leaves alone are equal, floats agree to their last bits. Outputs start from the same poison on both sides, so an
// element that only one side writes shows.
#pragma once

#include <limits>

#include "gpu_testing.h"
#include "ops/cuda_reference.h"
#include "test_weights.h"

namespace faultline::test {

inline constexpr uint8_t kPoison = 0xA5;               // no NaN in any float format
inline constexpr Tolerance kLastBits{1e-6, 1e-5};      // F32: sums in double, functions rounded from double
inline constexpr Tolerance kOneStep{1e-6, kBf16Step};  // BF16: a last bit of the float may tip the rounding
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

inline Device& device_of_tests() {
  static const std::unique_ptr<Device> device = std::move(*make_cuda_device(0));
  return *device;
}

inline size_t bytes_of(const TensorView& view) {
  return static_cast<size_t>(view.extent()) * dtype_bytes(view.dtype);
}

// An op's operands once more, in device memory.
class DeviceCopy {
 public:
  explicit DeviceCopy(const OpCall& call) {
    for (const Argument& argument : call.arguments) {
      std::vector<TensorView> views;
      for (TensorView view : argument.views) {
        if (view.data != nullptr) {
          buffers_.push_back(std::move(*device_of_tests().allocate(bytes_of(view))));
          device_of_tests().copy(buffers_.back()->data(), view.data, bytes_of(view));
          view.data = buffers_.back()->data();
        }
        views.push_back(view);
      }
      arguments_.add(std::move(views), argument.format,
                     argument.geometry != nullptr ? std::optional(*argument.geometry) : std::nullopt);
    }
  }
  OpCall call(const Attributes& attributes) const {
    OpCall result{arguments_.get(), &attributes, {}, false};
    result.launch.cuda = true;
    result.launch.stream = device_of_tests().stream();
    return result;
  }
  std::vector<std::byte> bytes(const TensorView& view) const {
    std::vector<std::byte> result(bytes_of(view));
    device_of_tests().copy(result.data(), view.data, result.size());
    return result;
  }
  bool canaries_whole() const {
    int64_t offset = 0;
    return std::none_of(buffers_.begin(), buffers_.end(),
                        [&](const auto& buffer) { return buffer->canary_broken(offset); });
  }

 private:
  std::vector<std::unique_ptr<Buffer>> buffers_;
  ArgumentList arguments_;
};

inline void require_equal(const TensorView& host, std::vector<std::byte> device_bytes, Tolerance tolerance) {
  TensorView device = host;
  device.data = device_bytes.data();
  const bool floats = host.dtype == Dtype::kF32 || host.dtype == Dtype::kBF16;
  const auto size = static_cast<int64_t>(dtype_bytes(host.dtype));
  for (int64_t i = 0; i < host.extent(); ++i) {
    if (std::memcmp(host.data + i * size, device.data + i * size, static_cast<size_t>(size)) == 0) continue;
    const double a = device.load(i);
    const double b = host.load(i);
    if (floats && std::isnan(a) && std::isnan(b)) continue;
    if (!floats || !(std::abs(a - b) <= tolerance.atol + tolerance.rtol * std::abs(b)))
      FAIL("element " << i << " is " << a << " (bits " << raw_bits(device, i) << ") on the device, " << b << " (bits "
                      << raw_bits(host, i) << ") on the host");
  }
}

// Runs both references on the operands of `op` and compares all operands: outputs agree, inputs are as they were.
inline void require_same(const char* kind_name, const OpHarness& op, std::optional<Tolerance> f32 = std::nullopt,
                         const char* kernel_name = nullptr) {
  const OpKind& kind = op_kind(kind_name);
  const OpCall host = op.call();
  const Kernel* kernel = kernel_name == nullptr ? nullptr : find_kernel(kind_name, kernel_name);
  REQUIRE((kernel != nullptr) == (kernel_name != nullptr));
  for (size_t i = 0; i < kind.operands.size(); ++i)
    if (kind.operands[i].direction == Direction::kOut && host.arguments[i].present())
      std::memset(host.arguments[i].view().data, kPoison, bytes_of(host.arguments[i].view()));
  const DeviceCopy copy(host);
  const OpCall device = copy.call(host.attr());
  REQUIRE(run_cuda_reference(kind, kernel, kernel == nullptr ? ReferenceOf::kModel : ReferenceOf::kSpec, device));
  REQUIRE(kernels::take_launch_error() == nullptr);
  const auto fault = device_of_tests().wait();
  if (fault) FAIL(kind_name << ": " << fault->verdict << ": " << fault->message);
  if (kernel != nullptr && kernel->spec != nullptr)
    kernel->spec(host);
  else
    kind.model(host);
  CHECK(copy.canaries_whole());
  for (size_t i = 0; i < kind.operands.size(); ++i) {
    INFO(kind_name << " operand " << kind.operands[i].name);
    for (size_t v = 0; v < host.arguments[i].views.size(); ++v) {
      const TensorView& view = host.arguments[i].views[v];
      if (view.data == nullptr) continue;
      const Tolerance tolerance = view.dtype == Dtype::kF32 ? f32.value_or(kLastBits) : kOneStep;
      require_equal(view, copy.bytes(device.arguments[i].views[v]), tolerance);
    }
  }
}

inline Tolerance table(const char* kind) {
  return tolerance_for(kind, Dtype::kF32);
}

}  // namespace faultline::test
