// What the engine is told about one configuration: kernels by name, formats, parameters. Made from a resolved grid row
// by bisect/, or by `faultline forward`.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "ops/formats.h"

namespace faultline {

enum class CheckLevel : uint8_t { kOff, kFinite, kFull, kReference };

struct EngineConfig {
  bool reference_kernels = false;  // kernels: reference — the model reference in every op, F32 activations
  CheckLevel checks = CheckLevel::kFull;

  // Attention. Kernel names of the kind "attention" (ops/attention.cpp).
  std::string prefill_attention = "flashmla_sparse";
  std::string decode_attention = "flashmla_kv";
  bool indexer = true;                     // the row runs the DSA indexer (NSA attention)
  Format kv_format = Format::kKvBf16;      // how the cache is written
  Format prefill_reads = Format::kKvBf16;  // how the prefill kernel takes the pool's bytes
  Format decode_reads = Format::kKvBf16;   // how the decode kernel takes them
  bool prefill_gathers =
      false;  // prefill with a prefix decodes the pool into a contiguous bf16 buffer first (ragged indices)
  bool prefill_from_rows = false;    // prefill without a prefix reads the new rows, not the cache
  bool prefill_requantizes = false;  // packs a bf16 pool anew before each call
  bool decode_requantizes = false;
  int64_t page_size = 64;

  // RoPE as resolved (the model's own values are in the model's config).
  double rope_theta = 0;  // 0: the checkpoint's
  bool rope_interleaved = true;
  bool indexer_rope_interleaved = true;
  bool rope_enabled = true;

  // Products. Empty: weight-only.
  std::string fp4_linear = "w4a4";   // "w4a4" or "weight_only": dense MLP and shared experts
  std::string fp4_experts = "w4a4";  // routed experts

  std::map<std::string, std::string> kernels;  // op kind → kernel, for kernels that serve an axis value of their own

  std::string sampling = "flashinfer";
  bool cuda_graph = false;
  bool transformers_numerics = false;  // eps 1e-6 after q_a_proj / kv_a_proj
  int64_t chunk = 0;                   // prefill chunk in tokens; 0: whole
  uint64_t seed = 7;
};

}  // namespace faultline
