#include "bisect/weights_stub.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "bisect/touch_memory.h"

using namespace faultline;

namespace {

Status work(nlohmann::json& said) {
  std::string text;
  ReadState state = ReadState::kData;
  while (state == ReadState::kData) {
    constexpr size_t kStep = size_t{64} << 10;
    FAULTLINE_TRY(state, read_some(kStubTaskFd, text, kStep));
  }
  FAULTLINE_TRY(const nlohmann::json task, parse_json(text, "the stub's task"));
  std::vector<int> descriptors;
  std::vector<int> slabs;
  int next = kStubFirstFd;
  for (size_t i = 0; i < task.at("descriptors").get<size_t>(); ++i) descriptors.push_back(next++);
  for (size_t i = 0; i < task.at("slab_count").get<size_t>(); ++i) slabs.push_back(next++);
  FAULTLINE_TRY(const Checkpoint checkpoint, Checkpoint::attach(task.at("checkpoint"), descriptors));
  FAULTLINE_TRY(const auto device, make_device("cuda"));
  FAULTLINE_TRY(const auto buffer, device->allocate(1));
  if (device->wait()) return internal_error("no context");
  said["context"] = monotonic_seconds();
  FAULTLINE_TRY(const DeviceWeights weights, DeviceWeights::attach(*device, checkpoint, task.at("slabs"), slabs));
  said["attached"] = monotonic_seconds();
  FAULTLINE_TRY_STATUS(weights.verify());
  said["proven"] = monotonic_seconds();
  auto* word = const_cast<std::byte*>(weights.ranges().front().device);
  said["result"] = touch_memory(word, task.at("action") == "write");
  said["kernel"] = monotonic_seconds();
  return {};
}

}  // namespace

int main() {
  nlohmann::json said = {{"started", monotonic_seconds()}};
  if (const Status status = work(said); !status) said["error"] = status.error().message;
  fmt::print("{}\n", said.dump());
  std::fflush(stdout);
  return said.contains("error") ? 3 : 0;
}
