// The checkpoint's tensors, looked up once and laid out as the ops take them. Views into the mapped checkpoint; nothing
// is copied but a kv_b_proj that is stored quantized (the absorbed form needs its rows a head).
#pragma once

#include <memory>
#include <vector>

#include "model/checkpoint.h"

namespace faultline {

struct LayerWeights {
  TensorView input_norm, post_attention_norm;
  LinearWeight q_a, q_b, kv_a, o;
  TensorView q_a_norm, kv_a_norm;
  TensorView w_uk;  // [heads, nope, latent]: rows of kv_b_proj, k contiguous in n
  TensorView w_uv;  // [heads, v, latent]
  std::string kv_b_name;

  bool has_indexer = false;
  LinearWeight index_q, index_k, index_heads;
  TensorView index_norm_weight, index_norm_bias;

  bool is_moe = false;
  std::vector<LinearWeight> gate_up;  // dense MLP: gate, up
  LinearWeight down;
  LinearWeight router;
  TensorView router_bias;
  std::vector<LinearWeight> expert_gate_up;  // expert-major: e0.gate, e0.up, e1.gate, …
  std::vector<LinearWeight> expert_down;
  std::vector<LinearWeight> shared_gate_up;
  LinearWeight shared_down;
};

struct ModelWeights {
  ModelConfig config;
  TensorView embed, final_norm;
  LinearWeight lm_head;
  std::vector<LayerWeights> layers;
  std::vector<std::unique_ptr<std::vector<std::byte>>> owned;  // dequantized kv_b_proj
};

// Errors name the missing or misshapen tensor.
Result<ModelWeights> load_weights(const Checkpoint& checkpoint);

}  // namespace faultline
