#include "bisect/plant.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "bisect/plant_fault.h"

namespace faultline {
namespace {

using plants::make_op_fault;
using plants::Site;

enum class Layer : uint8_t { kNone, kFirst, kFirstMoe, kFirstIndexer };

// Where a plant strikes unless told otherwise: one op of one layer, so that a pass meets it once.
struct Target {
  Layer layer = Layer::kFirst;
  std::string_view op;      // within the layer
  std::string_view moe_op;  // the same in an MoE layer, where that is another one
  std::optional<PassPhase> phase;
  std::optional<CountRange> tokens;
};

// What a selector may say: everything; all but `row`; only which weights.
enum class Keys : uint8_t { kAll, kNoRow, kWeights };

struct Entry {
  PlantInfo info;  // target and keys are filled in from what follows
  Target target;
  plants::Factory make;
  Keys keys = Keys::kAll;
};

constexpr Target kDecodeAttention{Layer::kFirst, "self_attn.attention", "", PassPhase::kDecode, {}};
constexpr Target kRouter{Layer::kFirstMoe, "mlp.router", "", {}, {}};
constexpr Target kPrepare{Layer::kNone, "batch.prepare", "", {}, {}};

// A fault that takes the process along.
Entry host_fault(std::string name, std::string summary, std::string verdict, plants::Factory make,
                 std::vector<std::string> reports = {}) {
  return {{.name = std::move(name),
           .summary = std::move(summary),
           .culprit = "kernel",
           .verdicts = {std::move(verdict)},
           .seen_at = "layers.*.self_attn.attention",
           .seen_from = CheckLevel::kOff,
           .reports = std::move(reports)},
          kDecodeAttention,
          make,
          Keys::kNoRow};
}

// A fault of the GPU, or of a launch there. `gpu_only`: the CPU has nothing like it.
Entry device_fault(std::string name, std::string summary, std::string verdict, plants::Factory make, bool gpu_only,
                   std::vector<std::string> reports = {}) {
  Entry entry = host_fault(std::move(name), std::move(summary), std::move(verdict), make, std::move(reports));
  entry.info.gpu_only = gpu_only;
  if (gpu_only) entry.info.needs = "a GPU (--device cuda)";
  return entry;
}

std::vector<Entry> index_entries() {
  return {
      {{.name = "page_past_pool",
        .summary = "the first page table entry of a request points past the pool",
        .culprit = "metadata",
        .verdicts = {"bounds"},
        .seen_at = "batch.prepare",
        .reports = {"sglang#34025", "vllm#56748", "sglang#19319"}},
       kPrepare,
       make_op_fault<plants::point_past_the_pool>},
      {{.name = "foreign_page",
        .summary =
            "the first page table entry of a request is a slot of its neighbour's (of nobody's, with one request)",
        .culprit = "metadata",
        .verdicts = {"bounds"},
        .seen_at = "batch.prepare",
        .reports = {"vllm#54359"}},
       kPrepare,
       make_op_fault<plants::point_into_a_foreign_page>},
      {{.name = "topk_minus_one",
        .summary = "the top-k leaves a -1 inside the valid prefix of a row",
        .needs = "the DSA indexer",
        .culprit = "kernel",
        .verdicts = {"bounds"},
        .seen_at = "layers.*.self_attn.indexer.topk",
        .reports = {"sglang#30645", "sglang#30512"}},
       {Layer::kFirstIndexer, "self_attn.indexer.topk", "", {}, {}},
       make_op_fault<plants::put_minus_one_into_topk>},
      {{.name = "expert_past_end",
        .summary = "the router picks an expert that does not exist",
        .needs = "an MoE layer",
        .culprit = "kernel",
        .verdicts = {"bounds"},
        .seen_at = "layers.*.mlp.router",
        .reports = {"sglang#30079"}},
       kRouter,
       make_op_fault<plants::name_an_expert_past_the_end>},
  };
}

std::vector<Entry> quantization_entries() {
  return {
      {{.name = "late_tile",
        .summary = "the consumer of an FP4 product reads one 128-row tile before its store is applied",
        .needs = "a W4A4 product, and two or more token rows in a decode pass",
        .culprit = "ordering",
        .verdicts = {"nonfinite", "mismatch"},
        .seen_at = "layers.*.mlp*.act_fn",
        .reports = {"flashinfer#2708", "flashinfer#2716", "sglang#20043", "vllm#45448"}},
       {Layer::kFirst, "mlp.gate_up_proj", "mlp.experts.gate_up_proj", PassPhase::kDecode, CountRange{2, INT64_MAX}},
       plants::make_late_tile},
      {{.name = "pow2_scales",
        .summary = "a kernel reads the cache's fp32 block scales as packed powers of two (UE8M0)",
        .needs = "a kernel that reads a packed FP8 cache; with op=*.indexer.scores an FP8 index cache",
        .culprit = "kernel",
        .verdicts = {"nonfinite", "mismatch"},
        .seen_at = "layers.*.self_attn.attention",
        .seen_from = CheckLevel::kFinite,
        .reports = {"sglang#19948", "sglang#20921", "sglang#12878", "sglang#28662"}},
       {Layer::kFirst, "self_attn.attention", "", {}, {}},
       make_op_fault<plants::read_scales_as_powers_of_two>,
       Keys::kNoRow},
      {{.name = "zero_kv_block",
        .summary = "a quarter of a latent row is zero when the floorless quantisation divides by its largest magnitude",
        .needs = "a packed FP8 cache",
        .culprit = "kernel",
        .verdicts = {"nonfinite"},
        .seen_at = "layers.*.self_attn.kv_write",
        .seen_from = CheckLevel::kFinite,
        .reports = {"kernels-community#680", "TensorRT-LLM#16224"}},
       {Layer::kFirst, "self_attn.kv_write", "", {}, {}},
       make_op_fault<plants::zero_a_latent_quarter>},
      {{.name = "zero_input_scale",
        .summary = "the input_scale of an NVFP4 product is 0, its reciprocal infinite",
        .needs = "a W4A4 product",
        .culprit = "weights",
        .verdicts = {"nonfinite"},
        .seen_at = "layers.*.mlp*.gate_up_proj.quantize",
        .reports = {"vllm#45212", "vllm#54189", "sglang#12866"}},
       {Layer::kFirst, "mlp.gate_up_proj", "mlp.experts.gate_up_proj", {}, {}},
       plants::make_zero_input_scale,
       Keys::kWeights},
  };
}

std::vector<Entry> value_entries() {
  return {
      {{.name = "router_zero_over_zero",
        .summary = "the routing weights of a row are 0/0",
        .needs = "an MoE layer",
        .culprit = "kernel",
        .verdicts = {"nonfinite"},
        .seen_at = "layers.*.mlp.router",
        .seen_from = CheckLevel::kFinite,
        .reports = {"vllm#47367", "sglang#30989", "sglang#31017"}},
       kRouter,
       make_op_fault<plants::divide_routing_weights_by_zero>},
      {{.name = "nan_output",
        .summary = "one element of an output is NaN",
        .culprit = "kernel",
        .verdicts = {"nonfinite"},
        .seen_at = "layers.*.self_attn.o_proj",
        .seen_from = CheckLevel::kFinite,
        .reports = {"flashinfer#2883", "vllm#48364"}},
       {Layer::kFirst, "self_attn.o_proj", "", {}, {}},
       make_op_fault<plants::put_a_nan>},
      {{.name = "wrong_value",
        .summary = "one element of an output is finite and wrong",
        .culprit = "kernel",
        .verdicts = {"mismatch"},
        .seen_at = "layers.*.self_attn.o_proj",
        .seen_from = CheckLevel::kReference,
        .reports = {"flashinfer#2723", "flashinfer#3398"}},
       {Layer::kFirst, "self_attn.o_proj", "", {}, {}},
       make_op_fault<plants::put_a_wrong_value>},
      {{.name = "unwritten_tile",
        .summary = "a kernel leaves a tile of 128 rows of its output as it was",
        .culprit = "kernel",
        .verdicts = {"unwritten"},
        .seen_at = "layers.*.mlp*.down_proj",
        .reports = {"sglang#32843", "flashinfer#3398"}},
       {Layer::kFirst, "mlp.down_proj", "mlp.experts.down_proj", {}, {}},
       make_op_fault<plants::leave_a_tile_unwritten>},
      {{.name = "canary_overrun",
        .summary = "a kernel writes one element past the end of its output",
        .culprit = "kernel",
        .verdicts = {"canary", "bounds"},
        .seen_at = "layers.*.self_attn.residual",
        .reports = {"sglang#34025", "vllm#54359"}},
       {Layer::kFirst, "self_attn.residual", "", {}, {}},
       make_op_fault<plants::write_past_the_end>,
       Keys::kNoRow},
      {{.name = "wrong_rope",
        .summary = "a rotary embedding is applied twice",
        .culprit = "kernel",
        .verdicts = {"mismatch"},
        .seen_at = "layers.*.self_attn.rope_k",
        .seen_from = CheckLevel::kReference,
        .reports = {"TensorRT-LLM#16224"}},
       {Layer::kFirst, "self_attn.rope_k", "", {}, {}},
       make_op_fault<plants::rotate_twice>,
       Keys::kNoRow},
  };
}

std::vector<Entry> host_entries() {
  return {
      host_fault("crash", "a kernel's launcher writes through a bad pointer: SIGSEGV", "crash",
                 make_op_fault<plants::crash>),
      host_fault("abort", "a kernel's launcher calls abort", "abort", make_op_fault<plants::abort_process>),
      host_fault("hang", "a kernel never returns", "hang", make_op_fault<plants::hang>, {"sglang#30209"}),
      host_fault("exit", "a kernel's launcher ends the process with exit code 7", "crash",
                 make_op_fault<plants::exit_process>),
      host_fault("exception", "a kernel's launcher throws an exception that nobody expects", "crash",
                 make_op_fault<plants::throw_exception>, {"sglang#31864", "flashinfer#2516"}),
      host_fault("out_of_memory", "a kernel's launcher allocates until memory is out", "oom",
                 make_op_fault<plants::run_out_of_memory>, {"sglang#37712", "sglang#35201"}),
  };
}

std::vector<Entry> device_entries() {
  Entry overwrite = device_fault("weight_overwrite", "a kernel stores into the weights, which may only be read",
                                 "illegal-access", make_op_fault<plants::overwrite_a_weight>, true);
  overwrite.target = {Layer::kFirst, "self_attn.o_proj", "", PassPhase::kDecode, {}};
  overwrite.info.seen_at = "layers.*.self_attn.o_proj";
  return {
      device_fault("assert", "a kernel's assertion fails on the device", "device-assert",
                   make_op_fault<plants::assert_on_device>, false, {"sglang#20043", "sglang#29453"}),
      device_fault("illegal_access", "a kernel reads and writes far outside of its tensors", "illegal-access",
                   make_op_fault<plants::access_an_illegal_address>, true, {"sglang#37892", "sglang#34025"}),
      device_fault("misaligned_access", "a kernel stores four bytes to an address that is no multiple of four",
                   "illegal-access", make_op_fault<plants::access_a_misaligned_address>, true,
                   {"lightseekorg/tokenspeed#501"}),
      device_fault("illegal_instruction", "a kernel executes an instruction that the GPU refuses", "launch-failure",
                   make_op_fault<plants::execute_an_illegal_instruction>, true, {"sglang#11942"}),
      device_fault("shared_memory_limit", "a kernel is launched with more shared memory than a block can have",
                   "launch-failure", make_op_fault<plants::ask_for_too_much_shared_memory>, false),
      device_fault("grid_limit", "a kernel is launched with a larger grid than there can be", "launch-failure",
                   make_op_fault<plants::ask_for_too_large_a_grid>, false),
      device_fault("no_code", "a kernel is launched that was compiled for another architecture", "unsupported",
                   make_op_fault<plants::launch_code_for_another_gpu>, false),
      std::move(overwrite),
  };
}

std::string target_text(const Target& target) {
  PlantSelector selector;
  selector.op = target.layer == Layer::kNone ? std::string(target.op) : fmt::format("layers.N.{}", target.op);
  selector.phase = target.phase;
  selector.tokens = target.tokens;
  static constexpr const char* kWhich[] = {"", "first layer", "first MoE layer", "first layer with an indexer"};
  std::string text = selector.text();
  if (target.layer != Layer::kNone) text += fmt::format("; N: the {}", kWhich[static_cast<size_t>(target.layer)]);
  if (!target.moe_op.empty()) text += fmt::format(" (in an MoE layer: {})", target.moe_op);
  return text;
}

std::vector<std::string> keys_of(Keys keys) {
  if (keys == Keys::kWeights) return {"op", "layer"};
  std::vector<std::string> result = plant_selector_keys();
  if (keys == Keys::kNoRow) std::erase(result, "row");
  return result;
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> kEntries = [] {
    std::vector<Entry> all;
    for (auto make : {index_entries, quantization_entries, value_entries, host_entries, device_entries})
      for (Entry& entry : make()) all.push_back(std::move(entry));
    for (Entry& entry : all) {
      entry.info.target = target_text(entry.target);
      entry.info.keys = keys_of(entry.keys);
    }
    std::sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) { return a.info.name < b.info.name; });
    return all;
  }();
  return kEntries;
}

std::string_view name_in(std::string_view spec) {
  return spec.substr(0, spec.find('@'));
}

const Entry* find_entry(std::string_view spec) {
  for (const Entry& entry : entries())
    if (entry.info.name == name_in(spec)) return &entry;
  return nullptr;
}

Result<PlantSelector> selector_of(std::string_view spec, const Entry& entry) {
  const size_t at = spec.find('@');
  if (at == std::string_view::npos) return PlantSelector{};
  return parse_plant_selector(spec.substr(at + 1), fmt::format("plant '{}'", quotable(spec)), entry.info.keys);
}

Result<const Entry*> known_entry(std::string_view spec) {
  const Entry* entry = find_entry(spec);
  if (entry == nullptr)
    return bad_input("unknown plant '{}'{}", quotable(name_in(spec)), suggestion(name_in(spec), plant_names()));
  return entry;
}

int64_t first_layer(Layer which, const ModelConfig& config) {
  const auto first = [](const std::vector<bool>& flags) {
    return static_cast<int64_t>(std::find(flags.begin(), flags.end(), true) - flags.begin());
  };
  if (which == Layer::kFirstMoe) return first(config.layer_is_moe);
  if (which == Layer::kFirstIndexer) return first(config.layer_has_indexer);
  return 0;
}

// What the selector leaves open comes from the plant's own target.
void fill_in(PlantSelector& selector, const Target& target, const ModelConfig& config) {
  if (!selector.op) {
    if (target.layer == Layer::kNone) {
      selector.op = std::string(target.op);
    } else {
      const int64_t layer = selector.layer.value_or(first_layer(target.layer, config));
      const bool moe = layer < config.num_hidden_layers && config.layer_is_moe[static_cast<size_t>(layer)];
      selector.op = fmt::format("layers.{}.{}", layer, moe && !target.moe_op.empty() ? target.moe_op : target.op);
    }
  }
  if (!selector.phase) selector.phase = target.phase;
  if (!selector.tokens && !selector.batch) selector.tokens = target.tokens;
}

}  // namespace

const std::vector<PlantInfo>& plant_catalogue() {
  static const std::vector<PlantInfo> kCatalogue = [] {
    std::vector<PlantInfo> all;
    for (const Entry& entry : entries()) all.push_back(entry.info);
    return all;
  }();
  return kCatalogue;
}

std::vector<std::string> plant_names() {
  std::vector<std::string> names;
  for (const PlantInfo& info : plant_catalogue()) names.push_back(info.name);
  return names;
}

const PlantInfo* find_plant(std::string_view spec) {
  const Entry* entry = find_entry(spec);
  return entry == nullptr ? nullptr : &entry->info;
}

Result<std::unique_ptr<PlantedFault>> make_plant(std::string_view spec, const ModelConfig& config) {
  FAULTLINE_TRY(const Entry* entry, known_entry(spec));
  FAULTLINE_TRY(PlantSelector selector, selector_of(spec, *entry));
  if (selector.layer && *selector.layer >= config.num_hidden_layers)
    return bad_input("plant '{}': there is no layer {}; the model has layers 0 to {}", quotable(spec), *selector.layer,
                     config.num_hidden_layers - 1);
  Site site;
  site.info = &entry->info;
  site.chosen_op = selector.op || selector.layer;
  fill_in(selector, entry->target, config);
  site.selector = std::move(selector);
  return entry->make(std::move(site));
}

Status check_plant(std::string_view spec) {
  FAULTLINE_TRY(const Entry* entry, known_entry(spec));
  FAULTLINE_TRY([[maybe_unused]] const PlantSelector selector, selector_of(spec, *entry));
  return {};
}

Status check_plant_device(std::string_view spec, bool cuda) {
  FAULTLINE_TRY(const Entry* entry, known_entry(spec));
  if (entry->info.gpu_only && !cuda)
    return bad_input("plant '{}': a fault of a GPU, and this run is on the CPU; it needs --device cuda",
                     quotable(spec));
  return {};
}

}  // namespace faultline
