// What resolution needs to know of the model and of the probes' reach.
#pragma once

#include "grid/experiment.h"
#include "grid/resolve.h"
#include "model/config.h"

namespace faultline {

// `model`: null where none is named: then the full GLM-5 is meant. The probes' defaults are filled in already.
ShapeInfo shape_info(const ModelConfig* model, const Experiment& experiment);

}  // namespace faultline
