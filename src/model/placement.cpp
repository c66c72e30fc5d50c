#include "model/placement.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <limits>

namespace faultline {

std::string Placement::hash() const {
  const uint64_t seed = XXH64(&bytes, sizeof bytes, 0);
  return fmt::format("{:016x}", XXH64(offsets.data(), offsets.size() * sizeof(uint64_t), seed));
}

uint64_t tensor_bytes(const TensorView& view) {
  return static_cast<uint64_t>(view.elements()) * dtype_bytes(view.dtype);
}

Result<Placement> place_tensors(const Checkpoint& checkpoint) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  Placement placement;
  placement.offsets.reserve(checkpoint.tensors().size());
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const uint64_t bytes = tensor_bytes(tensor.view);
    if (bytes > kMost - kPlacementAlignment - placement.bytes)
      return bad_input("{}: its tensors are larger than any memory, up to {}", checkpoint.spec(), tensor.name);
    placement.offsets.push_back(placement.bytes);
    placement.bytes += (bytes + kPlacementAlignment - 1) / kPlacementAlignment * kPlacementAlignment;
  }
  return placement;
}

}  // namespace faultline
