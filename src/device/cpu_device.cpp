#include <cstring>
#include <new>

#include "device/device.h"

namespace faultline {
namespace {

constexpr std::align_val_t kAlignment{64};

class CpuBuffer : public Buffer {
 public:
  CpuBuffer(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {
    memset(base_, kCanary, kCanaryBytes);
    memset(base_ + kCanaryBytes, 0, bytes_);
    memset(base_ + kCanaryBytes + bytes_, kCanary, kCanaryBytes);
  }
  ~CpuBuffer() override { ::operator delete(base_, kAlignment); }
  CpuBuffer(const CpuBuffer&) = delete;
  CpuBuffer& operator=(const CpuBuffer&) = delete;

  std::byte* data() const override { return base_ + kCanaryBytes; }
  size_t bytes() const override { return bytes_; }
  bool canary_broken(int64_t& offset) const override {
    for (size_t i = 0; i < kCanaryBytes; ++i) {
      if (base_[i] != std::byte{kCanary}) {
        offset = static_cast<int64_t>(i) - static_cast<int64_t>(kCanaryBytes);
        return true;
      }
      if (base_[kCanaryBytes + bytes_ + i] != std::byte{kCanary}) {
        offset = static_cast<int64_t>(bytes_ + i);
        return true;
      }
    }
    return false;
  }

 private:
  std::byte* base_;
  size_t bytes_;
};

class CpuDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string name() const override { return "cpu"; }
  Result<std::unique_ptr<Buffer>> allocate(size_t bytes) override {
    void* base = ::operator new(bytes + 2 * Buffer::kCanaryBytes, kAlignment);
    return std::unique_ptr<Buffer>(std::make_unique<CpuBuffer>(static_cast<std::byte*>(base), bytes));
  }
  Result<std::unique_ptr<Buffer>> allocate_host(size_t bytes) override { return allocate(bytes); }
  Result<std::byte*> map_host(std::byte* memory, size_t) override { return memory; }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override { memcpy(to, from, bytes); }
  void copy_async(std::byte* to, const std::byte* from, size_t bytes) override { memcpy(to, from, bytes); }
  void* stream() const override { return nullptr; }
  std::optional<DeviceFault> wait() override { return std::nullopt; }
  Status begin_capture() override { return cannot_run("the CPU records no graphs"); }
  Result<std::unique_ptr<DeviceGraph>> end_capture() override { return cannot_run("the CPU records no graphs"); }
  Status launch(const DeviceGraph&) override { return cannot_run("the CPU records no graphs"); }
  Memory memory() const override { return {}; }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() {
  return std::make_unique<CpuDevice>();
}

Result<std::string> usable_device(const std::string& name) {
  constexpr std::string_view kPrefix = "cuda:";
  if (name == "cpu") return name;
  if (name == "auto") return std::string(cuda_usable(0) ? "cuda:0" : "cpu");
  const std::string number =
      name == "cuda" ? "0" : (name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : std::string());
  if (number.empty() || number.size() > 3 || number.find_first_not_of("0123456789") != std::string::npos)
    return bad_input("there is no device '{}'; devices are auto, cpu, cuda and cuda:N", name);
  const int ordinal = std::stoi(number);
  FAULTLINE_TRY_STATUS(cuda_usable(ordinal));
  return fmt::format("cuda:{}", ordinal);
}

namespace {

int ordinal_of(const std::string& usable) {
  return std::stoi(usable.substr(usable.find(':') + 1));
}

}  // namespace

std::string describe_device(const std::string& usable) {
  if (usable == "cpu") return usable;
  const auto identity = cuda_identity(ordinal_of(usable));
  if (!identity) return usable;
  return fmt::format("{} {} (sm_{}), driver for CUDA {}", usable, identity->name, identity->architecture,
                     identity->driver);
}

int device_architecture(const std::string& usable) {
  if (usable == "cpu") return 0;
  const auto identity = cuda_identity(ordinal_of(usable));
  return identity ? identity->architecture : 0;
}

Result<std::unique_ptr<Device>> make_device(const std::string& name) {
  FAULTLINE_TRY(const std::string device, usable_device(name));
  if (device == "cpu") return make_cpu_device();
  return make_cuda_device(ordinal_of(device));
}

#ifndef FAULTLINE_HAVE_CUDA
Status cuda_usable(int) {
  return cannot_run("this build has no CUDA engine: no nvcc was found when it was configured");
}

Result<CudaIdentity> cuda_identity(int ordinal) {
  return tl::make_unexpected(cuda_usable(ordinal).error());
}

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal) {
  return tl::make_unexpected(cuda_usable(ordinal).error());
}
#endif

}  // namespace faultline
