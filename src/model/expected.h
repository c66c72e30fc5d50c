// The tensors that a GLM-5 checkpoint must have, from its config.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace faultline {

struct ExpectedTensor {
  std::string name;  // "model.layers.0.mlp.gate_proj.weight"
  int rank = 0;      // 1 or 2
  std::array<int64_t, 2> shape{};
  // A matrix of a projection: may be stored in any Precision; `shape` is then [out_features, in_features], whatever the
  // packing. Everything else (norms, embeddings, router bias) is stored plainly.
  bool projection = false;
};

// In forward order. A layer without an indexer of its own has no indexer tensors; a tied lm_head and MTP layers are
// left out.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// "model.layers.12.mlp" -> 12; -1 for a name outside the layers.
int64_t layer_of(std::string_view tensor_name);
// Belongs to an MTP layer (its index is num_hidden_layers or above, within num_nextn_predict_layers, at least one): the
// tensor is recognised and left out.
bool is_mtp_tensor(std::string_view tensor_name, const ModelConfig& config);
// Tensors that exports carry and no forward pass of ours reads: scales of the expanded KV cache (k_scale, v_scale),
// which the latent cache has no use for, and saved RoPE tables.
bool is_tolerated_tensor(std::string_view tensor_name);

}  // namespace faultline
