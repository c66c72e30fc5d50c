#include "bisect/held_weights.h"

#include "base/clock.h"
#include "device/slabs.h"
#include "model/synth.h"

namespace faultline {
namespace {

constexpr double kGB = 1e9;

std::string loaded_text(const WeightsManifest& manifest) {
  return fmt::format("loaded in {} ({:.1f} GB/s)", duration_text(manifest.load_seconds),
                     static_cast<double>(manifest.bytes) / kGB / manifest.load_seconds);
}

Result<std::vector<HeldModel>> all_held() {
  std::vector<std::string> notes;
  return list_all_held(notes);  // a keeper that answers wrongly holds nothing for us
}

}  // namespace

Result<Checkpoint> open_checkpoint(const std::string& spec, const SynthMemory& memory) {
  if (!spec.starts_with(kSynthPrefix)) return Checkpoint::open(spec);
  FAULTLINE_TRY(const std::string path, model_path(spec));
  const auto held = all_held();
  if (!held) return Checkpoint::open(spec, memory);
  for (const HeldModel& model : *held) {
    if (model.manifest.path != path || model.manifest.checkpoint_descriptors == 0) continue;
    auto descriptors = take_held(model);
    if (!descriptors) continue;
    auto adopted = Checkpoint::adopt(model.manifest.checkpoint, std::move(descriptors->checkpoint));
    if (adopted) return adopted;
  }
  return Checkpoint::open(spec, memory);
}

Result<HeldState> find_held(const Checkpoint& checkpoint, const std::string& device_uuid) {
  HeldState state;
  FAULTLINE_TRY(const std::string path, model_path(checkpoint.spec()));
  FAULTLINE_TRY(std::vector<HeldModel> all, all_held());
  for (HeldModel& model : all) {
    if (model.manifest.path != path || model.manifest.device_uuid != device_uuid) continue;
    FAULTLINE_TRY(state.changed, what_changed(model.manifest, checkpoint));
    if (state.changed.empty()) {
      FAULTLINE_TRY(const Placement placement, place_tensors(checkpoint));
      if (model.manifest.layout != kCheckpointLayout || model.manifest.placement != placement.hash())
        state.changed = fmt::format("it is laid out otherwise ('{}') than this program does", model.manifest.layout);
    }
    state.held = std::move(model);
    break;
  }
  return state;
}

std::optional<RunWeights> take_if_held(const Checkpoint& checkpoint, const std::string& device_uuid,
                                       std::string& trouble) {
  const auto state = find_held(checkpoint, device_uuid);
  if (!state) trouble = state.error().message;
  if (!state || !state->held) return std::nullopt;
  if (!state->changed.empty()) {
    trouble = fmt::format(
        "{} has changed since it was held: {}. It is loaded anew for this run; `faultline hold {}` replaces what is "
        "held",
        checkpoint.spec(), state->changed, checkpoint.spec());
    return std::nullopt;
  }
  auto taken = take_held(*state->held);
  if (!taken) {
    trouble = taken.error().message;
    return std::nullopt;
  }
  RunWeights weights;
  weights.manifest = state->held->manifest;
  weights.slabs = std::move(taken->slabs);
  weights.held = true;
  weights.origin = fmt::format("held by process {} since {}", state->held->pid, state->held->manifest.loaded);
  return weights;
}

Result<RunWeights> obtain_weights(const Checkpoint& checkpoint, const std::string& device, bool quiet,
                                  const std::string& program) {
  std::string uuid(kMemorySlabs);
  if (device != kMemorySlabs) {
    FAULTLINE_TRY(const int ordinal, cuda_ordinal(device));
    FAULTLINE_TRY(uuid, cuda_device_uuid(ordinal));
  }
  std::string trouble;
  std::optional<RunWeights> weights = take_if_held(checkpoint, uuid, trouble);
  if (!trouble.empty()) fmt::print(stderr, "faultline: {}\n", trouble);
  if (!weights) {
    FAULTLINE_TRY(LoadedWeights loaded, load_weights_apart(checkpoint, device, quiet, program));
    weights.emplace();
    weights->manifest = std::move(loaded.manifest);
    weights->slabs = std::move(loaded.slabs);
    weights->origin = loaded_text(weights->manifest);
  }
  if (!quiet) fmt::print(stderr, "faultline: weights of {}: {}\n", checkpoint.spec(), weights->origin);
  return std::move(*weights);
}

}  // namespace faultline
