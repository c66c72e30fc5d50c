// The weights of a run on a GPU: those that `faultline hold` keeps, when they are still those of the checkpoint, else
// loaded for this run alone (then this process's descriptors keep them, and they go with it).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "bisect/load_weights.h"
#include "model/checkpoint.h"
#include "model/keeper.h"

namespace faultline {

// A checkpoint as Checkpoint::open gives it. Synthetic weights that are held on a device are taken from their keeper
// instead of being made again.
Result<Checkpoint> open_checkpoint(const std::string& spec, const SynthMemory& memory = {});

// What is held of a model on a device, and whether it can be used.
struct HeldState {
  std::optional<HeldModel> held;
  std::string changed;  // what is another than when it was loaded; empty: nothing
};
Result<HeldState> find_held(const Checkpoint& checkpoint, const std::string& device_uuid);

struct RunWeights {
  WeightsManifest manifest;
  std::vector<UniqueFd> slabs;
  bool held = false;
  std::string origin;  // for people: "held by process 17 since …", "loaded in 1.3 s (49.2 GB/s)"
};

// The held weights of a checkpoint on a device, if they can be used. No error keeps anybody from loading.
std::optional<RunWeights> take_if_held(const Checkpoint& checkpoint, const std::string& device_uuid,
                                       std::string& trouble);

// `device`: "cuda:0". Says on stderr where the weights come from, unless `quiet`.
Result<RunWeights> obtain_weights(const Checkpoint& checkpoint, const std::string& device, bool quiet,
                                  const std::string& program = "/proc/self/exe");

}  // namespace faultline
