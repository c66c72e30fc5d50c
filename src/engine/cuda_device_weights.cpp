// DeviceWeights of a model whose weights are made on use: small tensors copied, the others made on the GPU, once where
// they stay, and before each use where the plan has no room for them.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/text.h"
#include "device/alias.h"
#include "engine/device_weights.h"
#include "model/residency.h"
#include "ops/cuda_made_weights.h"

namespace faultline {
namespace {

// What must live as long as the weights, in the order in which it ends.
struct Made {
  std::unique_ptr<AliasedMemory> buffer;
  std::unique_ptr<MadePerUse> per_use;
};

uint64_t aligned(uint64_t bytes) {
  return (bytes + kPlacementAlignment - 1) / kPlacementAlignment * kPlacementAlignment;
}

// "model.layers.17.mlp.experts.…" → 17; -1 for every other tensor.
int64_t expert_layer(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  const size_t rest = name.find(".mlp.experts.");
  if (!name.starts_with(kPrefix) || rest == std::string_view::npos) return -1;
  int64_t layer = 0;
  for (const char digit : name.substr(kPrefix.size(), rest - kPrefix.size())) layer = layer * 10 + (digit - '0');
  return layer;
}

}  // namespace

Result<DeviceWeights> DeviceWeights::make(Device& device, const Checkpoint& checkpoint, uint64_t gpu_bytes) {
  FAULTLINE_TRY(const SynthModel model, parse_synth_spec(checkpoint.spec()));
  const std::vector<StoredTensor>& tensors = checkpoint.tensors();
  ResidencyRequest request;
  request.gpu = true;
  request.gpu_bytes = gpu_bytes > 0 ? gpu_bytes : device.memory().free;
  request.synthetic = true;
  std::vector<NamedBytes> sizes;
  for (const StoredTensor& tensor : tensors) sizes.push_back({tensor.name, tensor_bytes(tensor.view)});
  FAULTLINE_TRY(const ResidencyPlan plan, plan_residency(checkpoint.config(), sizes, request));

  // Places: from the start of the resident memory, or of its layer's buffer.
  std::map<int64_t, size_t> place_of;  // of a layer whose experts are made per use
  for (int64_t layer = 0; layer < checkpoint.config().num_hidden_layers; ++layer)
    if (checkpoint.config().layer_is_moe[static_cast<size_t>(layer)]) place_of.emplace(layer, 0);
  for (const int64_t layer : plan.gpu_expert_layers) place_of.erase(layer);
  size_t places = 0;
  for (auto& [layer, place] : place_of) place = places++;
  std::vector<uint64_t> offsets;
  std::vector<uint64_t> used(places, 0);
  uint64_t resident = 0;
  std::vector<std::byte> small;  // what the host makes, as it will lie at the start of the resident memory
  const auto made_per_use = [&](size_t i) {
    const auto place = place_of.find(expert_layer(tensors[i].name));
    return sizes[i].bytes >= OnDemandWeights::kSmall ? place : place_of.end();
  };
  std::vector<SynthRecipe> recipes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& view = tensors[i].view;
    recipes.push_back(synth_recipe(model, {tensors[i].name, view.dtype, view.rank, view.shape, 0, sizes[i].bytes}));
    if (sizes[i].bytes < OnDemandWeights::kSmall) recipes.back().kind = SynthRecipe::Kind::kOther;
    if (recipes.back().kind == SynthRecipe::Kind::kOther) resident += aligned(sizes[i].bytes);
  }
  small.resize(resident);
  uint64_t small_end = 0;
  uint64_t largest = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto place = made_per_use(i);
    const bool host_made = recipes[i].kind == SynthRecipe::Kind::kOther;
    uint64_t& end = host_made ? small_end : (place != place_of.end() ? used[place->second] : resident);
    offsets.push_back(end);
    if (host_made) {
      const WeightRange range{tensors[i].view.data, sizes[i].bytes};
      FAULTLINE_TRY_STATUS(need_weights({&range, 1}));
      std::memcpy(small.data() + end, tensors[i].view.data, sizes[i].bytes);
    }
    end += aligned(sizes[i].bytes);
    if (place != place_of.end()) largest = std::max(largest, end);
  }

  Placement placement;
  placement.offsets = offsets;
  placement.bytes = resident;
  DeviceWeights weights(device, std::move(placement));
  const auto made = std::make_shared<Made>();
  FAULTLINE_TRY(auto memory, device.allocate(resident));
  if (places > 0) {
    FAULTLINE_TRY(made->buffer, make_cuda_alias(largest, places));
  }
  std::vector<MadeTensor> once;
  std::vector<MadeTensor> per_use;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StoredTensor& tensor = tensors[i];
    const auto place = made_per_use(i);
    std::byte* const at = (place != place_of.end() ? made->buffer->place(place->second) : memory->data()) + offsets[i];
    weights.tensors_.push_back({at, tensor.view.data, sizes[i].bytes});
    if (recipes[i].kind == SynthRecipe::Kind::kOther) continue;
    (place != place_of.end() ? per_use : once).push_back({at, sizes[i].bytes, recipes[i]});
  }
  device.copy(memory->data(), small.data(), small.size());
  std::sort(weights.tensors_.begin(), weights.tensors_.end(),
            [](const Range& a, const Range& b) { return a.host < b.host; });
  kernels::LaunchContext launch;
  launch.cuda = true;
  launch.stream = device.stream();
  FAULTLINE_TRY_STATUS(make_on_device(once, launch));
  if (const auto fault = device.wait(); fault) return internal_error("making the weights: {}", fault->message);
  if (!per_use.empty()) made->per_use = std::make_unique<MadePerUse>(std::move(per_use));
  weights.buffers_.push_back(std::move(memory));
  weights.made_ = made;
  return weights;
}

}  // namespace faultline
