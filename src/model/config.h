// A GLM-5 model's dimensions, as config.json (Hugging Face, model_type "glm_moe_dsa") gives them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace faultline {

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;      // dense MLP
  int64_t moe_intermediate_size = 0;  // one expert; the shared expert is n_shared_experts times as wide
  int64_t num_hidden_layers = 0;      // without MTP layers
  int64_t num_attention_heads = 0;
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t n_group = 0;  // router groups; topk_group of them are kept
  int64_t topk_group = 0;
  int64_t kv_lora_rank = 0;
  int64_t q_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  int64_t index_topk = 0;
  int64_t index_head_dim = 0;
  int64_t index_n_heads = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;
  double rope_theta = 0;
  double routed_scaling_factor = 0;
  bool norm_topk_prob = false;
  bool rope_interleave = false;
  bool indexer_rope_interleave = false;
  bool tie_word_embeddings = false;
  std::vector<bool> layer_is_moe;       // one a layer, MTP layers excluded
  std::vector<bool> layer_has_indexer;  // false: the layer uses the top-k of the nearest layer below that has one
  int64_t num_nextn_predict_layers = 0;
  std::vector<int64_t> eos_token_ids;
  std::vector<std::string> notes;  // what the reader had to assume: defaults taken, spellings that disagree

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
};

// Parses a config.json. A missing key has the default of Hugging Face's GlmMoeDsaConfig (the values of GLM-5) and
// leaves a note; only rope_theta has none, since a lost theta is a known way to break this model. Accepted spellings:
//   rope_parameters {rope_theta, rope_type}; rope_scaling as its alias; rope_theta at the top level
//   indexer_types ["full", "shared", …], or index_topk_pattern "FS…", or index_topk_freq with index_skip_topk_offset
//   (or
//     index_topk_offset): layer i has an indexer when max(i - offset + 1, 0) % freq == 0; in this order of precedence
//   mlp_layer_types ["dense", "sparse", …], or first_k_dense_replace with moe_layer_freq
// `where` names the file in messages. Bad input: another architecture, a missing or mistyped key, a
// size out of bounds or that does not divide where the format needs it; the message names the key.
Result<ModelConfig> parse_model_config(std::string_view json_text, std::string_view where);

}  // namespace faultline
