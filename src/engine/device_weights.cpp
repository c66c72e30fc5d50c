#include "engine/device_weights.h"

#include <algorithm>

#include "base/text.h"

namespace faultline {
namespace {

bool before(const DeviceWeights::Range& range, const std::byte* host) {
  return range.host < host;
}

// The range that holds all of [host, host + bytes), or null.
const DeviceWeights::Range* find_range(const std::vector<DeviceWeights::Range>& ranges, const std::byte* host,
                                       uint64_t bytes) {
  auto it = std::lower_bound(ranges.begin(), ranges.end(), host, before);
  if (it == ranges.end() || it->host != host) {
    if (it == ranges.begin()) return nullptr;
    --it;
  }
  const auto offset = static_cast<uint64_t>(host - it->host);
  return offset <= it->bytes && bytes <= it->bytes - offset ? &*it : nullptr;
}

template <class Visit>
Status each_view(LinearWeight& weight, const Visit& visit) {
  for (TensorView* view : {&weight.weight, &weight.block_scale, &weight.global_scale, &weight.input_scale})
    FAULTLINE_TRY_STATUS(visit(*view));
  return {};
}

template <class Visit>
Status each_view(ModelWeights& weights, const Visit& visit) {
  FAULTLINE_TRY_STATUS(visit(weights.embed));
  FAULTLINE_TRY_STATUS(visit(weights.final_norm));
  FAULTLINE_TRY_STATUS(each_view(weights.lm_head, visit));
  for (LayerWeights& layer : weights.layers) {
    for (TensorView* view :
         {&layer.input_norm, &layer.post_attention_norm, &layer.q_a_norm, &layer.kv_a_norm, &layer.w_uk, &layer.w_uv,
          &layer.index_norm_weight, &layer.index_norm_bias, &layer.router_bias})
      FAULTLINE_TRY_STATUS(visit(*view));
    for (LinearWeight* weight : {&layer.q_a, &layer.q_b, &layer.kv_a, &layer.o, &layer.index_q, &layer.index_k,
                                 &layer.index_heads, &layer.down, &layer.router, &layer.shared_down})
      FAULTLINE_TRY_STATUS(each_view(*weight, visit));
    for (auto* list : {&layer.gate_up, &layer.expert_gate_up, &layer.expert_down, &layer.shared_gate_up})
      for (LinearWeight& weight : *list) FAULTLINE_TRY_STATUS(each_view(weight, visit));
  }
  return {};
}

}  // namespace

DeviceWeights::DeviceWeights(Device& device, Placement placement)
    : device_(&device), placement_(std::move(placement)) {}
DeviceWeights::DeviceWeights(DeviceWeights&&) noexcept = default;
DeviceWeights& DeviceWeights::operator=(DeviceWeights&&) noexcept = default;
DeviceWeights::~DeviceWeights() = default;

void DeviceWeights::place(const Checkpoint& checkpoint, const std::byte* base) {
  const std::vector<StoredTensor>& tensors = checkpoint.tensors();
  tensors_.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    tensors_.push_back({base + placement_.offsets[i], tensors[i].view.data, tensor_bytes(tensors[i].view)});
  std::sort(tensors_.begin(), tensors_.end(), [](const Range& a, const Range& b) { return a.host < b.host; });
}

Result<DeviceWeights> DeviceWeights::attach(Device& device, const Checkpoint& checkpoint, const std::string& manifest,
                                            const std::vector<int>& descriptors) {
  FAULTLINE_TRY(Placement placement, place_tensors(checkpoint));
  DeviceWeights weights(device, std::move(placement));
  FAULTLINE_TRY(weights.manifest_, parse_weights_manifest(manifest));
  const WeightsManifest& m = weights.manifest_;
  if (m.identity != checkpoint.identity())
    return internal_error("the weights in device memory are of another checkpoint: {}, not {}", m.identity,
                          checkpoint.identity());
  if (m.layout != kCheckpointLayout || m.placement != weights.placement_.hash() || m.bytes != weights.placement_.bytes)
    return internal_error(
        "the weights in device memory are laid out otherwise ('{}', {} bytes) than this program does; "
        "release them (`faultline hold --release`) and load them again",
        m.layout, m.bytes);
  FAULTLINE_TRY(const std::string uuid, device_uuid(device));
  if (m.device_uuid != uuid)
    return internal_error("the weights are in the memory of {} ({}), and this is {}", m.device, m.device_name,
                          device.name());
  FAULTLINE_TRY(weights.slabs_, map_slabs(device, m.slabs, descriptors));
  weights.place(checkpoint, weights.slabs_->data());
  return weights;
}

Result<DeviceWeights> DeviceWeights::upload(Device& device, const Checkpoint& checkpoint, uint64_t gpu_bytes) {
#ifdef FAULTLINE_HAVE_CUDA
  if (checkpoint.on_demand() != nullptr && device.is_cuda()) return make(device, checkpoint, gpu_bytes);
#endif
  static_cast<void>(gpu_bytes);
  FAULTLINE_TRY(Placement placement, place_tensors(checkpoint));
  DeviceWeights weights(device, std::move(placement));
  const Device::Memory memory = device.memory();
  if (memory.total != 0 && weights.placement_.bytes > memory.free)
    return cannot_run("{}: the weights of {} need {}, and {} of {} are free", device.name(), checkpoint.spec(),
                      bytes_text(weights.placement_.bytes), bytes_text(memory.free), bytes_text(memory.total));
  FAULTLINE_TRY(auto buffer, device.allocate(weights.placement_.bytes));
  weights.place(checkpoint, buffer->data());
  for (const Range& range : weights.tensors_)
    device.copy_async(buffer->data() + (range.device - buffer->data()), range.host, range.bytes);
  if (const auto fault = device.wait(); fault) return internal_error("loading the weights: {}", fault->message);
  weights.buffers_.push_back(std::move(buffer));
  return weights;
}

const DeviceWeights::Range* DeviceWeights::holding(const std::byte* host, uint64_t bytes) const {
  const Range* range = find_range(tensors_, host, bytes);
  return range != nullptr ? range : find_range(others_, host, bytes);
}

Result<const DeviceWeights::Range*> DeviceWeights::upload_range(const std::byte* host, uint64_t bytes) {
  FAULTLINE_TRY(auto buffer, device_->allocate(bytes));
  device_->copy(buffer->data(), host, bytes);
  const Range range{buffer->data(), host, bytes};
  buffers_.push_back(std::move(buffer));
  // A longer range from the same address takes the place of a shorter one, whose memory stays.
  const auto at = std::lower_bound(others_.begin(), others_.end(), host, before);
  if (at != others_.end() && at->host == host) {
    *at = range;
    return &*at;
  }
  return &*others_.insert(at, range);
}

Result<TensorView> DeviceWeights::to_device(const TensorView& host) {
  TensorView view = host;
  if (host.data == nullptr || host.elements() == 0) return view;
  const uint64_t bytes = static_cast<uint64_t>(host.extent()) * dtype_bytes(host.dtype);
  const Range* range = holding(host.data, bytes);
  if (range == nullptr) {
    FAULTLINE_TRY(range, upload_range(host.data, bytes));
  }
  view.data = const_cast<std::byte*>(range->device) + (host.data - range->host);
  return view;
}

Result<ModelWeights> DeviceWeights::to_device(const ModelWeights& host) {
  // Whole, since several views share one of them.
  for (const auto& memory : host.owned)
    if (holding(memory->data(), memory->size()) == nullptr)
      FAULTLINE_TRY_STATUS(upload_range(memory->data(), memory->size()).map([](const Range*) {}));
  ModelWeights weights;
  weights.config = host.config;
  weights.embed = host.embed;
  weights.final_norm = host.final_norm;
  weights.lm_head = host.lm_head;
  weights.layers = host.layers;
  FAULTLINE_TRY_STATUS(each_view(weights, [&](TensorView& view) -> Status {
    FAULTLINE_TRY(view, to_device(view));
    return {};
  }));
  return weights;
}

std::vector<DeviceWeights::Range> DeviceWeights::ranges() const {
  std::vector<Range> all = tensors_;
  all.insert(all.end(), others_.begin(), others_.end());
  std::sort(all.begin(), all.end(), [](const Range& a, const Range& b) { return a.device < b.device; });
  return all;
}

Status DeviceWeights::verify() const {
  if (slabs_ == nullptr) return {};
  FAULTLINE_TRY(const uint64_t sum, slabs_->checksum(manifest_.bytes));
  if (const std::string found = fmt::format("{:016x}", sum); found != manifest_.checksum)
    return internal_error(
        "the weights in the memory of {} have changed since they were loaded: their checksum is {}, "
        "not {}; release them (`faultline hold --release`) and load them again",
        manifest_.device, found, manifest_.checksum);
  return {};
}

}  // namespace faultline
