// A model's weights on the device that runs it: the slabs that another process filled, mapped for reading, or an upload
// of this process's own. Views of a checkpoint's host mapping become views of the device's memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/slabs.h"
#include "engine/weights.h"
#include "model/checkpoint.h"
#include "model/placement.h"
#include "model/weights_manifest.h"

namespace faultline {

class DeviceWeights {
 public:
  // Memory of the device's, and the host's memory that holds the same bytes.
  struct Range {
    const std::byte* device = nullptr;
    const std::byte* host = nullptr;
    uint64_t bytes = 0;
  };

  // Maps the slabs behind `descriptors` (which may be closed afterwards) read-only. `manifest` is that of the loader.
  // Internal error when the slabs are not those of the manifest, or not of this checkpoint or device. The device and
  // the checkpoint must outlive the result; so must what `to_device` gives.
  static Result<DeviceWeights> attach(Device& device, const Checkpoint& checkpoint, const std::string& manifest,
                                      const std::vector<int>& descriptors);
  // Memory of this process's own, filled from the checkpoint. Cannot-run when it does not suffice. Of weights that are
  // made on use as many as fit in `gpu_bytes` (0: in what is free), the others at each use (model/residency.h).
  static Result<DeviceWeights> upload(Device& device, const Checkpoint& checkpoint, uint64_t gpu_bytes = 0);

  DeviceWeights(DeviceWeights&&) noexcept;
  DeviceWeights& operator=(DeviceWeights&&) noexcept;
  ~DeviceWeights();

  // The device's view of a host view. Views of the checkpoint's mapping cost nothing; what lies elsewhere (a plant's
  // copy, a dequantized kv_b_proj) is uploaded, once for each memory, as it is now. Views without data stay so.
  Result<TensorView> to_device(const TensorView& host);
  // All of a model. The result owns nothing: `host.owned` was uploaded, and `host` must live on as the host's side of
  // it.
  Result<ModelWeights> to_device(const ModelWeights& host);

  // What can be read where, sorted by device address: the tensors of the checkpoint, then what was uploaded besides.
  std::vector<Range> ranges() const;

  // Whether the mapped slabs still hold what was loaded: their checksum, at memory speed. Internal error when they do
  // not. Nothing to prove, and nothing done, for an upload.
  Status verify() const;
  // What verify() compared: "3f…", 16 hex digits; empty for an upload.
  const std::string& checksum() const { return manifest_.checksum; }
  uint64_t bytes() const { return placement_.bytes; }

 private:
  DeviceWeights(Device& device, Placement placement);
  static Result<DeviceWeights> make(Device& device, const Checkpoint& checkpoint, uint64_t gpu_bytes);
  void place(const Checkpoint& checkpoint, const std::byte* base);
  const Range* holding(const std::byte* host, uint64_t bytes) const;
  Result<const Range*> upload_range(const std::byte* host, uint64_t bytes);

  Device* device_;
  Placement placement_;
  WeightsManifest manifest_;
  std::unique_ptr<SlabMap> slabs_;                // attached
  std::vector<std::unique_ptr<Buffer>> buffers_;  // uploaded
  std::shared_ptr<void> made_;                    // on the GPU
  std::vector<Range> tensors_;                    // of the checkpoint, by host address
  std::vector<Range> others_;                     // by host address
};

}  // namespace faultline
