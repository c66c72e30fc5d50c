#include "bisect/capsule.h"
#include "bisect/plant.h"
#include "engine/run_pass.h"

namespace faultline {
namespace {

constexpr int kReplays = 3;  // each with another order of threads

// A recorded plant names its op, so that of a model it needs no more than that the op's layer exists.
Result<std::unique_ptr<PlantedFault>> plant_of(const Capsule& capsule) {
  ModelConfig config;
  config.num_hidden_layers = std::max(capsule.op.layer, 0) + 1;
  config.layer_is_moe.assign(static_cast<size_t>(config.num_hidden_layers), false);
  config.layer_has_indexer.assign(static_cast<size_t>(config.num_hidden_layers), false);
  return make_plant(capsule.plant, config);
}

}  // namespace

Result<CapsuleReplay> replay_capsule(const Capsule& capsule, bool with_plant, Device& device) {
  FAULTLINE_CHECK(capsule.weights.empty());
  std::unique_ptr<PlantedFault> plant;
  if (with_plant && !capsule.plant.empty()) {
    FAULTLINE_TRY(plant, plant_of(capsule));
    plant->use_device(device);
  }
  CapsuleReplay replay;
  for (; replay.runs < kReplays; ++replay.runs) {
    auto found =
        replay_alone(capsule.op, capsule.info, plant.get(), capsule.seed + static_cast<uint64_t>(replay.runs), device);
    if (!found) continue;
    ++replay.broken;
    if (!replay.violation) replay.violation = std::move(found);
  }
  return replay;
}

Result<CapsuleReplay> write_proven_capsule(const std::string& path, CapsuleSource source, Device& device) {
  FAULTLINE_TRY_STATUS(write_capsule(path, source));
  FAULTLINE_TRY(Capsule capsule, read_capsule(path));
  FAULTLINE_TRY_STATUS(bind_weights(capsule, source.checkpoint));
  FAULTLINE_TRY(CapsuleReplay replay, replay_capsule(capsule, true, device));
  if (replay.broken == replay.runs) return replay;
  source.alone = CapsuleRuns{replay.broken, replay.runs};
  FAULTLINE_TRY_STATUS(write_capsule(path, source));
  return replay;
}

}  // namespace faultline
