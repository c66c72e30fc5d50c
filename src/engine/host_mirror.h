// Tensors of a device's memory as the host sees them: copies that are made when somebody asks.
//
// Conviction, references, planted faults and capsules look at tensors with the host's own code; screening does not. On
// the CPU the mirror is the identity.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "device/device.h"
#include "ops/op.h"

namespace faultline {

class HostMirror {
 public:
  explicit HostMirror(Device& device) : device_(device) {}

  Device& device() const { return device_; }

  // Memory of the device's that views may lie in. `host`: where the same bytes lie already and never change (weights);
  // null: memory of the mirror's own, made when it is first needed.
  void add(const std::byte* memory, size_t bytes, const std::byte* host = nullptr);
  void remove(const std::byte* memory);

  // The host's view of a tensor, with the bytes of the last pull. The view must lie in added memory.
  TensorView view(const TensorView& tensor);
  // Copies the bytes that the view reaches from the device (weights: nothing to do), and returns the host's view.
  TensorView pull(const TensorView& tensor);
  // Copies them to the device.
  void push(const TensorView& tensor);

  // An op on host views. The op's own views are the device's.
  Op mirrored(const Op& op);
  ArgumentList mirrored(const ArgumentList& arguments);
  // Where checked builds record bad accesses: memory that both sides see.
  kernels::AccessLog* access_log();
  // Pulls what an op reads and holds, weights excepted.
  void pull(const Op& op);

 private:
  struct Range {
    size_t bytes = 0;
    const std::byte* fixed = nullptr;
    std::unique_ptr<Buffer> memory;
  };
  Range& range_of(const std::byte* address, size_t& offset);
  std::byte* host_address(const std::byte* address);

  Device& device_;
  std::map<const std::byte*, Range> ranges_;
  std::unique_ptr<Buffer> log_;
};

// An op with other arguments.
Op copy_op(const Op& op, ArgumentList arguments);

}  // namespace faultline
