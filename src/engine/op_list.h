// The ops that a configuration runs, without running any.
#pragma once

#include <functional>

#include "engine/config.h"
#include "engine/weights.h"
#include "ops/op.h"

namespace faultline {

// Each op of a prefill, without and with a prefix, and of a decode step, greedy and sampled; shadows are left out. The
// passes are of one token, on the CPU. Errors: as build_pass().
Status visit_ops(const ModelWeights& weights, const EngineConfig& config, const std::function<void(const Op&)>& visit);

}  // namespace faultline
