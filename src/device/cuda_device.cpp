#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <string_view>

#include "device/cuda_error.h"
#include "device/device.h"

namespace faultline {
namespace {

// Data starts at a multiple of this, so that vector loads and bulk copies are aligned.
constexpr size_t kFront = 256;
// CUDA 13: the oldest driver that runs this runtime (CUDA compatibility: one major version).
constexpr int kVersionDivisor = 1000;

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

class CudaBuffer : public Buffer {
 public:
  CudaBuffer(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}
  // After a fault every call fails, and the process is about to end: nothing to be done about it.
  ~CudaBuffer() override { static_cast<void>(cudaFree(base_)); }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;

  std::byte* data() const override { return base_ + kFront; }
  size_t bytes() const override { return bytes_; }
  bool canary_broken(int64_t& offset) const override {
    std::byte around[2 * kCanaryBytes];
    if (cudaMemcpy(around, data() - kCanaryBytes, kCanaryBytes, cudaMemcpyDefault) != cudaSuccess ||
        cudaMemcpy(around + kCanaryBytes, data() + bytes_, kCanaryBytes, cudaMemcpyDefault) != cudaSuccess)
      return false;  // the device is dead: wait() tells
    for (size_t i = 0; i < 2 * kCanaryBytes; ++i) {
      if (around[i] == std::byte{kCanary}) continue;
      offset = i < kCanaryBytes ? static_cast<int64_t>(i) - static_cast<int64_t>(kCanaryBytes)
                                : static_cast<int64_t>(bytes_ + i - kCanaryBytes);
      return true;
    }
    return false;
  }

 private:
  std::byte* base_;
  size_t bytes_;
};

class PinnedBuffer : public Buffer {
 public:
  PinnedBuffer(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}
  ~PinnedBuffer() override { static_cast<void>(cudaFreeHost(base_)); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  std::byte* data() const override { return base_; }
  size_t bytes() const override { return bytes_; }
  bool canary_broken(int64_t&) const override { return false; }

 private:
  std::byte* base_;
  size_t bytes_;
};

class CudaGraph : public DeviceGraph {
 public:
  explicit CudaGraph(cudaGraphExec_t executable) : executable_(executable) {}
  ~CudaGraph() override { static_cast<void>(cudaGraphExecDestroy(executable_)); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  cudaGraphExec_t executable() const { return executable_; }

 private:
  cudaGraphExec_t executable_;
};

class CudaDevice : public Device {
 public:
  CudaDevice(int ordinal, const cudaDeviceProp& properties, cudaStream_t stream)
      : ordinal_(ordinal),
        name_(fmt::format("cuda:{} {} (sm_{}{})", ordinal, properties.name, properties.major, properties.minor)),
        stream_(stream) {}
  ~CudaDevice() override { static_cast<void>(cudaStreamDestroy(stream_)); }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return name_; }

  Result<std::unique_ptr<Buffer>> allocate(size_t bytes) override {
    const size_t whole = round_up(kFront + bytes + Buffer::kCanaryBytes, kFront);
    void* base = nullptr;
    const cudaError_t error = cudaMalloc(&base, whole);
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      const Memory now = memory();
      std::fprintf(stderr, "%s: out of memory: %zu bytes asked for, %llu of %llu free\n", name_.c_str(), whole,
                   static_cast<unsigned long long>(now.free), static_cast<unsigned long long>(now.total));
      std::fflush(stderr);
      throw std::bad_alloc();
    }
    FAULTLINE_CUDA_TRY(error, "cudaMalloc");
    auto buffer = std::make_unique<CudaBuffer>(static_cast<std::byte*>(base), bytes);
    FAULTLINE_CUDA_TRY(cudaMemsetAsync(base, Buffer::kCanary, whole, stream_), "cudaMemsetAsync");
    FAULTLINE_CUDA_TRY(cudaMemsetAsync(buffer->data(), 0, bytes, stream_), "cudaMemsetAsync");
    return std::unique_ptr<Buffer>(std::move(buffer));
  }

  Result<std::unique_ptr<Buffer>> allocate_host(size_t bytes) override {
    void* base = nullptr;
    FAULTLINE_CUDA_TRY(cudaHostAlloc(&base, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
    memset(base, 0, bytes);
    return std::unique_ptr<Buffer>(std::make_unique<PinnedBuffer>(static_cast<std::byte*>(base), bytes));
  }

  Result<std::byte*> map_host(std::byte* memory, size_t bytes) override {
    FAULTLINE_CUDA_TRY(cudaHostRegister(memory, bytes, cudaHostRegisterMapped), "cudaHostRegister");
    void* mapped = nullptr;
    FAULTLINE_CUDA_TRY(cudaHostGetDevicePointer(&mapped, memory, 0), "cudaHostGetDevicePointer");
    return static_cast<std::byte*>(mapped);
  }

  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    if (bytes == 0) return;
    note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
    note(cudaStreamSynchronize(stream_));
  }
  void copy_async(std::byte* to, const std::byte* from, size_t bytes) override {
    if (bytes != 0) note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  }
  void* stream() const override { return stream_; }

  std::optional<DeviceFault> wait() override {
    note(cudaStreamSynchronize(stream_));
    note(cudaGetLastError());
    if (error_ == cudaSuccess) return std::nullopt;
    return cuda_fault(error_);
  }

  Status begin_capture() override {
    FAULTLINE_CUDA_TRY(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    return {};
  }
  Result<std::unique_ptr<DeviceGraph>> end_capture() override {
    cudaGraph_t graph = nullptr;
    FAULTLINE_CUDA_TRY(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t executable = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    FAULTLINE_CUDA_TRY(made, "cudaGraphInstantiate");
    return std::unique_ptr<DeviceGraph>(std::make_unique<CudaGraph>(executable));
  }
  Status launch(const DeviceGraph& graph) override {
    FAULTLINE_CUDA_TRY(cudaGraphLaunch(static_cast<const CudaGraph&>(graph).executable(), stream_), "cudaGraphLaunch");
    return {};
  }

  Memory memory() const override {
    size_t free = 0;
    size_t total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return {};
    return {free, total};
  }

 private:
  // The first error stays: what follows is its echo.
  void note(cudaError_t error) {
    if (error_ == cudaSuccess) error_ = error;
  }

  int ordinal_;
  std::string name_;
  cudaStream_t stream_;
  cudaError_t error_ = cudaSuccess;
};

// "90a-real;100a-real": whether code for this capability is in the program.
bool compiled_for(int major, int minor) {
  const std::string wanted = std::to_string(major * 10 + minor);
  std::string_view list = FAULTLINE_CUDA_ARCHITECTURES;
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), entry.size() + 1));
    if (entry.substr(0, entry.find_first_not_of("0123456789")) == wanted) return true;
  }
  return false;
}

}  // namespace

Status cuda_usable(int ordinal) {
  int driver = 0;
  int count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    static_cast<void>(cudaGetLastError());
    return cannot_run("no NVIDIA driver is loaded on this machine; run on one that has it, or with --device cpu");
  }
  if (driver / kVersionDivisor < CUDART_VERSION / kVersionDivisor)
    return cannot_run(
        "the NVIDIA driver supports CUDA {}.{}, this build needs CUDA {}: update the driver, or use --device cpu",
        driver / kVersionDivisor, driver % kVersionDivisor / 10, CUDART_VERSION / kVersionDivisor);
  const cudaError_t counted = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (counted != cudaSuccess && counted != cudaErrorNoDevice)
    return cannot_run("the NVIDIA driver cannot be used: {} ({})", cudaGetErrorString(counted),
                      cudaGetErrorName(counted));
  if (count == 0) return cannot_run("the NVIDIA driver sees no GPU (CUDA_VISIBLE_DEVICES?); use --device cpu");
  if (ordinal >= count) return cannot_run("there is no GPU {}: this machine has {}, numbered from 0", ordinal, count);
  int major = 0;
  int minor = 0;
  static_cast<void>(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal));
  static_cast<void>(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal));
  if (!compiled_for(major, minor))
    return cannot_run(
        "GPU {} is sm_{}{}, and this build has kernels for {}: configure with "
        "-DFAULTLINE_CUDA_ARCHITECTURES={}{}a-real",
        ordinal, major, minor, FAULTLINE_CUDA_ARCHITECTURES, major, minor);
  return {};
}

Result<CudaIdentity> cuda_identity(int ordinal) {
  FAULTLINE_TRY_STATUS(cuda_usable(ordinal));
  cudaDeviceProp properties{};
  FAULTLINE_CUDA_TRY(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  int driver = 0;
  FAULTLINE_CUDA_TRY(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  return CudaIdentity{properties.name, properties.major * 10 + properties.minor,
                      fmt::format("{}.{}", driver / kVersionDivisor, driver % kVersionDivisor / 10)};
}

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal) {
  FAULTLINE_TRY_STATUS(cuda_usable(ordinal));
  FAULTLINE_CUDA_TRY(cudaSetDevice(ordinal), "cudaSetDevice");
  cudaDeviceProp properties{};
  FAULTLINE_CUDA_TRY(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  cudaStream_t stream = nullptr;
  FAULTLINE_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(ordinal, properties, stream));
}

}  // namespace faultline
