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

Cited memory_problem(const MemoryPlan& plan, const Profile& profile) {
  constexpr double kGB = 1e9;
  const auto gb = [](int64_t bytes) { return static_cast<double>(bytes) / kGB; };
  const std::string numbers =
      fmt::format("{} GPUs of {:.0f} GB: {:.1f} GB weights, {} tokens of {} bytes, {:.2f} GB logits", plan.gpus,
                  gb(plan.gpu_bytes), gb(plan.weights), plan.pool_tokens, plan.bytes_per_token, gb(plan.logits));
  if (plan.room && *plan.room <= plan.longest_context)
    return {fmt::format("\"{}\" ({})", profile.pool_memory.text, numbers), profile.pool_memory.source};
  return {"memory: " + numbers, "the bytes of nvidia/GLM-5-NVFP4 and of its cache (docs/axes.md)"};
}

std::vector<Cited> offset_problems(const MemoryPlan& plan, const ShapeInfo& shape, Format kv_format, bool gathers,
                                   bool index_keys, const Profile& profile) {
  constexpr int64_t kInt32 = int64_t{1} << 31;
  std::vector<Cited> problems;
  const auto check = [&](bool runs, int64_t token_bytes, const Cited& rule) {
    if (runs && plan.pool_tokens * token_bytes > kInt32)
      problems.push_back({fmt::format("a pool of {} tokens: {}", plan.pool_tokens, rule.text), rule.source});
  };
  const CacheGeometry rows{.format = kv_format, .latent = shape.kv_lora_rank, .rope = shape.qk_rope_head_dim};
  check(gathers, rows.row_bytes(), profile.gather_overflow);
  check(index_keys, shape.index_head_dim + static_cast<int64_t>(sizeof(float)), profile.index_overflow);
  return problems;
}

}  // namespace faultline
