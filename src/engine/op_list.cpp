#include "engine/op_list.h"

#include "engine/engine.h"

namespace faultline {

Status visit_ops(const ModelWeights& weights, const EngineConfig& config, const std::function<void(const Op&)>& visit) {
  EngineConfig small = config;
  small.max_total_tokens = 0;
  EngineLimits limits;
  limits.max_context = 2;
  FAULTLINE_TRY(const auto engine, Engine::create(weights, small, limits, SamplingParams{}));
  for (const PassPhase phase : {PassPhase::kPrefill, PassPhase::kDecode})
    for (const bool prefix : {false, true})
      for (const bool greedy : {false, true}) {
        if (phase == PassPhase::kDecode && !prefix) continue;
        PassShape shape;
        shape.phase = phase;
        shape.tokens = 1;
        shape.requests = 1;
        shape.has_prefix = prefix;
        shape.greedy = greedy;
        FAULTLINE_TRY(const Pass* pass, engine->build(shape));
        for (const Op& op : pass->ops)
          if (!op.shadow) visit(op);
      }
  return {};
}

}  // namespace faultline
