// From what an experiment requests to what takes effect: the server's rules (grid/profile.h) applied to one row.
#pragma once

#include <cstdint>
#include <string_view>

#include "grid/backends.h"
#include "grid/profile.h"
#include "grid/resolved.h"

namespace faultline {

// The sizes that shape rules are applied to: the full GLM-5's, for which small models stand in, or the model's own
// under `shape_rules: actual`. (zai-org/GLM-5 config.json)
struct ShapeInfo {
  int64_t num_attention_heads = 64;
  int64_t kv_lora_rank = 512;
  int64_t qk_rope_head_dim = 64;
  int64_t index_n_heads = 32;
  int64_t index_head_dim = 128;
  int64_t index_topk = 2048;
  bool nvfp4 = true;  // the checkpoint holds NVFP4 weights
  // Asks about the server alone: that this build lacks a kernel or a setting only clears has_kernels.
  bool any_build = false;

  // Memory on the target. Weights as nvidia/GLM-5-NVFP4 stores them without MTP (shape.cpp has the formula), on
  // every GPU: its share and what each holds whole.
  int64_t num_layers = 78;
  int64_t index_layers = 78;
  int64_t vocab_size = 154880;
  int64_t weight_bytes = 440911290192;
  int64_t replicated_bytes = 4215361536;  // of weight_bytes
  int64_t gpus = 8;                       // where the row does not say tp
  int64_t gpu_memory = 0;                 // bytes of one GPU; 0: as usual for the architecture
  int64_t largest_prefill = 0;            // tokens of the largest launch of the probes; 0: not known
  int64_t largest_batch = 0;              // requests of the largest decode step; 0: not known

  // The answer is about the server alone: what only this build cannot do for lack of ranks does not count.
  bool target_only = false;

  // Dense attention differs from the model only past the model's own top-k. 0: not known, so it may.
  int64_t model_index_topk = 0;
  int64_t longest_context = 0;  // tokens that the probes reach
  // Of the model at hand: the server fuses one shared expert, and no other number.
  int64_t model_shared_experts = 1;
};

// `requested` holds any of the axes (grid/axes.h), each with a value of the axis in its canonical spelling; axes left
// out have their default. Aborts on other names or values: experiment.h and with_defaults() have checked them.
//
// Keys of `resolved`, besides every axis ("-" where it has no effect in this row):
//   kv_format, prefill_reads, decode_reads   how the cache is written, and how each phase takes its bytes (backends.h
//   names) prefill_attention, decode_attention      kernel of kind "attention", "reference", or "-" when this build has
//   none indexer, prefill_gathers, prefill_from_rows, prefill_requantizes, decode_requantizes, rope_interleaved,
//   indexer_rope_interleaved, rope_enabled   on, off; the two interleaved keys: on = as the checkpoint says
//   rope_theta                               "checkpoint" or a number
//   fp4_linear, fp4_experts                  "w4a4", "weight_only"
//   index_scales, index_hadamard, index_query, query_format, shared_experts, experts_input_scale, gate_up_scale,
//   router_bias, prefill_form
//                                            settings of the engine (build_features.h lists what this build does)
//   sampling                                 kernel of kind "sample"
//   chunk                                    "probe" or tokens, 0: whole
//   kernel.KIND                              a registered kernel that serves a value unknown to this table, for its
//   kind
ResolvedConfiguration resolve(const AxisValues& requested, const Profile& profile, const Target& target,
                              const ShapeInfo& shape);

// "runs", "layout", "guard", "unsupported".
std::string_view target_status_name(TargetStatus status);

// May the row be run: not refused by the server, and this build has its kernels.
bool can_run(const ResolvedConfiguration& configuration, bool run_unsupported);

}  // namespace faultline
