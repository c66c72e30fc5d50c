// What resolution needs to know of the model, of the probes' reach and of the machine.
#pragma once

#include "grid/experiment.h"
#include "grid/resolve.h"
#include "model/config.h"

namespace faultline {

// `model`: null where none is named: then the full GLM-5 is meant. The probes' defaults are filled in already.
ShapeInfo shape_info(const ModelConfig* model, const Experiment& experiment);

// Bytes of a checkpoint as nvidia/GLM-5-NVFP4 stores it, without MTP layers: MLP and experts in NVFP4 (half a byte a
// weight, an e4m3 scale for 16, two F32 scalars a projection), the rest in BF16, the router's bias in F32.
struct WeightBytes {
  int64_t total = 0;
  int64_t replicated = 0;  // what tensor parallelism does not split: down-projections of MLA, indexer, norms, router
};
WeightBytes weight_bytes(const ModelConfig& model);

}  // namespace faultline
