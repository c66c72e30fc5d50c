// Synthetic weights in a GPU's memory: made there by kernels/cuda_synth.h, once or before each call that reads them.
#pragma once

#include <memory>
#include <vector>

#include "model/synth.h"
#include "ops/op.h"

namespace faultline {

struct MadeTensor {
  std::byte* at = nullptr;
  uint64_t bytes = 0;
  SynthRecipe recipe;  // never kOther
};

// Makes them all, on the stream of `launch`. A refused launch is an internal error.
Status make_on_device(const std::vector<MadeTensor>& tensors, const kernels::LaunchContext& launch);

// Tensors that are made before each call that reads them (bring_device_weights), as long as the object lives.
class MadePerUse {
 public:
  explicit MadePerUse(std::vector<MadeTensor> tensors);
  ~MadePerUse();
  MadePerUse(const MadePerUse&) = delete;
  MadePerUse& operator=(const MadePerUse&) = delete;

 private:
  friend Status bring_device_weights(const OpKind& kind, const OpCall& call);
  struct Jobs;
  const Jobs* jobs_of(const OpKind& kind, const OpCall& call);
  std::vector<MadeTensor> tensors_;  // by address
  std::vector<std::unique_ptr<Jobs>> jobs_;
};

// Makes what a call on the GPU reads of such tensors: of the routed experts those with rows, which the GPU itself finds
// out. Goes to the call's stream, and may be captured from the second call of an op on.
Status bring_device_weights(const OpKind& kind, const OpCall& call);

}  // namespace faultline
