// Runs an op of a test's harness on the GPU: its operands copied there, one of three builds, its outputs copied back.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpu_testing.h"
#include "kernels/launch.h"
#include "op_harness.h"

namespace faultline::test {

// What runs on the GPU: the faster CUDA-only body where there is one, the single-source body, its checked build.
enum class GpuBuild { kFast, kPlain, kChecked };
inline constexpr GpuBuild kEveryGpuBuild[] = {GpuBuild::kFast, GpuBuild::kPlain, GpuBuild::kChecked};
inline const char* build_name(GpuBuild build) {
  return build == GpuBuild::kFast ? "fast" : build == GpuBuild::kPlain ? "plain" : "checked";
}

inline constexpr Dtype kActivations[] = {Dtype::kBF16, Dtype::kF32};
inline const float kNan = std::nanf("");
inline void poison(Tensor& tensor) {
  tensor.fill(0xFF);  // NaN, -1
}

inline std::unique_ptr<Device> gpu() {
  auto device = make_cuda_device(0);
  REQUIRE(device);
  return std::move(*device);
}

// The operands of a call in a GPU's memory.
class GpuCall {
 public:
  GpuCall(Device& device, const OpCall& host) : device_(device), attributes_(*host.attributes) {
    for (const Argument& argument : host.arguments) {
      std::vector<TensorView> views;
      for (TensorView view : argument.views) {
        if (view.data != nullptr) view.data = copied(view);
        views.push_back(view);
      }
      arguments_.add(std::move(views), argument.format,
                     argument.geometry != nullptr ? std::optional(*argument.geometry) : std::nullopt);
    }
    log_ = allocate(sizeof(kernels::AccessLog));
  }

  OpCall call(GpuBuild build) const {
    OpCall result{arguments_.get(), &attributes_, {}, build == GpuBuild::kChecked};
    result.launch.cuda = true;
    result.launch.stream = device_.stream();
    result.launch.plain = build == GpuBuild::kPlain;
    result.launch.log = reinterpret_cast<kernels::AccessLog*>(log_->data());
    return result;
  }
  kernels::AccessLog log() const {
    kernels::AccessLog result;
    device_.copy(reinterpret_cast<std::byte*>(&result), log_->data(), sizeof result);
    return result;
  }
  // Copies operand `operand` back into a tensor of the same shape.
  void fetch(int operand, const Tensor& into) const {
    device_.copy(into.view().data, arguments_[operand].view().data, into.bytes());
  }
  // The offset of a canary byte beside an operand that something wrote, or nothing.
  bool neighbours_intact() const {
    int64_t offset = 0;
    for (const std::unique_ptr<Buffer>& buffer : buffers_)
      if (buffer->canary_broken(offset)) return false;
    return true;
  }

 private:
  std::unique_ptr<Buffer> allocate(size_t bytes) {
    auto buffer = device_.allocate(std::max<size_t>(bytes, 1));
    REQUIRE(buffer);
    return std::move(*buffer);
  }
  std::byte* copied(const TensorView& view) {
    const size_t bytes = static_cast<size_t>(view.extent()) * dtype_bytes(view.dtype);
    buffers_.push_back(allocate(bytes));
    device_.copy(buffers_.back()->data(), view.data, bytes);
    return buffers_.back()->data();
  }

  Device& device_;
  Attributes attributes_;
  ArgumentList arguments_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::unique_ptr<Buffer> log_;
};

// "" when all values agree; else where and how they do not. A NaN agrees with nothing but a NaN that is expected.
inline std::string difference(const std::vector<float>& got, const std::vector<float>& expected, Tolerance tolerance) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(expected[i])) continue;
    if (got[i] == expected[i]) continue;  // infinities too
    const double error = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (!(error <= tolerance.atol + tolerance.rtol * std::abs(expected[i])))
      return fmt::format("element {}: {} instead of {}", i, got[i], expected[i]);
  }
  return "";
}

// A tensor as floats; a cache as its decoded rows; code bytes as numbers.
inline std::vector<float> values_of(const Tensor& tensor, const CacheGeometry* geometry) {
  std::vector<float> values;
  if (geometry != nullptr) {
    values.resize(static_cast<size_t>(geometry->slots * geometry->width()));
    for (int64_t slot = 0; slot < geometry->slots; ++slot)
      decode_slot(*geometry, tensor.view().data, slot, values.data() + slot * geometry->width());
    return values;
  }
  const bool bytes = tensor.view().dtype == Dtype::kU8 || tensor.view().dtype == Dtype::kF8E4M3;
  for (int64_t i = 0; i < tensor.view().elements(); ++i)
    values.push_back(bytes ? static_cast<float>(tensor.view().as<uint8_t>()[i]) : tensor.at(i));
  return values;
}

struct GpuRun {
  KernelResult result;
  kernels::AccessLog log;
};

// Runs a kernel of the op's kind on the GPU, from the operands as they are now; nothing may go wrong. The outputs come
// back into the tensors.
inline GpuRun run_on_gpu(Device& device, const OpHarness& op, const std::string& kind, const std::string& kernel,
                         GpuBuild build, const std::vector<std::pair<int, Tensor*>>& outputs) {
  GpuCall gpu_call(device, op.call());
  GpuRun run;
  run.result = find_kernel(kind, kernel)->run(gpu_call.call(build));
  const auto fault = device.wait();
  INFO(kind << " " << kernel << " " << build_name(build) << (fault ? ": " + fault->message : ""));
  REQUIRE_FALSE(fault);
  const char* refused = kernels::take_launch_error();
  INFO((refused != nullptr ? refused : ""));
  REQUIRE(refused == nullptr);
  REQUIRE(gpu_call.neighbours_intact());
  run.log = gpu_call.log();
  for (const auto& [operand, tensor] : outputs) gpu_call.fetch(operand, *tensor);
  return run;
}

// Every build on the GPU agrees with the spec reference and with the kernel on the CPU, within the table's tolerance.
// `outputs` are tensors that were added to the op; they keep what they hold (a poison).
inline void require_gpu_agreement(Device& device, OpHarness& op, const std::string& kind, const std::string& kernel,
                                  const std::vector<std::pair<int, Tensor*>>& outputs) {
  const auto with_copies = [&](const auto& run) {
    std::vector<Tensor> copies;
    copies.reserve(outputs.size());
    for (const auto& [operand, tensor] : outputs) {
      copies.emplace_back(*tensor);
      op.replace(operand, copies.back());
    }
    run();
    for (const auto& [operand, tensor] : outputs) op.replace(operand, *tensor);
    return copies;
  };
  const Kernel& found = *find_kernel(kind, kernel);
  const std::vector<Tensor> expected =
      with_copies([&] { found.spec != nullptr ? op.run_spec(kernel) : op.run_model(); });
  const std::vector<Tensor> twins = with_copies([&] { REQUIRE(!op.run(kernel)); });
  for (const GpuBuild build : kEveryGpuBuild) {
    std::vector<Tensor> copies;
    std::vector<std::pair<int, Tensor*>> into;
    copies.reserve(outputs.size());
    for (const auto& [operand, tensor] : outputs) {
      copies.emplace_back(*tensor);
      into.emplace_back(operand, &copies.back());
    }
    const GpuRun run = run_on_gpu(device, op, kind, kernel, build, into);
    INFO(kind << " " << kernel << " " << build_name(build));
    REQUIRE_FALSE(run.result);
    REQUIRE(run.log.count == 0);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Argument& argument = op.call().argument(outputs[i].first);
      const Tolerance tolerance = copies[i].view().dtype == Dtype::kU8 && argument.geometry != nullptr
                                      ? tolerance_for(kind, argument.format)
                                      : tolerance_for(kind, copies[i].view().dtype);
      const std::vector<float> got = values_of(copies[i], argument.geometry);
      INFO("operand " << outputs[i].first);
      CHECK(difference(got, values_of(expected[i], argument.geometry), tolerance) == "");
      CHECK(difference(got, values_of(twins[i], argument.geometry), tolerance) == "");
    }
  }
}

}  // namespace faultline::test
