// `--assume-fixed NAME`: what is taken for mended, so that what lies behind it shows. A reference stands in its place
// in every run.
//
//   NAME := GLOB             an op, with or without its layer: mlp.experts.down_proj, layers.3.self_attn.*
//         | GLOB             a kernel, or a backend that it serves: flashmla_kv
//         | "setting:" WHAT  ops whose parameter WHAT is not the model's (a setting's `attribute`): setting:theta
//         | "weights"        scalar scales of the checkpoint that no kernel can multiply with are taken for 1
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/weights.h"
#include "ops/op.h"
#include "report/findings.h"

namespace faultline {

inline constexpr std::string_view kAssumedWeights = "weights";

// Whether one of the names means this op.
bool assumed_fixed(const std::vector<std::string>& names, const Op& op);
bool assumes_weights(const std::vector<std::string>& names);

// Bad input, with the nearest names: one that means no op of any of these configurations (resolved, each as
// engine_config() takes it), or that is given twice. Builds op lists, runs nothing.
Status check_assume_fixed(const std::vector<std::string>& names, const std::vector<AxisValues>& configurations,
                          const ModelWeights& weights);

// What to assume fixed next, as the options of a command: the ops convicted in the unplanted pass, or in those of
// plants where that one has none. Empty: no conviction, or none that ends a run.
std::string assume_fixed_options(const std::vector<Localized>& localized);

}  // namespace faultline
