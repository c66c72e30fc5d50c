// What the planted faults are made of (bisect/plant_*.cpp): most strike one op, whenever the selector matches.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bisect/plant.h"
#include "bisect/plant_selector.h"
#include "device/device.h"
#include "ops/op.h"

namespace faultline::plants {

// One plant as asked for: its catalogue entry, and its selector with the defaults filled in.
struct Site {
  const PlantInfo* info = nullptr;
  PlantSelector selector;
  bool chosen_op = false;  // the selector named ops or a layer; otherwise weights() may move the target
};

// One call of the op that is struck.
struct Blow {
  const PassInfo& info;
  const Op& op;
  const OpCall& call;
  std::optional<int64_t> row;  // the selector's
  Device* device = nullptr;    // as use_device() said
  bool struck = true;          // false: there was nothing to break in this call, which went the kernel's way

  // Where the operands lie, when that is not the host's memory; else null.
  Device* gpu() const;

  KernelResult kernel() const { return op.kernel->run(call); }
  KernelResult kernel(const ArgumentList& arguments) const;
  KernelResult kernel(const Attributes& attributes) const;
  template <class Kind>
  bool is() const {
    return op.kind->name == Kind::kName;
  }
  // Runs the kernel as it is.
  KernelResult miss();
  // The row to break of an output: the selector's, else the last live one; nothing when that row is not live.
  std::optional<int64_t> row_of(int operand) const;
  int64_t live_rows_of(int operand) const;
};

// Runs the kernel of the op, and misbehaves.
using Strike = KernelResult (*)(Blow& blow);

class OpFault : public PlantedFault {
 public:
  OpFault(Site site, Strike strike) : site_(std::move(site)), strike_(strike) {}
  KernelResult run(const PassInfo& info, const Op& op, const OpCall& call, bool serialized) override;
  void weights(ModelWeights& weights) override;
  bool touches(const Op& op) const override { return site_.selector.may_match(op); }
  void use_device(Device& device) override { device_ = &device; }
  int64_t fired() const override { return fired_; }
  const PlantInfo& info() const override { return *site_.info; }
  std::string where() const override { return site_.selector.text(); }

 private:
  Site site_;
  Strike strike_;
  Device* device_ = nullptr;
  int64_t fired_ = 0;
};

using Factory = std::unique_ptr<PlantedFault> (*)(Site site);
template <Strike kStrike>
std::unique_ptr<PlantedFault> make_op_fault(Site site) {
  return std::make_unique<OpFault>(std::move(site), kStrike);
}

// --- helpers ---

// The call's arguments, to put something else in the place of one.
ArgumentList copy_arguments(const OpCall& call);
// A tensor as the host reads and changes it: itself where it lies in the host's memory (`gpu` is null), else a copy of
// what it held when this was made.
class HostTensor {
 public:
  HostTensor(Device* gpu, const TensorView& view);
  const TensorView& view() const { return view_; }
  // Puts the changed copy where it came from.
  void write_back() const;

 private:
  Device* gpu_;
  std::byte* from_;
  std::vector<std::byte> bytes_;
  TensorView view_;
};

// The call with the operands named (each a single tensor; negative ones are skipped) as HostTensors. The others keep
// their addresses.
class HostCall {
 public:
  HostCall(const Blow& blow, std::initializer_list<int> operands);
  const OpCall& call() const { return call_; }
  const TensorView& view(int operand) const { return call_.view(operand); }
  // Puts what was changed where it came from.
  void write_back() const;

 private:
  std::vector<HostTensor> tensors_;
  ArgumentList arguments_;
  OpCall call_;
};

// A private copy of everything that a view reaches, laid out alike: changed on the host, then given to the kernel.
class TensorCopy {
 public:
  TensorCopy(Device* gpu, const TensorView& view);
  ~TensorCopy();
  TensorCopy(const TensorCopy&) = delete;
  TensorCopy& operator=(const TensorCopy&) = delete;
  const TensorView& host() const { return host_; }
  // The copy where the kernel can read it, as long as this lives.
  TensorView publish();

 private:
  Device* gpu_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<Buffer> buffer_;
  TensorView host_;
};

// Rows [begin, end) of a view, kept aside.
class RowBlock {
 public:
  RowBlock(Device* gpu, const TensorView& view, int64_t begin, int64_t end);
  // Puts them (back) into `view`, which has the shape and strides of the first.
  void restore(const TensorView& view) const;
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }

 private:
  Device* gpu_;
  int64_t begin_;
  int64_t end_;
  std::vector<std::byte> bytes_;
};

// The kernel on a changed copy of one input: change(view on the host).
template <class Change>
KernelResult with_input(Blow& blow, int operand, const Change& change) {
  TensorCopy copy(blow.gpu(), blow.call.view(operand));
  change(copy.host());
  ArgumentList arguments = copy_arguments(blow.call);
  arguments.replace(operand, {copy.publish()});
  return blow.kernel(arguments);
}
// The kernel as it is, then a change of one output: change(view on the host).
template <class Change>
KernelResult with_output(Blow& blow, int operand, const Change& change) {
  KernelResult result = blow.kernel();
  if (result) return result;
  const HostTensor out(blow.gpu(), blow.call.view(operand));
  change(out.view());
  out.write_back();
  return result;
}
// A kernel that was told something else: change(attributes).
template <class Change>
KernelResult with_attributes(Blow& blow, const Change& change) {
  Attributes changed = blow.call.attr();
  change(changed);
  return blow.kernel(changed);
}

// The tile of kTileRows rows that holds `row`, clipped to the rows there are: [begin, end).
std::pair<int64_t, int64_t> tile_of(const TensorView& view, int64_t row);
// The first output of floats; -1 when the op has none.
int value_output(const Op& op, const OpCall& call);
// The products of NVFP4 weights with quantized activations, in launch order.
struct Fp4Product {
  std::string op;  // "layers.0.mlp.gate_up_proj"
  int64_t layer = 0;
  std::vector<LinearWeight*> weights;
};
std::vector<Fp4Product> fp4_products(ModelWeights& weights);

// --- the faults ---

// plant_race.cpp
std::unique_ptr<PlantedFault> make_late_tile(Site site);
std::unique_ptr<PlantedFault> make_late_rows(Site site);
std::unique_ptr<PlantedFault> make_late_cache(Site site);
// plant_graph.cpp
std::unique_ptr<PlantedFault> make_stale_graph_slots(Site site);
// plant_weights.cpp
std::unique_ptr<PlantedFault> make_zero_input_scale(Site site);
std::unique_ptr<PlantedFault> make_missing_expert_scale(Site site);
std::unique_ptr<PlantedFault> make_infinite_input_scale(Site site);
std::unique_ptr<PlantedFault> make_zero_weight_scale(Site site);
KernelResult take_the_next_experts_weights(Blow& blow);
// plant_cache.cpp
KernelResult read_scales_as_powers_of_two(Blow& blow);
KernelResult read_scales_of_the_next_quarter(Blow& blow);
KernelResult zero_a_latent_quarter(Blow& blow);
KernelResult overflow_a_code(Blow& blow);
KernelResult divide_index_key_by_zero(Blow& blow);
KernelResult leave_a_slot_unwritten(Blow& blow);
KernelResult write_into_a_neighbour_slot(Blow& blow);
KernelResult write_high_slots_elsewhere(Blow& blow);
KernelResult read_high_slots_elsewhere(Blow& blow);
KernelResult gather_a_wrong_row(Blow& blow);
KernelResult read_keys_that_were_not_restored(Blow& blow);
// plant_index.cpp
KernelResult put_minus_one_into_topk(Blow& blow);
KernelResult put_nan_bits_into_topk(Blow& blow);
KernelResult leave_a_topk_slot_uninitialised(Blow& blow);
KernelResult repeat_a_topk_entry(Blow& blow);
KernelResult drop_a_topk_candidate(Blow& blow);
KernelResult leave_half_of_topk_unwritten(Blow& blow);
KernelResult cut_topk_short(Blow& blow);
KernelResult look_past_the_length(Blow& blow);
KernelResult keep_positions(Blow& blow);
KernelResult take_pages_for_rows(Blow& blow);
KernelResult name_an_expert_past_the_end(Blow& blow);
KernelResult name_an_expert_twice(Blow& blow);
KernelResult end_experts_past_the_rows(Blow& blow);
KernelResult draw_a_token_past_the_vocabulary(Blow& blow);
// plant_metadata.cpp
KernelResult point_past_the_pool(Blow& blow);
KernelResult point_into_a_foreign_page(Blow& blow);
KernelResult give_a_length_of_zero(Blow& blow);
KernelResult read_lengths_past_the_end(Blow& blow);
KernelResult keep_the_lengths_of_the_last_replay(Blow& blow);
KernelResult leave_the_last_column_out(Blow& blow);
KernelResult give_a_row_to_another_request(Blow& blow);
KernelResult take_the_row_before(Blow& blow);
// plant_format.cpp
KernelResult read_swizzled_scales(Blow& blow);
KernelResult leave_scales_unwritten(Blow& blow);
KernelResult divide_a_block_by_zero(Blow& blow);
KernelResult swap_the_nibbles(Blow& blow);
// plant_structure.cpp
KernelResult rotate_twice(Blow& blow);
KernelResult do_not_rotate(Blow& blow);
KernelResult lose_theta(Blow& blow);
KernelResult rotate_in_the_other_layout(Blow& blow);
KernelResult take_another_eps(Blow& blow);
KernelResult scale_twice(Blow& blow);
KernelResult round_the_bias(Blow& blow);
KernelResult swap_gate_and_up(Blow& blow);
KernelResult read_a_padding_head(Blow& blow);
KernelResult leave_a_split_out(Blow& blow);
// plant_value.cpp
KernelResult divide_routing_weights_by_zero(Blow& blow);
KernelResult put_a_nan(Blow& blow);
KernelResult put_a_wrong_value(Blow& blow);
KernelResult put_a_row_of_nan(Blow& blow);
KernelResult spread_the_nan_of_padding(Blow& blow);
KernelResult lose_rows_with_a_masked_chunk(Blow& blow);
KernelResult lose_rows_at_a_stride(Blow& blow);
KernelResult put_a_tile_of_nan(Blow& blow);
KernelResult put_zeros(Blow& blow);
KernelResult leave_probabilities_unnormalised(Blow& blow);
KernelResult leave_a_tile_unwritten(Blow& blow);
KernelResult write_past_the_end(Blow& blow);
// plant_host.cpp
KernelResult crash(Blow& blow);
KernelResult abort_process(Blow& blow);
KernelResult hang(Blow& blow);
KernelResult exit_process(Blow& blow);
KernelResult throw_exception(Blow& blow);
KernelResult run_out_of_memory(Blow& blow);
// plant_gpu.cpp: faults of the device itself. On the CPU the first five are acted out as what the kernel reports, the
// others have no like and leave the kernel alone (PlantInfo::gpu_only).
KernelResult assert_on_device(Blow& blow);
KernelResult assert_on_padding(Blow& blow);
KernelResult ask_for_too_much_shared_memory(Blow& blow);
KernelResult ask_for_too_large_a_grid(Blow& blow);
KernelResult launch_code_for_another_gpu(Blow& blow);
KernelResult access_an_illegal_address(Blow& blow);
KernelResult access_a_misaligned_address(Blow& blow);
KernelResult execute_an_illegal_instruction(Blow& blow);
KernelResult overwrite_a_weight(Blow& blow);
// The GPU's side of faults that a CPU has too.
KernelResult hang_on_device(Blow& blow);
KernelResult run_out_of_device_memory(Blow& blow);

}  // namespace faultline::plants
