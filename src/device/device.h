// Where tensors live. One interface for the CPU and, with the CUDA engine, GPUs: memory, copies, synchronisation.
// Every allocation is surrounded by canaries, so that a neighbour's overwrite shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"

namespace faultline {

// Memory with kCanaryBytes of a known pattern before and after it. Zero-filled, 64-byte aligned.
class Buffer {
 public:
  static constexpr size_t kCanaryBytes = 64;

  virtual ~Buffer() = default;
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  // The offset of the first overwritten canary byte relative to data() (negative: before it), or nothing.
  virtual bool canary_broken(int64_t& offset) const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "cpu"
  virtual Result<std::unique_ptr<Buffer>> allocate(size_t bytes) = 0;
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes) = 0;
  // Waits for all work, and reports a fault of the device.
  virtual Status synchronize() = 0;
};

std::unique_ptr<Device> make_cpu_device();

}  // namespace faultline
