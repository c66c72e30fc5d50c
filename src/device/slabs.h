// Slabs: a few large pieces of a device's memory behind descriptors, so that they outlive the process that filled them
// and can be mapped by others, for reading only. Together they are one range of addresses, first slab first.
//
// On a GPU they are allocations of CUDA's virtual memory management: the descriptor alone keeps the memory alive. On
// the CPU they are memfds, which is how the paths that need no GPU are tested.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "device/device.h"

namespace faultline {

inline constexpr uint64_t kSlabBytes = uint64_t{4} << 30;   // of each slab but the last
inline constexpr size_t kMaxSlabs = 64;                     // beyond that slabs grow
inline constexpr std::string_view kMemorySlabs = "memory";  // the "uuid" of the CPU

// How `bytes` are cut: every size a multiple of `granularity`, their sum at least `bytes`. Bad input when the sum
// overflows.
Result<std::vector<uint64_t>> slab_sizes(uint64_t bytes, uint64_t granularity);

// New slabs, being filled. Nothing of it is left when it goes away, but for exported descriptors.
class SlabWriter {
 public:
  // One thread's way in: fills a staging buffer while the one before is on its way.
  class Lane {
   public:
    virtual ~Lane() = default;
    // `staging_bytes` bytes to fill, contents undefined. Waits until they may be.
    virtual Result<std::byte*> staging() = 0;
    // Sends the first `bytes` of them to `offset` from the start of the first slab.
    virtual Status send(uint64_t offset, size_t bytes) = 0;
    // Waits for all that was sent.
    virtual Status finish() = 0;
  };

  virtual ~SlabWriter() = default;
  virtual std::string device_name() const = 0;
  virtual std::string uuid() const = 0;
  virtual Device::Memory memory() const = 0;
  virtual uint64_t granularity() const = 0;
  // Once. Cannot-run when memory is lacking.
  virtual Status allocate(const std::vector<uint64_t>& sizes) = 0;
  virtual Result<std::unique_ptr<Lane>> open_lane(size_t staging_bytes) = 0;
  // Of the first `bytes` (a multiple of kChecksumWordBytes), as the device holds them (slab_checksum.h).
  virtual Result<uint64_t> checksum(uint64_t bytes) = 0;
  virtual Result<std::vector<UniqueFd>> export_descriptors() = 0;
};

// Slabs of somebody else's, mapped for reading. Unmapped with its owner.
class SlabMap {
 public:
  virtual ~SlabMap() = default;
  virtual const std::byte* data() const = 0;  // an address of the device's
  virtual uint64_t bytes() const = 0;
  virtual Result<uint64_t> checksum(uint64_t bytes) = 0;
};

std::unique_ptr<SlabWriter> make_memory_slabs();
// Errors as make_cuda_device's.
Result<std::unique_ptr<SlabWriter>> make_cuda_slabs(int ordinal);

// On the device of this thread. The descriptors may be closed afterwards. Internal error when a descriptor is no slab
// of the size given.
Result<std::unique_ptr<SlabMap>> map_slabs(Device& device, const std::vector<uint64_t>& sizes,
                                           const std::vector<int>& descriptors);

// Which piece of hardware a device is, however processes number them. Makes no context. "memory" for the CPU.
Result<std::string> device_uuid(Device& device);
Result<std::string> cuda_device_uuid(int ordinal);

// "cuda" → 0, "cuda:2" → 2; bad input for anything else.
Result<int> cuda_ordinal(const std::string& name);

}  // namespace faultline
