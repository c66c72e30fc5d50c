// A GPU's memory that lies at several addresses at once: one buffer for the experts of every layer that has none of its
// own. So each layer's tensors keep addresses of their own, by which checks and capsules know them, while only one
// layer's bytes are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/error.h"

namespace faultline {

class AliasedMemory {
 public:
  virtual ~AliasedMemory() = default;
  virtual std::byte* place(size_t i) const = 0;
  virtual uint64_t bytes() const = 0;  // of one place, rounded up to what the device maps
};

// `bytes` of the current device's memory at `places` addresses. Cannot-run when memory is lacking.
Result<std::unique_ptr<AliasedMemory>> make_cuda_alias(uint64_t bytes, size_t places);

}  // namespace faultline
