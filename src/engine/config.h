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
  int64_t max_total_tokens = 0;  // capacity of the pool; 0: what the probes need
  bool high_slots = false;       // requests get the pages with the highest numbers

  bool query_fp8 = false;  // over a plain FP8 cache: the query in e4m3 too

  // The indexer's FP8 keys and queries.
  bool index_ue8m0 = false;      // scales are powers of two
  bool index_hadamard = false;   // rotated by a Hadamard matrix after RoPE
  bool index_query_fp8 = false;  // queries quantized as the keys are

  // RoPE as resolved (the model's own values are in the model's config).
  double rope_theta = 0;  // 0: the checkpoint's
  bool rope_interleaved = true;
  bool indexer_rope_interleaved = true;
  bool rope_enabled = true;

  // Products. Empty: weight-only.
  std::string fp4_linear = "w4a4";   // "w4a4" or "weight_only": dense MLP and shared experts
  std::string fp4_experts = "w4a4";  // routed experts

  bool experts_own_input_scale = false;  // W4A4: each expert's input scale, not the largest of all
  bool first_gate_up_scale = false;      // routed experts in NVFP4: w1's weight_scale_2 stands for w3's
  bool router_bias_bf16 = false;
  bool shared_experts_fused = false;  // the shared expert is one more routed one

  std::map<std::string, std::string> kernels;  // op kind → kernel, for kernels that serve an axis value of their own

  std::string sampling = "flashinfer";
  bool cuda_graph = false;
  bool transformers_numerics = false;  // eps 1e-6 after q_a_proj / kv_a_proj
  int64_t chunk = 0;                   // prefill chunk in tokens; 0: whole
  uint64_t seed = 7;
};

}  // namespace faultline
