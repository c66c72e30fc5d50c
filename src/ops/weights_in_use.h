// Which bytes of the checkpoint one call of an op reads: all of its weights, but of the routed experts only those that
// have rows, and of the embedding table only the rows of the call's tokens.
#pragma once

#include <vector>

#include "model/on_demand.h"
#include "ops/op.h"

namespace faultline {

// `call` has host views, and its index operands hold what the kernel will see. An index that is out of range is left
// out: the op's own checks are about to find it.
std::vector<WeightRange> weights_in_use(const OpKind& kind, const OpCall& call);

// Asks for them, before anything reads the weights of a call: those on the host (need_weights), or in the memory of the
// GPU on which the call is to run.
Status bring_weights(const OpKind& kind, const OpCall& call);

}  // namespace faultline
