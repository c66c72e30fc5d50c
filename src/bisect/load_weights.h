// The loader: a process of its own that puts a checkpoint into a GPU's memory and hands the descriptors back. What owns
// the weights thus runs no kernel under test, and what the driver keeps are descriptors, no CUDA context.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "model/checkpoint.h"
#include "model/weights_manifest.h"

namespace faultline {

struct LoadedWeights {
  WeightsManifest manifest;
  std::vector<UniqueFd> slabs;  // as long as one of them is open, in any process, the memory stays
};

// `device`: "cuda:0", or "memory" for slabs in shared memory (tests). A status line on stderr unless `quiet`. Errors
// are the loader's: cannot-run without a GPU or when its memory does not suffice.
Result<LoadedWeights> load_weights_apart(const Checkpoint& checkpoint, const std::string& device, bool quiet,
                                         const std::string& program = "/proc/self/exe");

// "12.0 of 64.0 GiB, 48.1 GB/s, 1.1 s left"
std::string load_progress_text(uint64_t done, uint64_t total, double seconds);

// The main function of `faultline load-weights` (started by load_weights_apart; not for people).
int loader_main();

}  // namespace faultline
