#include "engine/weights.h"

#include <cstring>

namespace faultline {
namespace {

class Loader {
 public:
  explicit Loader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  Status vector(const std::string& name, int64_t size, TensorView& out) {
    const TensorView* view = checkpoint_.find(name);
    if (view == nullptr) return bad_input("{}: tensor {} is missing", checkpoint_.spec(), name);
    if (view->rank != 1 || view->dim(0) != size)
      return bad_input("{}: {} must have shape [{}]", checkpoint_.spec(), name, size);
    out = *view;
    return {};
  }

  Status matrix(const std::string& name, int64_t rows, int64_t columns, TensorView& out) {
    const TensorView* view = checkpoint_.find(name);
    if (view == nullptr) return bad_input("{}: tensor {} is missing", checkpoint_.spec(), name);
    if (view->rank != 2 || view->dim(0) != rows || view->dim(1) != columns)
      return bad_input("{}: {} must have shape [{}, {}]", checkpoint_.spec(), name, rows, columns);
    out = *view;
    return {};
  }

  Status linear(const std::string& module, int64_t out_features, int64_t in_features, LinearWeight& out) {
    FAULTLINE_TRY(out, checkpoint_.linear(module));
    if (out.out_features != out_features || out.in_features != in_features)
      return bad_input("{}: {} is [{}, {}], config.json asks for [{}, {}]", checkpoint_.spec(), module,
                       out.out_features, out.in_features, out_features, in_features);
    return {};
  }

 private:
  const Checkpoint& checkpoint_;
};

// kv_b_proj rows of head h: [h * (nope + v), + nope) are W_UK, the next v rows are W_UV (absorbed MLA).
void split_kv_b(const LinearWeight& kv_b, const ModelConfig& config, LayerWeights& layer, ModelWeights& weights) {
  TensorView flat = kv_b.weight;
  if (kv_b.precision != Precision::kBf16 && kv_b.precision != Precision::kF32 && kv_b.precision != Precision::kF16) {
    auto memory =
        std::make_unique<std::vector<std::byte>>(static_cast<size_t>(kv_b.out_features * kv_b.in_features) * 2);
    flat = make_view(memory->data(), Dtype::kBF16, {kv_b.out_features, kv_b.in_features});
    std::vector<float> row(static_cast<size_t>(kv_b.in_features));
    for (int64_t i = 0; i < kv_b.out_features; ++i) {
      dequantize_row(kv_b, i, row.data());
      for (int64_t j = 0; j < kv_b.in_features; ++j) flat.store(flat.offset(i, j), row[static_cast<size_t>(j)]);
    }
    weights.owned.push_back(std::move(memory));
  }
  const int64_t rows = config.qk_nope_head_dim + config.v_head_dim;
  TensorView heads = flat;
  heads.rank = 3;
  heads.shape = {config.num_attention_heads, rows, config.kv_lora_rank, 0};
  heads.stride = {rows * config.kv_lora_rank, config.kv_lora_rank, 1, 0};
  layer.w_uk = heads;
  layer.w_uk.shape[1] = config.qk_nope_head_dim;
  layer.w_uv = heads;
  layer.w_uv.shape[1] = config.v_head_dim;
  layer.w_uv.data += config.qk_nope_head_dim * config.kv_lora_rank * static_cast<int64_t>(dtype_bytes(flat.dtype));
}

}  // namespace

Result<ModelWeights> load_weights(const Checkpoint& checkpoint) {
  Loader load(checkpoint);
  ModelWeights weights;
  weights.config = checkpoint.config();
  const ModelConfig& c = weights.config;
  FAULTLINE_TRY_STATUS(load.matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size, weights.embed));
  FAULTLINE_TRY_STATUS(load.vector("model.norm.weight", c.hidden_size, weights.final_norm));
  FAULTLINE_TRY_STATUS(load.linear(c.tie_word_embeddings ? "model.embed_tokens" : "lm_head", c.vocab_size,
                                   c.hidden_size, weights.lm_head));
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const std::string prefix = fmt::format("model.layers.{}.", l);
    const std::string attention = prefix + "self_attn.";
    const std::string mlp = prefix + "mlp.";
    LayerWeights layer;
    FAULTLINE_TRY_STATUS(load.vector(prefix + "input_layernorm.weight", c.hidden_size, layer.input_norm));
    FAULTLINE_TRY_STATUS(
        load.vector(prefix + "post_attention_layernorm.weight", c.hidden_size, layer.post_attention_norm));
    FAULTLINE_TRY_STATUS(load.linear(attention + "q_a_proj", c.q_lora_rank, c.hidden_size, layer.q_a));
    FAULTLINE_TRY_STATUS(load.vector(attention + "q_a_layernorm.weight", c.q_lora_rank, layer.q_a_norm));
    FAULTLINE_TRY_STATUS(
        load.linear(attention + "q_b_proj", c.num_attention_heads * c.qk_head_dim(), c.q_lora_rank, layer.q_b));
    FAULTLINE_TRY_STATUS(
        load.linear(attention + "kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size, layer.kv_a));
    FAULTLINE_TRY_STATUS(load.vector(attention + "kv_a_layernorm.weight", c.kv_lora_rank, layer.kv_a_norm));
    LinearWeight kv_b;
    FAULTLINE_TRY_STATUS(load.linear(
        attention + "kv_b_proj", c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank, kv_b));
    layer.kv_b_name = kv_b.name;
    split_kv_b(kv_b, c, layer, weights);
    FAULTLINE_TRY_STATUS(
        load.linear(attention + "o_proj", c.hidden_size, c.num_attention_heads * c.v_head_dim, layer.o));
    layer.has_indexer = c.layer_has_indexer[static_cast<size_t>(l)];
    if (layer.has_indexer) {
      const std::string indexer = attention + "indexer.";
      FAULTLINE_TRY_STATUS(
          load.linear(indexer + "wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank, layer.index_q));
      FAULTLINE_TRY_STATUS(load.linear(indexer + "wk", c.index_head_dim, c.hidden_size, layer.index_k));
      FAULTLINE_TRY_STATUS(load.vector(indexer + "k_norm.weight", c.index_head_dim, layer.index_norm_weight));
      FAULTLINE_TRY_STATUS(load.vector(indexer + "k_norm.bias", c.index_head_dim, layer.index_norm_bias));
      FAULTLINE_TRY_STATUS(load.linear(indexer + "weights_proj", c.index_n_heads, c.hidden_size, layer.index_heads));
    }
    layer.is_moe = c.layer_is_moe[static_cast<size_t>(l)];
    const auto projections = [&](const std::string& module, int64_t width, std::vector<LinearWeight>& gate_up,
                                 LinearWeight& down) -> Status {
      for (const char* name : {"gate_proj", "up_proj"}) {
        LinearWeight weight;
        FAULTLINE_TRY_STATUS(load.linear(module + name, width, c.hidden_size, weight));
        gate_up.push_back(weight);
      }
      return load.linear(module + "down_proj", c.hidden_size, width, down);
    };
    if (!layer.is_moe) {
      FAULTLINE_TRY_STATUS(projections(mlp, c.intermediate_size, layer.gate_up, layer.down));
    } else {
      FAULTLINE_TRY_STATUS(load.linear(mlp + "gate", c.n_routed_experts, c.hidden_size, layer.router));
      FAULTLINE_TRY_STATUS(load.vector(mlp + "gate.e_score_correction_bias", c.n_routed_experts, layer.router_bias));
      for (int64_t e = 0; e < c.n_routed_experts; ++e) {
        LinearWeight down;
        FAULTLINE_TRY_STATUS(
            projections(fmt::format("{}experts.{}.", mlp, e), c.moe_intermediate_size, layer.expert_gate_up, down));
        layer.expert_down.push_back(down);
      }
      if (c.n_shared_experts > 0)
        FAULTLINE_TRY_STATUS(projections(mlp + "shared_experts.", c.moe_intermediate_size * c.n_shared_experts,
                                         layer.shared_gate_up, layer.shared_down));
    }
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

}  // namespace faultline
