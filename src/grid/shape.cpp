#include "grid/shape.h"

#include <algorithm>

namespace faultline {
namespace {

constexpr int64_t kBf16 = 2;
constexpr int64_t kF32 = 4;
constexpr int64_t kMlpProjections = 3;

int64_t nvfp4_mlp(int64_t hidden, int64_t width) {
  constexpr int64_t kCodesPerByte = 2;
  constexpr int64_t kBlock = 16;
  constexpr int64_t kScalars = 2 * kF32;
  const int64_t weights = kMlpProjections * hidden * width;
  return weights / kCodesPerByte + weights / kBlock + kMlpProjections * kScalars;
}

int64_t largest(const std::vector<int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

}  // namespace

WeightBytes weight_bytes(const ModelConfig& m) {
  const int64_t hidden = m.hidden_size;
  const int64_t heads = m.num_attention_heads;
  const int64_t split = heads * (m.qk_head_dim() * m.q_lora_rank +                               // q_b
                                 (m.qk_nope_head_dim + m.v_head_dim) * m.kv_lora_rank +          // kv_b
                                 m.v_head_dim * hidden);                                         // o
  const int64_t whole = (m.q_lora_rank + m.kv_lora_rank + m.qk_rope_head_dim) * hidden +         // q_a, kv_a
                        2 * hidden + m.q_lora_rank + m.kv_lora_rank;                             // norms
  const int64_t indexer = m.index_n_heads * m.index_head_dim * m.q_lora_rank +                   // wq_b
                          (m.index_head_dim + m.index_n_heads) * hidden + 2 * m.index_head_dim;  // wk, heads, norm
  const int64_t router = m.n_routed_experts * (hidden * kBf16 + kF32);
  WeightBytes bytes;
  for (size_t l = 0; l < static_cast<size_t>(m.num_hidden_layers); ++l) {
    const bool indexes = l >= m.layer_has_indexer.size() || m.layer_has_indexer[l];
    const bool moe = l < m.layer_is_moe.size() && m.layer_is_moe[l];
    bytes.replicated += kBf16 * (whole + (indexes ? indexer : 0)) + (moe ? router : 0);
    bytes.total += kBf16 * split;
    if (!moe) {
      bytes.total += nvfp4_mlp(hidden, m.intermediate_size);
      continue;
    }
    bytes.total += m.n_routed_experts * nvfp4_mlp(hidden, m.moe_intermediate_size);
    if (m.n_shared_experts > 0) bytes.total += nvfp4_mlp(hidden, m.n_shared_experts * m.moe_intermediate_size);
  }
  bytes.replicated += kBf16 * hidden;  // the last norm
  bytes.total += bytes.replicated + kBf16 * m.vocab_size * hidden * (m.tie_word_embeddings ? 1 : 2);
  return bytes;
}

ShapeInfo shape_info(const ModelConfig* model, const Experiment& experiment) {
  ShapeInfo shape;
  const Probes& probes = experiment.probes;
  shape.longest_context = probes.longest_context();
  shape.largest_batch = largest(probes.decode_batch);
  shape.largest_prefill = largest(probes.prefill_lengths);
  if (const int64_t chunk = probes.prefill_chunk.value_or(0); chunk > 0)
    shape.largest_prefill = std::min(shape.largest_prefill, chunk);
  shape.model_index_topk = model == nullptr ? shape.index_topk : model->index_topk;
  if (model != nullptr) shape.model_shared_experts = model->n_shared_experts;
  if (model == nullptr || experiment.shape_rules != "actual") return shape;
  shape.num_attention_heads = model->num_attention_heads;
  shape.kv_lora_rank = model->kv_lora_rank;
  shape.qk_rope_head_dim = model->qk_rope_head_dim;
  shape.index_n_heads = model->index_n_heads;
  shape.index_head_dim = model->index_head_dim;
  shape.index_topk = model->index_topk;
  shape.num_layers = model->num_hidden_layers;
  shape.index_layers = std::count(model->layer_has_indexer.begin(), model->layer_has_indexer.end(), true);
  shape.vocab_size = model->vocab_size;
  const WeightBytes bytes = weight_bytes(*model);
  shape.weight_bytes = bytes.total;
  shape.replicated_bytes = bytes.replicated;
  return shape;
}

}  // namespace faultline
