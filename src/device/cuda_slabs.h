// The GPU's side of slabs.h.
#pragma once

#include "device/slabs.h"

namespace faultline {

// On the thread's current device.
Result<std::unique_ptr<SlabMap>> map_cuda_slabs(const std::vector<uint64_t>& sizes,
                                                const std::vector<int>& descriptors);
Result<std::string> current_cuda_uuid();

}  // namespace faultline
