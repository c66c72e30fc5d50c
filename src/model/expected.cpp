#include "model/expected.h"

#include <algorithm>
#include <charconv>

namespace faultline {
namespace {

class List {
 public:
  void vector(std::string name, int64_t size) { items_.push_back({std::move(name), 1, {size, 0}, false}); }
  void projection(const std::string& module, int64_t out, int64_t in) {
    items_.push_back({module + ".weight", 2, {out, in}, true});
  }
  void embedding(std::string name, int64_t rows, int64_t columns) {
    items_.push_back({std::move(name), 2, {rows, columns}, false});
  }
  void swiglu(const std::string& prefix, int64_t width, int64_t hidden) {
    projection(prefix + ".gate_proj", width, hidden);
    projection(prefix + ".up_proj", width, hidden);
    projection(prefix + ".down_proj", hidden, width);
  }
  std::vector<ExpectedTensor> take() { return std::move(items_); }

 private:
  std::vector<ExpectedTensor> items_;
};

void add_attention(List& list, const ModelConfig& c, const std::string& prefix, bool indexer) {
  list.projection(prefix + ".q_a_proj", c.q_lora_rank, c.hidden_size);
  list.vector(prefix + ".q_a_layernorm.weight", c.q_lora_rank);
  list.projection(prefix + ".q_b_proj", c.num_attention_heads * c.qk_head_dim(), c.q_lora_rank);
  list.projection(prefix + ".kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size);
  list.vector(prefix + ".kv_a_layernorm.weight", c.kv_lora_rank);
  list.projection(prefix + ".kv_b_proj", c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank);
  list.projection(prefix + ".o_proj", c.hidden_size, c.num_attention_heads * c.v_head_dim);
  if (!indexer) return;
  list.projection(prefix + ".indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank);
  list.projection(prefix + ".indexer.wk", c.index_head_dim, c.hidden_size);
  list.vector(prefix + ".indexer.k_norm.weight", c.index_head_dim);
  list.vector(prefix + ".indexer.k_norm.bias", c.index_head_dim);
  list.projection(prefix + ".indexer.weights_proj", c.index_n_heads, c.hidden_size);
}

void add_moe(List& list, const ModelConfig& c, const std::string& prefix) {
  list.projection(prefix + ".gate", c.n_routed_experts, c.hidden_size);
  list.vector(prefix + ".gate.e_score_correction_bias", c.n_routed_experts);
  for (int64_t e = 0; e < c.n_routed_experts; ++e) {
    list.swiglu(fmt::format("{}.experts.{}", prefix, e), c.moe_intermediate_size, c.hidden_size);
  }
  list.swiglu(prefix + ".shared_experts", c.moe_intermediate_size * c.n_shared_experts, c.hidden_size);
}

constexpr std::string_view kLayerPrefix = "model.layers.";

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& c) {
  List list;
  list.embedding("model.embed_tokens.weight", c.vocab_size, c.hidden_size);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const auto layer = static_cast<size_t>(i);
    const std::string prefix = fmt::format("{}{}", kLayerPrefix, i);
    list.vector(prefix + ".input_layernorm.weight", c.hidden_size);
    add_attention(list, c, prefix + ".self_attn", c.layer_has_indexer[layer]);
    list.vector(prefix + ".post_attention_layernorm.weight", c.hidden_size);
    if (c.layer_is_moe[layer]) {
      add_moe(list, c, prefix + ".mlp");
    } else {
      list.swiglu(prefix + ".mlp", c.intermediate_size, c.hidden_size);
    }
  }
  list.vector("model.norm.weight", c.hidden_size);
  if (!c.tie_word_embeddings) list.projection("lm_head", c.vocab_size, c.hidden_size);
  return list.take();
}

int64_t layer_of(std::string_view tensor_name) {
  if (!tensor_name.starts_with(kLayerPrefix)) return -1;
  tensor_name.remove_prefix(kLayerPrefix.size());
  int64_t layer = -1;
  const char* end = tensor_name.data() + tensor_name.size();
  const auto [stop, error] = std::from_chars(tensor_name.data(), end, layer);
  return error == std::errc() && stop != end && *stop == '.' && layer >= 0 ? layer : -1;
}

bool is_mtp_tensor(std::string_view tensor_name, const ModelConfig& config) {
  const int64_t layer = layer_of(tensor_name);
  const int64_t last = config.num_hidden_layers + std::max<int64_t>(config.num_nextn_predict_layers, 1);
  return layer >= config.num_hidden_layers && layer < last;
}

bool is_tolerated_tensor(std::string_view tensor_name) {
  return tensor_name.ends_with(".k_scale") || tensor_name.ends_with(".v_scale") ||
         tensor_name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace faultline
