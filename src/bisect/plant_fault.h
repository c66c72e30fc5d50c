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
// plant_weights.cpp
std::unique_ptr<PlantedFault> make_zero_input_scale(Site site);
// plant_cache.cpp
KernelResult read_scales_as_powers_of_two(Blow& blow);
KernelResult zero_a_latent_quarter(Blow& blow);
// plant_index.cpp
KernelResult point_past_the_pool(Blow& blow);
KernelResult point_into_a_foreign_page(Blow& blow);
KernelResult put_minus_one_into_topk(Blow& blow);
KernelResult name_an_expert_past_the_end(Blow& blow);
// plant_value.cpp
KernelResult divide_routing_weights_by_zero(Blow& blow);
KernelResult put_a_nan(Blow& blow);
KernelResult put_a_wrong_value(Blow& blow);
KernelResult leave_a_tile_unwritten(Blow& blow);
KernelResult write_past_the_end(Blow& blow);
KernelResult rotate_twice(Blow& blow);
// plant_host.cpp
KernelResult crash(Blow& blow);
KernelResult abort_process(Blow& blow);
KernelResult hang(Blow& blow);
KernelResult exit_process(Blow& blow);
KernelResult throw_exception(Blow& blow);
KernelResult run_out_of_memory(Blow& blow);
// plant_gpu.cpp: faults of the device itself. On the CPU the first four are acted out as what the kernel reports, the
// others have no like and leave the kernel alone (PlantInfo::gpu_only).
KernelResult assert_on_device(Blow& blow);
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
