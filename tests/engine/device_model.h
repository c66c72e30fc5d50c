// A checkpoint whose weights lie on a device, for tests of the engine.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/device_weights.h"
#include "engine/host_mirror.h"
#include "testing.h"

namespace faultline {

class DeviceModel {
 public:
  DeviceModel(const std::string& spec, const std::string& device, const SynthMemory& memory = {},
              uint64_t gpu_bytes = 0)
      : checkpoint_(opened(spec, memory)) {
    auto loaded = load_weights(checkpoint_);
    REQUIRE(loaded);
    host_ = std::move(*loaded);
    auto made = make_device(device);
    REQUIRE(made);
    device_ = std::move(*made);
    mirror_ = std::make_unique<HostMirror>(*device_);
    if (!device_->is_cuda()) return;
    auto uploaded = DeviceWeights::upload(*device_, checkpoint_, gpu_bytes);
    REQUIRE(uploaded);
    uploaded_.emplace(std::move(*uploaded));
    auto placed = uploaded_->to_device(host_);
    REQUIRE(placed);
    on_device_ = std::move(*placed);
    for (const DeviceWeights::Range& range : uploaded_->ranges()) mirror_->add(range.device, range.bytes, range.host);
  }

  const ModelWeights& weights() const { return device_->is_cuda() ? on_device_ : host_; }
  HostMirror& mirror() { return *mirror_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const DeviceWeights& uploaded() const { return *uploaded_; }

 private:
  static Checkpoint opened(const std::string& spec, const SynthMemory& memory) {
    auto checkpoint = Checkpoint::open(spec, memory);
    REQUIRE(checkpoint);
    return std::move(*checkpoint);
  }

  Checkpoint checkpoint_;
  ModelWeights host_;
  std::unique_ptr<Device> device_;
  std::optional<DeviceWeights> uploaded_;
  ModelWeights on_device_;
  std::unique_ptr<HostMirror> mirror_;
};

}  // namespace faultline
