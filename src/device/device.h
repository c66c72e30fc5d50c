// Where tensors live. One interface for the CPU and for GPUs: memory, copies, streams, graphs, faults.
// Every allocation is surrounded by canaries, so that a neighbour's overwrite shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"

namespace faultline {

// Memory with kCanaryBytes of kCanary before and after it. Zero-filled; aligned to 64 bytes, on a GPU to 256.
class Buffer {
 public:
  static constexpr size_t kCanaryBytes = 64;
  static constexpr uint8_t kCanary = 0xC5;

  virtual ~Buffer() = default;
  virtual std::byte* data() const = 0;  // an address of the device's
  virtual size_t bytes() const = 0;
  // The offset of the first overwritten canary byte relative to data() (negative: before it), or nothing. Waits for the
  // device.
  virtual bool canary_broken(int64_t& offset) const = 0;
};

// What a device died of. Nothing can be done with it in this process afterwards.
struct DeviceFault {
  std::string verdict;  // device-assert, illegal-access, launch-failure, hang
  std::string message;  // the runtime's own words
};

// Recorded work, to be launched again and again.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

enum class DeviceKind : uint8_t { kCpu, kCuda };

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  bool is_cuda() const { return kind() == DeviceKind::kCuda; }
  virtual std::string name() const = 0;  // "cpu", "cuda:0 NVIDIA H200 (sm_90)"

  // Memory that runs out throws std::bad_alloc, as containers do: a worker then ends with the verdict oom.
  virtual Result<std::unique_ptr<Buffer>> allocate(size_t bytes) = 0;
  // Host memory that the device reads and writes at the same address (without canaries); lives as long as the result.
  virtual Result<std::unique_ptr<Buffer>> allocate_host(size_t bytes) = 0;
  // Lets the device read and write memory of the host's (a shared page): its address there.
  virtual Result<std::byte*> map_host(std::byte* memory, size_t bytes) = 0;
  // From anywhere to anywhere, in the order of the stream; done when it returns.
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes) = 0;
  // The same between addresses of the device's, without waiting.
  virtual void copy_async(std::byte* to, const std::byte* from, size_t bytes) = 0;
  // The stream to which everything goes (cudaStream_t); null on the CPU.
  virtual void* stream() const = 0;
  // Waits for all work.
  virtual std::optional<DeviceFault> wait() = 0;

  // Work that is given to the stream between the two is recorded instead of run.
  virtual Status begin_capture() = 0;
  virtual Result<std::unique_ptr<DeviceGraph>> end_capture() = 0;
  virtual Status launch(const DeviceGraph& graph) = 0;

  struct Memory {
    uint64_t free = 0;
    uint64_t total = 0;
  };
  virtual Memory memory() const = 0;  // zeros where nobody knows
};

std::unique_ptr<Device> make_cpu_device();

// Errors (cannot run) say what is missing: a build with CUDA, a driver, a GPU, code for its architecture.
Result<std::unique_ptr<Device>> make_cuda_device(int ordinal);

// A GPU in words and numbers, without a context: "NVIDIA H200", 90, CUDA version of the driver ("13.0").
struct CudaIdentity {
  std::string name;
  int architecture = 0;
  std::string driver;
};
Result<CudaIdentity> cuda_identity(int ordinal);

// Whether make_cuda_device would succeed; otherwise why not. Makes no context.
Status cuda_usable(int ordinal);

// "cpu", "cuda", "cuda:1", "auto" (GPU 0 where one can be used, else the CPU) as "cpu" or "cuda:N". Makes no context.
// Errors: another name; a GPU that cannot be used.
Result<std::string> usable_device(const std::string& name);
// For reports: "cpu", "cuda:0 NVIDIA H200 (sm_90), driver for CUDA 13.0". Takes what usable_device gave.
std::string describe_device(const std::string& usable);
// The architecture of the GPU that usable_device named (90), 0 for the CPU.
int device_architecture(const std::string& usable);
// A name that usable_device gave.
Result<std::unique_ptr<Device>> make_device(const std::string& name);

}  // namespace faultline
