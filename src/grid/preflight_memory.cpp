#include "grid/preflight_memory.h"

#include <algorithm>

namespace faultline {

int64_t usual_gpu_memory(Arch arch) {
  constexpr int64_t kGB = 1000000000;
  switch (arch) {
    case Arch::kSm90:
      return 141 * kGB;
    case Arch::kSm100:
      return 180 * kGB;
    case Arch::kSm120:
      return 96 * kGB;
  }
  return 0;
}

MemoryPlan plan_memory(const ShapeInfo& shape, Arch arch, const MemoryRequest& request) {
  MemoryPlan plan;
  plan.gpus = request.tp > 1 ? request.tp : shape.gpus;
  plan.gpu_bytes = shape.gpu_memory > 0 ? shape.gpu_memory : usual_gpu_memory(arch);
  plan.weights = (shape.weight_bytes - shape.replicated_bytes) / plan.gpus + shape.replicated_bytes;
  CacheGeometry row{.format = request.kv_format, .latent = shape.kv_lora_rank, .rope = shape.qk_rope_head_dim};
  constexpr int64_t kIndexScale = 4;  // bytes; keys are e4m3
  // The pool of this model holds index keys whatever attention runs.
  plan.bytes_per_token = shape.num_layers * row.row_bytes() + shape.index_layers * (shape.index_head_dim + kIndexScale);
  plan.pool_tokens =
      request.max_total_tokens > 0 ? request.max_total_tokens : shape.longest_context * shape.largest_batch;
  plan.longest_context = shape.longest_context;
  constexpr int64_t kLogitBytes = 4;
  plan.logits = shape.largest_batch * shape.vocab_size * kLogitBytes;
  if (request.mem_fraction_static > 0) {
    const auto share = static_cast<int64_t>(request.mem_fraction_static * static_cast<double>(plan.gpu_bytes));
    plan.room = (share - plan.weights) / plan.bytes_per_token;
    // The pool takes all the room there is, or what max_total_tokens says if that is less.
    const int64_t room = std::max<int64_t>(*plan.room, 0);
    plan.pool_tokens = request.max_total_tokens > 0 ? std::min(request.max_total_tokens, room) : room;
  }
  return plan;
}

}  // namespace faultline
