// What ends a process, a kernel or a launch: on the host, and on the device.
#include "bisect/plant_table.h"

namespace faultline::plants {
namespace {

constexpr CheckLevel kOff = CheckLevel::kOff;
constexpr Target kDecode{.op = "self_attn.attention", .phase = PassPhase::kDecode};
constexpr Target kPrefill{
    .op = "self_attn.attention", .phase = PassPhase::kPrefill, .tokens = CountRange{9, INT64_MAX}};

std::vector<Entry> host_entries() {
  return {
      kernel_fault({"crash", "UNKNOWN", "a kernel's launcher writes through a bad pointer: SIGSEGV"}, kDecode,
                   make_op_fault<crash>, "crash", kOff, {"sglang#27520"}),
      kernel_fault({"late_crash", "UNKNOWN", "a kernel's launcher calls abort, not before the second step of decode"},
                   {.op = "self_attn.attention", .phase = PassPhase::kDecode, .step = CountRange{1, INT64_MAX}},
                   make_op_fault<abort_process>, "abort", kOff, {"sglang#30209", "sglang#27520"})
          .needing("two or more steps of decode"),
      kernel_fault({"abort", "UNKNOWN", "a kernel's launcher calls abort"}, kDecode, make_op_fault<abort_process>,
                   "abort", kOff, {}),
      kernel_fault({"hang", "CODEGEN", "a kernel never returns"}, kDecode, make_op_fault<hang>, "hang", kOff,
                   {"sglang#30209"})
          .on("hang"),
      kernel_fault({"exit", "UNKNOWN", "a kernel's launcher ends the process with exit code 7"}, kDecode,
                   make_op_fault<exit_process>, "crash", kOff, {}),
      kernel_fault({"exception", "CODEGEN", "a kernel's launcher throws an exception that nobody expects"}, kDecode,
                   make_op_fault<throw_exception>, "crash", kOff, {"sglang#31864", "flashinfer#2516"}),
      kernel_fault({"store_assertion", "GUARD", "the store into the cache refuses its format by a bare assertion"},
                   {.op = "self_attn.kv_write"}, make_op_fault<throw_exception>, "crash", kOff,
                   {"sglang#14691", "sglang#31346"}),
      kernel_fault({"out_of_memory", "OOM", "a kernel's launcher allocates until memory is out"}, kDecode,
                   make_op_fault<run_out_of_memory>, "oom", kOff, {"sglang#37712", "sglang#35201"})
          .on("memory"),
      kernel_fault(
          {"indexer_out_of_memory", "OOM", "the logits of the indexer are not budgeted: memory is out in a prefill"},
          {.layer = Layer::kFirstIndexer, .op = "self_attn.indexer.scores", .phase = PassPhase::kPrefill},
          make_op_fault<run_out_of_memory>, "oom", kOff, {"sglang#37712", "sglang#35759", "ATOM#1376"})
          .needing("the DSA indexer")
          .on("memory"),
  };
}

std::vector<Entry> device_entries() {
  return {
      kernel_fault({"assert", "UNKNOWN", "a kernel's assertion fails on the device"}, kDecode,
                   make_op_fault<assert_on_device>, "device-assert", kOff, {"sglang#20043", "sglang#29453"}),
      kernel_fault({"padded_batch_assert", "GRAPHMETA",
                    "a kernel asserts that the batch is as its metadata was planned: the rows were padded since"},
                   {.op = "self_attn.attention", .phase = PassPhase::kDecode, .graph = true},
                   make_op_fault<assert_on_padding>, "device-assert", kOff,
                   {"sglang#15132", "sglang#38580", "sglang#24233"})
          .needing("padded rows in a CUDA graph")
          .on("graph"),
      kernel_fault({"illegal_access", "UNKNOWN", "a kernel reads and writes far outside of its tensors"}, kDecode,
                   make_op_fault<access_an_illegal_address>, "illegal-access", kOff, {"sglang#37892", "sglang#34025"})
          .for_gpus_only(),
      kernel_fault(
          {"misaligned_access", "INT32", "a kernel stores four bytes to an address that is no multiple of four"},
          kDecode, make_op_fault<access_a_misaligned_address>, "illegal-access", kOff, {"lightseekorg/tokenspeed#501"})
          .for_gpus_only(),
      kernel_fault({"illegal_instruction", "UNKNOWN", "a kernel executes an instruction that the GPU refuses"}, kDecode,
                   make_op_fault<execute_an_illegal_instruction>, "launch-failure", kOff, {"sglang#11942"})
          .for_gpus_only(),
      kernel_fault({"weight_overwrite", "OOB", "a kernel stores into the weights, which may only be read"},
                   {.op = "self_attn.o_proj", .phase = PassPhase::kDecode}, make_op_fault<overwrite_a_weight>,
                   "illegal-access", kOff, {})
          .for_gpus_only(),
      kernel_fault(
          {"shared_memory_limit", "SMEM", "a kernel is launched with more shared memory than a block can have"},
          kDecode, make_op_fault<ask_for_too_much_shared_memory>, "launch-failure", kOff,
          {"sglang#38370", "local-inference-lab/vllm#260"}),
      kernel_fault({"prefill_shared_memory", "SMEM",
                    "the tile of a prefill kernel takes more shared memory than a block can have"},
                   kPrefill, make_op_fault<ask_for_too_much_shared_memory>, "launch-failure", kOff,
                   {"sglang#14311", "sglang#17908", "ktransformers#1570", "sglang#27962"})
          .needing("nine or more token rows in a prefill pass"),
      kernel_fault({"grid_limit", "GRID", "a kernel is launched with a larger grid than there can be"}, kDecode,
                   make_op_fault<ask_for_too_large_a_grid>, "launch-failure", kOff, {"llama.cpp#27752"}),
      kernel_fault({"prefill_grid_limit", "GRID", "a chunk of tokens is a larger grid than there can be"}, kPrefill,
                   make_op_fault<ask_for_too_large_a_grid>, "launch-failure", kOff, {"sglang#29453"})
          .needing("nine or more token rows in a prefill pass"),
      kernel_fault({"product_refused", "CODEGEN", "the launch of an FP4 product is refused: Error Internal"},
                   {.op = "mlp.gate_up_proj", .moe_op = "mlp.experts.gate_up_proj"},
                   make_op_fault<ask_for_too_much_shared_memory>, "launch-failure", kOff,
                   {"cutlass#2692", "vllm#29711", "sglang#32021"}),
      kernel_fault({"no_code", "ARCH", "a kernel is launched that was compiled for another architecture"}, kDecode,
                   make_op_fault<launch_code_for_another_gpu>, "unsupported", kOff,
                   {"sglang#40558", "sglang#31578", "DeepGEMM#236"}),
  };
}

}  // namespace

std::vector<Entry> process_entries() {
  std::vector<Entry> all = host_entries();
  for (Entry& entry : device_entries()) all.push_back(std::move(entry));
  for (Entry& entry : all) entry.keys = Keys::kNoRow;
  return all;
}

}  // namespace faultline::plants
