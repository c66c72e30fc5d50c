// Tests that need a GPU. Without one they say so, and count as passed: the GPU script (scripts/gpu_check) runs them
// where there is one, and fails there if any was skipped.
#pragma once

#include <cstdio>

#include "device/device.h"
#include "testing.h"

namespace faultline {

// The first line of such a test: `if (!cuda_usable(0)) return skipped_without_gpu();`
inline void skipped_without_gpu() {
  const Status usable = cuda_usable(0);
  REQUIRE_FALSE(usable);
  std::printf("skipped, no GPU: %s\n", Catch::getResultCapture().getCurrentTestName().c_str());
  CHECK_FALSE(usable.error().message.empty());
}

}  // namespace faultline
