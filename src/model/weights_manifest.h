// What is told with the descriptors of weights in device memory: whose weights, where, in which layout, and by which
// checksum they are known. Read by other processes than the one that wrote it, maybe of another build.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/checkpoint.h"
#include "model/placement.h"

namespace faultline {

inline constexpr int kWeightsSchema = 1;
inline constexpr size_t kMaxHeldDescriptors = 250;  // one message between processes takes 253 (SCM_MAX_FD)

// A weight file as it was when it was loaded.
struct FileState {
  std::string name;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;
  std::string header;  // hash of its safetensors header
  bool operator==(const FileState&) const = default;
};

struct WeightsManifest {
  std::string spec;      // as Checkpoint::spec()
  std::string path;      // canonical folder, or the spec of synthetic weights: what a held model is found by
  std::string identity;  // Checkpoint::identity()
  std::string layout{kCheckpointLayout};
  std::string device;       // "cuda:0"
  std::string device_name;  // for people
  std::string device_uuid;
  uint64_t bytes = 0;            // Placement::bytes
  std::string placement;         // Placement::hash()
  std::string checksum;          // of all `bytes` (device/slab_checksum.h), 16 hex digits
  std::vector<uint64_t> slabs;   // their sizes
  std::vector<FileState> files;  // none of synthetic weights
  std::string loaded;            // UTC
  double load_seconds = 0;
  // Synthetic weights exist in memory alone: their descriptors come first, then the slabs'.
  std::string checkpoint;  // Checkpoint::manifest(); empty: none
  uint64_t checkpoint_descriptors = 0;

  bool operator==(const WeightsManifest&) const = default;
};

std::string to_text(const WeightsManifest& manifest);
// Internal error: no such object, another schema, sizes that do not add up.
Result<WeightsManifest> parse_weights_manifest(std::string_view text);

// How a held model is found: the canonical folder, or the canonical spec of synthetic weights. Bad input when there is
// no such folder.
Result<std::string> model_path(const std::string& spec);

// Bad input when a file cannot be read any more.
Result<std::vector<FileState>> file_states(const Checkpoint& checkpoint);

// What differs between the checkpoint that was loaded and the one that is there now, in words ("model-00002.safetensors
// has another size: 10 bytes, 12 when it was loaded"); empty when it is the same.
Result<std::string> what_changed(const WeightsManifest& held, const Checkpoint& now);

}  // namespace faultline
