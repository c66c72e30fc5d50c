// Formats: scales and codes of FP4 products, quantized caches, offsets into them.
#include "bisect/plant_table.h"

namespace faultline::plants {
namespace {

constexpr CheckLevel kFinite = CheckLevel::kFinite;
constexpr CheckLevel kFull = CheckLevel::kFull;
constexpr CheckLevel kReference = CheckLevel::kReference;
constexpr Target kAttention{.op = "self_attn.attention"};
constexpr Target kKvWrite{.op = "self_attn.kv_write"};
constexpr Target kIndexWrite{.layer = Layer::kFirstIndexer, .op = "self_attn.indexer.k_write"};
constexpr Target kIndexScores{.layer = Layer::kFirstIndexer, .op = "self_attn.indexer.scores"};
constexpr Target kGateUp{.op = "mlp.gate_up_proj", .moe_op = "mlp.experts.gate_up_proj"};
constexpr Target kQuantize{.op = "mlp.gate_up_proj.quantize", .moe_op = "mlp.experts.gate_up_proj.quantize"};
constexpr const char* kNeedsPacked = "a packed FP8 cache";
constexpr const char* kNeedsW4A4 = "a W4A4 product";

std::vector<Entry> cache_entries() {
  return {
      kernel_fault(
          {"pow2_scales", "SCALEFMT", "a kernel reads the cache's fp32 block scales as packed powers of two (UE8M0)"},
          kAttention, make_op_fault<read_scales_as_powers_of_two>, "nonfinite", kFinite,
          {"sglang#19948", "sglang#20921", "sglang#12878", "sglang#28662"})
          .also_seen_as("mismatch")
          .needing("a kernel that reads a packed FP8 cache; with op=*.indexer.scores an FP8 index cache")
          .keyed(Keys::kNoRow),
      kernel_fault({"pow2_index_scales", "SCALEFMT",
                    "the indexer reads the fp32 scales of its keys as packed powers of two (UE8M0)"},
                   kIndexScores, make_op_fault<read_scales_as_powers_of_two>, "nonfinite", kFull,
                   {"sglang#16622", "sglang#25733"})
          .also_seen_as("mismatch")
          .needing("an FP8 index cache")
          .keyed(Keys::kNoRow),
      kernel_fault({"rotated_kv_scales", "SCALEFMT", "a kernel takes the scale of the next quarter of a latent row"},
                   kAttention, make_op_fault<read_scales_of_the_next_quarter>, "mismatch", kReference, {"sglang#13067"})
          .needing("a kernel that reads a packed FP8 cache")
          .keyed(Keys::kNoRow),
      kernel_fault({"zero_kv_block", "FP8ZERO",
                    "a quarter of a latent row is zero when the floorless quantisation divides by its largest "
                    "magnitude"},
                   kKvWrite, make_op_fault<zero_a_latent_quarter>, "nonfinite", kFinite,
                   {"kernels-community#680", "TensorRT-LLM#16224"})
          .needing(kNeedsPacked),
      kernel_fault({"zero_index_block", "FP8ZERO", "an index key of zeros is divided by its largest magnitude"},
                   kIndexWrite, make_op_fault<divide_index_key_by_zero>, "nonfinite", kFinite,
                   {"kernels-community#680", "kernels-community#681"})
          .needing("an FP8 index cache"),
      kernel_fault({"fp8_overflow", "FP8ZERO", "a value past 448 becomes the NaN code of e4m3"}, kKvWrite,
                   make_op_fault<overflow_a_code>, "nonfinite", kFinite, {"flashinfer#2595"})
          .needing("an FP8 cache"),
      kernel_fault({"kv_row_not_stored", "CACHEXFER", "a token's row of the index cache is never stored"}, kIndexWrite,
                   make_op_fault<leave_a_slot_unwritten>, "unwritten", kFull, {"LMCache#5002", "sglang#39692"})
          .also_seen_as("nonfinite")
          .needing("the DSA indexer"),
      kernel_fault({"unrestored_index_keys", "CACHEXFER",
                    "a prefix came back without its index keys: the indexer reads what the slots held before"},
                   {.layer = Layer::kFirstIndexer, .op = "self_attn.indexer.scores", .phase = PassPhase::kDecode},
                   make_op_fault<read_keys_that_were_not_restored>, "mismatch", kReference,
                   {"sglang#38031", "sglang#39692", "sglang#39156"})
          .needing("the DSA indexer")
          .keyed(Keys::kNoRow),
      kernel_fault(
          {"late_index_keys", "CACHEXFER", "the indexer reads a layer's new keys before the store of them is applied"},
          {.layer = Layer::kFirstIndexer, .op = "self_attn.indexer.k_write", .phase = PassPhase::kDecode},
          make_late_cache, "mismatch", kReference, {"sglang#22811"})
          .also_seen_as("nonfinite")
          .blamed_on("ordering")
          .seen_at("layers.*.self_attn.indexer.scores")
          .named_at("layers.*.self_attn.indexer.k_write")
          .needing("the DSA indexer")
          .keyed(Keys::kNoRow),
      kernel_fault({"stray_cache_write", "INT32", "a cache write also changes a slot that is not the row's"}, kKvWrite,
                   make_op_fault<write_into_a_neighbour_slot>, "bounds", kFull, {"sglang#34025"}),
      kernel_fault(
          {"int32_write_offset", "INT32", "offsets of the pool's last page wrap: its rows are stored elsewhere"},
          kKvWrite, make_op_fault<write_high_slots_elsewhere>, "unwritten", kFull,
          {"lightseekorg/tokenspeed#501", "vllm#56748"})
          .also_seen_as("nonfinite")
          .needing("slots in the last page of the pool (slot_placement: high)")
          .on("high")
          .keyed(Keys::kNoRow),
      kernel_fault({"int32_read_offset", "INT32", "offsets of the pool's last page wrap: its rows are read elsewhere"},
                   kAttention, make_op_fault<read_high_slots_elsewhere>, "mismatch", kReference,
                   {"vllm#47671", "sglang#20389", "sglang#9344"})
          .also_seen_as("nonfinite")
          .needing("slots in the last page of the pool (slot_placement: high)")
          .on("high")
          .keyed(Keys::kNoRow),
      kernel_fault({"gather_wrong_row", "OOB", "the last row gathered from the cache is another slot's"},
                   {.op = "self_attn.kv_gather"}, make_op_fault<gather_a_wrong_row>, "mismatch", kReference,
                   {"sglang#19319"})
          .needing("prefill by ragged rows, with a prefix")
          .on("ragged")
          .keyed(Keys::kNoRow),
  };
}

std::vector<Entry> fp4_entries() {
  std::vector<Entry> entries = {
      kernel_fault({"swizzled_scales", "SCALEFMT",
                    "an FP4 product reads its activations' scales in 128x4 tiles; they were written row by row"},
                   kGateUp, make_op_fault<read_swizzled_scales>, "mismatch", kReference, {"sglang#13067"})
          .keyed(Keys::kNoRow),
      kernel_fault({"scale_rows_unwritten", "UNINITPAD", "the scales of a row of FP4 activations are never written"},
                   kQuantize, make_op_fault<leave_scales_unwritten>, "unwritten", kFull,
                   {"flashinfer#2861", "vllm#38148", "vllm#37564"})
          .also_seen_as("nonfinite"),
      kernel_fault({"fp4_zero_block", "FP8ZERO", "the scale of a block of FP4 activations is 0/0: the NaN code"},
                   kQuantize, make_op_fault<divide_a_block_by_zero>, "nonfinite", kFinite,
                   {"TensorRT-LLM#16224", "flashinfer#2595"}),
      kernel_fault({"fp4_nibbles_swapped", "CODEGEN", "the conversion to e2m1 packs its pairs the wrong way round"},
                   kQuantize, make_op_fault<swap_the_nibbles>, "mismatch", kReference,
                   {"cutlass#3120", "vllm#35947", "vllm#37725"})
          .keyed(Keys::kNoRow),
      kernel_fault(
          {"late_tile", "RACE", "the consumer of an FP4 product reads one 128-row tile before its store is applied"},
          {.op = "mlp.gate_up_proj",
           .moe_op = "mlp.experts.gate_up_proj",
           .phase = PassPhase::kDecode,
           .tokens = CountRange{2, INT64_MAX}},
          make_late_tile, "nonfinite", kFull, {"flashinfer#2708", "flashinfer#2716", "sglang#20043", "vllm#45448"})
          .also_seen_as("mismatch")
          .blamed_on("ordering")
          .seen_at("layers.*.mlp*.act_fn")
          .named_at("layers.*.mlp*.gate_up_proj")
          .needing("a W4A4 product, and two or more token rows in a decode pass"),
      kernel_fault(
          {"zero_input_scale", "INSCALE", "the `input_scale` of an NVFP4 product is 0, its reciprocal infinite"},
          kGateUp, make_zero_input_scale, "nonfinite", kFull, {"vllm#45212", "vllm#54189", "sglang#12866"})
          .blamed_on("weights")
          .seen_at("layers.*.mlp*.gate_up_proj.quantize")
          .keyed(Keys::kWeights),
      kernel_fault({"infinite_input_scale", "INSCALE",
                    "the largest `input_scale` of an NVFP4 product is infinite: an entry was never written"},
                   kGateUp, make_infinite_input_scale, "nonfinite", kFull, {"vllm#35693", "sglang#14102"})
          .blamed_on("weights")
          .seen_at("layers.*.mlp*.gate_up_proj.quantize")
          .keyed(Keys::kWeights),
      kernel_fault({"missing_expert_scale", "INSCALE",
                    "every other expert lacks its `input_scale`: tokens routed there divide by 0"},
                   {.layer = Layer::kFirstMoe, .op = "mlp.experts.gate_up_proj"}, make_missing_expert_scale,
                   "nonfinite", kReference, {"vllm#45212", "vllm#45320", "sglang#13162"})
          .blamed_on("weights")
          .seen_at("layers.*.mlp.experts.gate_up_proj.quantize")
          .on("own scales")
          .keyed(Keys::kWeights),
      kernel_fault({"zero_weight_scale", "INSCALE", "the `weight_scale_2` of an NVFP4 product is 0: all results are"},
                   {.op = "mlp.down_proj", .moe_op = "mlp.experts.down_proj"}, make_zero_weight_scale, "nonfinite",
                   kFull, {"vllm#54189"})
          .blamed_on("weights")
          .keyed(Keys::kWeights),
  };
  for (Entry& entry : entries)
    if (entry.info.needs.empty())
      entry.info.needs = entry.info.stage.empty() ? kNeedsW4A4 : "W4A4 experts with input scales of their own";
  return entries;
}

}  // namespace

std::vector<Entry> format_entries() {
  std::vector<Entry> all = cache_entries();
  for (Entry& entry : fp4_entries()) all.push_back(std::move(entry));
  return all;
}

}  // namespace faultline::plants
