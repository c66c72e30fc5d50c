// Whether weights, the cache's pool and logits fit in the GPUs of the target.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "grid/profile.h"
#include "grid/resolve.h"

namespace faultline {

// Bytes of one GPU of an architecture, where nobody says otherwise: H200, B200, RTX PRO 6000 Blackwell (as NVIDIA's
// data sheets give them: 141, 180 and 96 GB).
int64_t usual_gpu_memory(Arch arch);

struct MemoryPlan {
  int64_t gpus = 0;
  int64_t gpu_bytes = 0;        // of one GPU
  int64_t weights = 0;          // on one GPU
  int64_t bytes_per_token = 0;  // of the pool, all layers; each GPU holds the whole pool, which MLA does not split
  int64_t pool_tokens = 0;      // of the pool as asked for, else what the probes need; 0: not known
  int64_t logits = 0;           // of the largest decode step
  int64_t longest_context = 0;  // tokens of one request, which the pool must hold
  std::optional<int64_t> room;  // tokens that mem_fraction_static leaves room for; negative: not even for the weights

  int64_t total() const { return weights + pool_tokens * bytes_per_token + logits; }
  bool fits() const { return total() <= gpu_bytes && (!room || *room > longest_context); }
};

struct MemoryRequest {
  Format kv_format = Format::kKvBf16;
  int64_t tp = 1;                  // 1: as ShapeInfo::gpus says
  int64_t max_total_tokens = 0;    // 0: what the probes need
  double mem_fraction_static = 0;  // 0: not said
};
MemoryPlan plan_memory(const ShapeInfo& shape, Arch arch, const MemoryRequest& request);

// Why a plan does not fit, with its numbers.
Cited memory_problem(const MemoryPlan& plan, const Profile& profile);

// Kernels whose int32 offsets overflow in a pool of this size: the gather that decodes a packed pool, and the store of
// index keys in FP8, where the row runs them.
std::vector<Cited> offset_problems(const MemoryPlan& plan, const ShapeInfo& shape, Format kv_format, bool gathers,
                                   bool index_keys, const Profile& profile);

}  // namespace faultline
