// Values: not finite, wrong, not stored, stored late or in the wrong place; structure that is not the model's.
#include "bisect/plant_table.h"

namespace faultline::plants {
namespace {

constexpr CheckLevel kFinite = CheckLevel::kFinite;
constexpr CheckLevel kFull = CheckLevel::kFull;
constexpr CheckLevel kReference = CheckLevel::kReference;
constexpr CountRange kTwoOrMore{2, INT64_MAX};
constexpr Target kOut{.op = "self_attn.o_proj"};
constexpr Target kDown{.op = "mlp.down_proj", .moe_op = "mlp.experts.down_proj"};
constexpr Target kAttention{.op = "self_attn.attention"};
constexpr Target kResidual{.op = "self_attn.residual"};

std::vector<Entry> nonfinite_entries() {
  return {
      kernel_fault({"nan_output", "UNKNOWN", "one element of an output is NaN"}, kOut, make_op_fault<put_a_nan>,
                   "nonfinite", kFinite, {"sglang#30418", "flashinfer#2883", "vllm#48364"}),
      kernel_fault({"nan_tile", "CODEGEN", "a tile of 128 rows of an expert product is NaN"}, kDown,
                   make_op_fault<put_a_tile_of_nan>, "nonfinite", kFinite, {"sglang#34629", "flashinfer#4486"}),
      kernel_fault({"masked_chunk_nan", "MASK",
                    "rows of which a whole chunk of keys is masked are -inf - -inf in the running maximum"},
                   {.op = "self_attn.attention", .phase = PassPhase::kPrefill},
                   make_op_fault<lose_rows_with_a_masked_chunk>, "nonfinite", kFinite,
                   {"vllm#48364", "vllm#48366", "ik_llama.cpp#2344"})
          .needing("rows that see at most half of the top-k")
          .keyed(Keys::kNoRow),
      kernel_fault({"scratch_nan", "UNINITPAD",
                    "with more than 8 rows, a row takes part of its result from scratch memory that nobody wrote"},
                   {.op = "self_attn.attention", .tokens = CountRange{9, INT64_MAX}}, make_op_fault<put_a_row_of_nan>,
                   "nonfinite", kFinite, {"sglang#39288"})
          .needing("nine or more token rows in a pass"),
      kernel_fault({"padding_nan", "SEQ0", "a padded row of length 0 is 0/0, and its NaN reaches a live row"},
                   {.op = "self_attn.attention", .phase = PassPhase::kDecode, .graph = true},
                   make_op_fault<spread_the_nan_of_padding>, "nonfinite", kFinite,
                   {"flashinfer#2883", "vllm#37815", "flashinfer#4975"})
          .needing("padded rows in a CUDA graph")
          .on("graph"),
      kernel_fault({"graph_nan", "UNKNOWN", "one element of an output is NaN, in the replay of a graph alone"},
                   {.op = "self_attn.o_proj", .phase = PassPhase::kDecode, .graph = true}, make_op_fault<put_a_nan>,
                   "nonfinite", kFinite, {"sglang#29274"})
          .needing("a CUDA graph")
          .on("graph"),
      kernel_fault({"fused_rows_nan", "ALLRED",
                    "every eighth row of what follows the all-reduce is NaN (this build has one rank: the residual)"},
                   kResidual, make_op_fault<lose_rows_at_a_stride>, "nonfinite", kFinite, {"vllm#34412"})
          .keyed(Keys::kNoRow),
      kernel_fault({"unnormalised_probabilities", "UNKNOWN", "the probabilities of a row sum to a half"},
                   {.layer = Layer::kNone, .op = "sampler.softmax"}, make_op_fault<leave_probabilities_unnormalised>,
                   "probability", kFinite, {}),
      kernel_fault({"token_past_vocab", "UNKNOWN", "the sampler draws a token that the vocabulary does not have"},
                   {.layer = Layer::kNone, .op = "sampler.sample"}, make_op_fault<draw_a_token_past_the_vocabulary>,
                   "bounds", kFull, {"sglang#19383"}),
  };
}

std::vector<Entry> store_entries() {
  return {
      kernel_fault({"unwritten_tile", "UNINITPAD", "a kernel leaves a tile of 128 rows of its output as it was"}, kDown,
                   make_op_fault<leave_a_tile_unwritten>, "unwritten", kFull, {"sglang#32843", "flashinfer#3398"}),
      kernel_fault({"canary_overrun", "OOB", "a kernel writes one element past the end of its output"}, kResidual,
                   make_op_fault<write_past_the_end>, "canary", kFull, {"sglang#34025", "vllm#54359"})
          .also_seen_as("bounds")
          .keyed(Keys::kNoRow),
      kernel_fault({"late_residual", "ALLRED",
                    "what follows the all-reduce is read before it is stored: completion was signalled too early"},
                   {.op = "self_attn.residual", .phase = PassPhase::kDecode}, make_late_rows, "nonfinite", kFull,
                   {"vllm#45448", "sglang#29274"})
          .also_seen_as("mismatch")
          .blamed_on("ordering")
          .seen_at("layers.*.post_attention_layernorm")
          .named_at("layers.*.self_attn.residual"),
      kernel_fault(
          {"zero_product", "CODEGEN", "a product of two or more rows is all zeros in decode"},
          {.op = "mlp.down_proj", .moe_op = "mlp.experts.down_proj", .phase = PassPhase::kDecode, .tokens = kTwoOrMore},
          make_op_fault<put_zeros>, "mismatch", kReference, {"flashinfer#3398"})
          .needing("two or more token rows in a decode pass")
          .keyed(Keys::kNoRow),
      kernel_fault({"wrong_value", "CODEGEN", "one element of an output is finite and wrong"}, kOut,
                   make_op_fault<put_a_wrong_value>, "mismatch", kReference,
                   {"flashinfer#2723", "cutlass#3096", "flashinfer#3398"}),
  };
}

std::vector<Entry> structure_entries() {
  std::vector<Entry> entries = {
      kernel_fault({"wrong_rope", "ROPE", "a rotary embedding is applied twice"}, {.op = "self_attn.rope_k"},
                   make_op_fault<rotate_twice>, "mismatch", kReference, {"TensorRT-LLM#16224"}),
      kernel_fault({"missing_rope", "ROPE", "a rotary embedding is not applied"}, {.op = "self_attn.rope_q"},
                   make_op_fault<do_not_rotate>, "mismatch", kReference, {"TensorRT-LLM#16224"}),
      kernel_fault({"lost_theta", "ROPE", "a rotary embedding has the theta of a config without one, 10000"},
                   {.op = "self_attn.rope_q"}, make_op_fault<lose_theta>, "mismatch", kReference, {}),
      kernel_fault({"indexer_rope_layout", "ROPE", "the indexer's rotary embedding pairs dimensions the other way"},
                   {.layer = Layer::kFirstIndexer, .op = "self_attn.indexer.rope_q"},
                   make_op_fault<rotate_in_the_other_layout>, "mismatch", kReference,
                   {"sglang#13530", "sglang#30111", "transformers#46842", "mlx-lm#1453"})
          .needing("the DSA indexer"),
      kernel_fault({"wrong_norm_eps", "LOAD", "a norm adds another epsilon than the model's"},
                   {.op = "self_attn.q_a_layernorm"}, make_op_fault<take_another_eps>, "mismatch", kReference, {}),
      kernel_fault({"swapped_gate_up", "LOAD", "an MLP takes gate for up and up for gate"},
                   {.op = "mlp.act_fn", .moe_op = "mlp.experts.act_fn"}, make_op_fault<swap_gate_and_up>, "mismatch",
                   kReference, {}),
      kernel_fault({"wrong_head_padding", "HEADPAD", "the last head's result is taken from a head of the padding"},
                   kAttention, make_op_fault<read_a_padding_head>, "mismatch", kReference,
                   {"sglang#22372", "vllm#48047"}),
      kernel_fault({"missing_split", "CODEGEN", "the last split of the keys is not merged into the result"}, kAttention,
                   make_op_fault<leave_a_split_out>, "mismatch", kReference, {}),
  };
  for (Entry& entry : entries) entry.keys = Keys::kNoRow;
  return entries;
}

}  // namespace

std::vector<Entry> value_entries() {
  std::vector<Entry> all;
  for (auto make : {nonfinite_entries, store_entries, structure_entries})
    for (Entry& entry : make()) all.push_back(std::move(entry));
  return all;
}

}  // namespace faultline::plants
