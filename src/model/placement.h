// Where the tensors of a checkpoint lie in a device's memory: in the order of the checkpoint, each at a multiple of
// kPlacementAlignment, with zero bytes between them, as one range that is cut into slabs. Computed from the checkpoint
// alone, so that whoever has the checkpoint and the slabs needs no table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/checkpoint.h"

namespace faultline {

inline constexpr uint64_t kPlacementAlignment = 256;  // of cudaMalloc; vector loads and bulk copies need 16 to 128

// The layout of all kernels there are today: the bytes of the checkpoint as they stand there. A row that needs another
// one (swizzled scales, gate and up swapped) gets a name of its own here.
inline constexpr std::string_view kCheckpointLayout = "checkpoint";

struct Placement {
  std::vector<uint64_t> offsets;  // of each of Checkpoint::tensors()
  uint64_t bytes = 0;             // of all, a multiple of kPlacementAlignment
  std::string hash() const;       // equal hashes: the same placement
};

// Bytes that a contiguous tensor takes.
uint64_t tensor_bytes(const TensorView& view);

// Bad input when the sum of sizes overflows.
Result<Placement> place_tensors(const Checkpoint& checkpoint);

}  // namespace faultline
