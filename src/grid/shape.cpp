#include "grid/shape.h"

namespace faultline {

ShapeInfo shape_info(const ModelConfig* model, const Experiment& experiment) {
  ShapeInfo shape;
  shape.longest_context = experiment.probes.longest_context();
  shape.model_index_topk = model == nullptr ? shape.index_topk : model->index_topk;
  if (model == nullptr || experiment.shape_rules != "actual") return shape;
  shape.num_attention_heads = model->num_attention_heads;
  shape.kv_lora_rank = model->kv_lora_rank;
  shape.qk_rope_head_dim = model->qk_rope_head_dim;
  shape.index_n_heads = model->index_n_heads;
  shape.index_head_dim = model->index_head_dim;
  shape.index_topk = model->index_topk;
  return shape;
}

}  // namespace faultline
