// Fills slabs with a checkpoint's tensors. Several threads read the files in parallel, each into staging memory of its
// own from which the device copies while the next part is read, and the checksum is taken on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"
#include "device/slabs.h"
#include "model/checkpoint.h"
#include "model/weights_manifest.h"

namespace faultline {

struct LoadOptions {
  std::string device = "cuda:0";  // for the manifest
  int threads = 0;                // 0: one a usable core, at most kMaxLoadThreads
  // Bytes done so far, of how many. Called from the caller's thread, several times a second and at the end.
  std::function<void(uint64_t done, uint64_t total)> progress;
};

inline constexpr int kMaxLoadThreads = 16;

// Allocates and fills `slabs`, and proves by the device's own checksum that every byte arrived. Cannot-run when memory
// is lacking: the message says how much is needed, what is free and how many layers would fit. Bad input when a file
// changed or cannot be read.
Result<WeightsManifest> load_slabs(const Checkpoint& checkpoint, SlabWriter& slabs, const LoadOptions& options);

}  // namespace faultline
