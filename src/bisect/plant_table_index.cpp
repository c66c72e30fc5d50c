// Selections and indices; the metadata of a batch.
#include "bisect/plant_table.h"

namespace faultline::plants {
namespace {

constexpr CheckLevel kFull = CheckLevel::kFull;
constexpr CheckLevel kReference = CheckLevel::kReference;
constexpr Target kTopK{.layer = Layer::kFirstIndexer, .op = "self_attn.indexer.topk"};
constexpr Target kRouter{.layer = Layer::kFirstMoe, .op = "mlp.router"};
constexpr Target kPrepare{.layer = Layer::kNone, .op = "batch.prepare"};
constexpr Target kPrepareReplay{
    .layer = Layer::kNone, .op = "batch.prepare", .phase = PassPhase::kDecode, .graph = true};

std::vector<Entry> topk_entries() {
  std::vector<Entry> entries = {
      kernel_fault({"topk_minus_one", "IDXXF", "the top-k leaves a -1 inside the valid prefix of a row"}, kTopK,
                   make_op_fault<put_minus_one_into_topk>, "bounds", kFull, {"sglang#30645", "sglang#30512"}),
      kernel_fault({"topk_nan_bits", "TOPK", "the top-k takes the bits of a NaN score for an index"}, kTopK,
                   make_op_fault<put_nan_bits_into_topk>, "bounds", kFull, {"vllm#49896", "vllm#49897"}),
      kernel_fault({"topk_uninitialised", "TOPK",
                    "more ties than the buffer holds: an entry of the top-k is what the memory held before"},
                   kTopK, make_op_fault<leave_a_topk_slot_uninitialised>, "bounds", kFull, {"sglang#30512"}),
      kernel_fault({"topk_duplicate", "TOPK", "the top-k returns one key twice"}, kTopK,
                   make_op_fault<repeat_a_topk_entry>, "bounds", kFull, {"sglang#35257"}),
      kernel_fault({"topk_dropped_candidate", "TOPK",
                    "a candidate buffer overflows: the worst key stands where a better one belongs"},
                   {.layer = Layer::kFirstIndexer, .op = "self_attn.indexer.topk", .phase = PassPhase::kDecode},
                   make_op_fault<drop_a_topk_candidate>, "mismatch", kReference, {"sglang#36807", "sglang#35257"}),
      kernel_fault({"topk_half_unwritten", "TOPK", "half of a row of the top-k is never stored"}, kTopK,
                   make_op_fault<leave_half_of_topk_unwritten>, "bounds", kFull, {"sglang#33835", "sglang#34167"})
          .also_seen_as("unwritten"),
      kernel_fault({"topk_short", "TOPK", "the top-k returns one key less than there are"}, kTopK,
                   make_op_fault<cut_topk_short>, "bounds", kFull, {"sglang#36807"}),
      kernel_fault(
          {"topk_past_length", "TOPK", "the top-k looks at scores past the row's length, which nobody cleaned"},
          {.layer = Layer::kFirstIndexer, .op = "self_attn.indexer.topk", .phase = PassPhase::kDecode},
          make_op_fault<look_past_the_length>, "bounds", kFull, {"sglang#37892"}),
      kernel_fault({"topk_positions", "IDXXF", "the top-k returns positions where its consumer takes slots"}, kTopK,
                   make_op_fault<keep_positions>, "bounds", kFull, {"sglang#22430", "sglang#14325"})
          .keyed(Keys::kNoRow),
      kernel_fault({"topk_paged_for_ragged", "IDXXF",
                    "the top-k returns slots where its consumer takes rows of a contiguous buffer"},
                   {.layer = Layer::kFirstIndexer, .op = "self_attn.indexer.topk", .phase = PassPhase::kPrefill},
                   make_op_fault<take_pages_for_rows>, "bounds", kFull, {"sglang#20606", "sglang#22430"})
          .also_seen_as("mismatch")
          .on("ragged")
          .keyed(Keys::kNoRow),
  };
  // On a GPU the consumer of a bad index may die of it before anybody has looked.
  for (Entry& entry : entries)
    if (entry.info.verdicts.front() == "bounds") entry = std::move(entry).also_seen_as("illegal-access");
  for (Entry& entry : entries)
    entry.info.needs = entry.info.stage.empty() ? "the DSA indexer" : "the DSA indexer, and prefill by ragged rows";
  return entries;
}

std::vector<Entry> router_entries() {
  std::vector<Entry> entries = {
      kernel_fault({"expert_past_end", "ROUTE", "the router picks an expert that does not exist"}, kRouter,
                   make_op_fault<name_an_expert_past_the_end>, "bounds", kFull, {"sglang#30079"}),
      kernel_fault({"expert_twice", "ROUTE", "the router picks one expert twice for a token"}, kRouter,
                   make_op_fault<name_an_expert_twice>, "bounds", kFull, {"sglang#30989"}),
      kernel_fault({"expert_offset_past_end", "OOB", "the last expert's rows end past the rows that there are"},
                   {.layer = Layer::kFirstMoe, .op = "mlp.experts.permute"}, make_op_fault<end_experts_past_the_rows>,
                   "bounds", kFull, {})
          .keyed(Keys::kNoRow),
      kernel_fault({"router_zero_over_zero", "ROUTE", "the routing weights of a row are 0/0"}, kRouter,
                   make_op_fault<divide_routing_weights_by_zero>, "nonfinite", CheckLevel::kFinite,
                   {"vllm#47367", "sglang#30989", "sglang#31017"}),
      kernel_fault({"router_bias_bf16", "ROUTE", "the router rounds its correction bias to bf16"},
                   {.layer = Layer::kNone, .op = "layers.*.mlp.router"}, make_op_fault<round_the_bias>, "mismatch",
                   kReference, {"sglang#31001", "sglang#30989"})
          .keyed(Keys::kNoRow),
      kernel_fault({"double_routing_scale", "LOAD", "the routing weights are scaled by routed_scaling_factor twice"},
                   kRouter, make_op_fault<scale_twice>, "mismatch", kReference,
                   {"sglang#22513", "sglang#29931", "sglang#31762"})
          .keyed(Keys::kNoRow),
      kernel_fault({"neighbour_expert", "LOAD", "each expert multiplies with the weights of the next one"},
                   {.layer = Layer::kFirstMoe, .op = "mlp.experts.gate_up_proj"},
                   make_op_fault<take_the_next_experts_weights>, "mismatch", kReference, {})
          .keyed(Keys::kNoRow),
  };
  for (Entry& entry : entries) entry.info.needs = "an MoE layer";
  return entries;
}

std::vector<Entry> metadata_entries() {
  std::vector<Entry> entries = {
      kernel_fault({"page_past_pool", "OOB", "the first page table entry of a request points past the pool"}, kPrepare,
                   make_op_fault<point_past_the_pool>, "bounds", kFull, {"sglang#34025", "vllm#56748", "sglang#19319"}),
      kernel_fault({"foreign_page", "OOB",
                    "the first page table entry of a request is a slot of its neighbour's (of nobody's, with one "
                    "request)"},
                   kPrepare, make_op_fault<point_into_a_foreign_page>, "bounds", kFull, {"vllm#54359"}),
      kernel_fault({"context_past_end", "OOB", "a row's length is the word behind the array of lengths"}, kPrepare,
                   make_op_fault<read_lengths_past_the_end>, "bounds", kFull, {"sglang#26541", "DeepGEMM#344"}),
      kernel_fault({"seq_len_zero", "SEQ0", "a live row is given a sequence of length 0"}, kPrepare,
                   make_op_fault<give_a_length_of_zero>, "bounds", kFull,
                   {"DeepGEMM#353", "TensorRT-LLM#14940", "vllm#51970"}),
      kernel_fault({"wrong_request", "GRAPHMETA", "the rows of a request are given to another one of the batch"},
                   kPrepare, make_op_fault<give_a_row_to_another_request>, "mismatch", kReference, {"sglang#23037"})
          .needing("two or more requests in a pass")
          .keyed(Keys::kNoRow),
      kernel_fault({"stale_graph_lengths", "GRAPHMETA", "a graph's replay keeps the lengths of the replay before it"},
                   kPrepareReplay, make_op_fault<keep_the_lengths_of_the_last_replay>, "bounds", kFull,
                   {"sglang#27664", "sglang#15132"})
          .also_seen_as("unwritten")
          .needing("a CUDA graph")
          .on("graph")
          .keyed(Keys::kNoRow),
      kernel_fault({"short_page_table", "GRAPHMETA", "a graph's page table is one column short"}, kPrepareReplay,
                   make_op_fault<leave_the_last_column_out>, "bounds", kFull, {"sglang#18980", "sglang#29379"})
          .also_seen_as("unwritten")
          .needing("a CUDA graph")
          .on("graph"),
      kernel_fault(
          {"stale_graph_slots", "GRAPHMETA",
           "a graph's replay writes new keys where the step before wrote its own; op by op there is no replay"},
          {.layer = Layer::kNone, .op = "layers.*.self_attn.kv_write", .phase = PassPhase::kDecode, .graph = true},
          make_stale_graph_slots, "unwritten", kFull, {"sglang#27664", "sglang#15132"})
          .also_seen_as("canary")
          .named_at("batch.out_cache_loc")
          .needing("a CUDA graph")
          .on("graph")
          .keyed(Keys::kNoRow),
  };
  for (Entry& entry : entries) {
    entry = std::move(entry).blamed_on("metadata");
    if (entry.info.verdicts.front() == "bounds") entry = std::move(entry).also_seen_as("illegal-access");
  }
  entries.push_back(kernel_fault({"wrong_last_row", "GRAPHMETA", "logits are taken of the row before a request's last"},
                                 {.layer = Layer::kNone, .op = "gather_last"}, make_op_fault<take_the_row_before>,
                                 "mismatch", kReference, {"sglang#23037"})
                        .needing("two or more token rows in a pass"));
  return entries;
}

}  // namespace

std::vector<Entry> index_entries() {
  std::vector<Entry> all;
  for (auto make : {topk_entries, router_entries, metadata_entries})
    for (Entry& entry : make()) all.push_back(std::move(entry));
  return all;
}

}  // namespace faultline::plants
