// Writing a synthetic checkpoint to a folder, as an exporter would.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"
#include "model/synth.h"

namespace faultline {

struct SynthFolder {
  uint64_t bytes = 0;  // of all tensors
  int64_t tensors = 0;
  int64_t shards = 0;
};

// Called with the bytes done and the bytes of all; false stops the job.
using SynthProgress = std::function<bool(uint64_t done, uint64_t total)>;

// Writes config.json, hf_quant_config.json, the shards and their index to `folder`, which appears whole or not at all.
// `shards` 0: as many as shards of 5 GiB need. Bad input: the folder exists and is not empty, or the disk is read-only
// or too full (looked at before anything is written); more shards than tensors. kCannotRun when `progress` stopped it.
Result<SynthFolder> write_synth(const SynthModel& model, const std::string& folder, int64_t shards,
                                const SynthProgress& progress);

}  // namespace faultline
