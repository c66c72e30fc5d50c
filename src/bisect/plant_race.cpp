// late_tile and its like: a consumer reads what an op has written before the store is applied.
//
// The public race: FlashInfer's CUTLASS FP4 GEMM, built without the flag that turns griddepcontrol on, while it is
// launched with the attribute of programmatic dependent launch. The next kernel starts early, and 128-row tiles of its
// input are still what the buffer held before (flashinfer#2708, sglang#20043). By the time that anybody looks, the
// store has been applied.
#include <fmt/format.h>

#include "bisect/plant_fault.h"
#include "check/violation.h"
#include "ops/kinds.h"

namespace faultline::plants {
namespace {

bool is_fp4_product(const Op& op) {
  return op.kind->name == ops::LinearW4A4::kName || op.kind->name == ops::ExpertLinearW4A4::kName;
}

int output_of(const Op& op) {
  return op.kind->name == ops::LinearW4A4::kName ? int{ops::LinearW4A4::kOut} : int{ops::ExpertLinearW4A4::kOut};
}

// What of an op's output is late: the tile of 128 rows that holds a row, or everything that it wrote.
enum class LatePart : uint8_t { kTileOfFp4Product, kTile, kCache };

bool overlap(const TensorView& a, const TensorView& b) {
  const auto end = [](const TensorView& view) {
    return view.data + static_cast<size_t>(view.extent()) * dtype_bytes(view.dtype);
  };
  return a.data < end(b) && b.data < end(a);
}

// Whether an operand of the given direction reaches the memory of `view`.
bool reaches(const Op& op, const OpCall& call, Direction direction, const TensorView& view) {
  for (size_t i = 0; i < op.kind->operands.size(); ++i) {
    const OperandSpec& spec = op.kind->operands[i];
    const Argument& argument = call.argument(static_cast<int>(i));
    if (spec.direction != direction || spec.content == Content::kWeight || !argument.present()) continue;
    if (overlap(argument.view(), view)) return true;
  }
  return false;
}

// A replay of one op alone writes to scratch memory: by then all stores have been applied.
bool replayed_alone(const Op& op, const OpCall& call) {
  for (size_t i = 0; i < op.kind->operands.size(); ++i) {
    const int operand = static_cast<int>(i);
    if (op.kind->operands[i].direction == Direction::kOut && call.argument(operand).present())
      return call.view(operand).data != op.arguments[operand].view().data;
  }
  return false;
}

class LateStore : public PlantedFault {
 public:
  LateStore(Site site, LatePart part) : site_(std::move(site)), part_(part) {}

  KernelResult run(const PassInfo& info, const Op& op, const OpCall& call, bool serialized) override {
    if (replayed_alone(op, call)) return op.kernel->run(call);
    const int operand = late_output(op, call);
    if (operand >= 0 && site_.selector.matches(info, op, call.checked))
      return produce(info, op, call, operand, serialized);
    if (!late_) return op.kernel->run(call);
    const bool same_pass = late_->phase == info.phase && late_->step == info.step && late_->layer == op.layer;
    if (!same_pass || reaches(op, call, Direction::kOut, late_->rows)) {
      late_.reset();
      return op.kernel->run(call);
    }
    const bool reads =
        late_->consumer.empty() ? reaches(op, call, Direction::kIn, late_->rows) : late_->consumer == op.name;
    if (!reads) return op.kernel->run(call);
    late_->consumer = op.name;  // code outputs are written twice, over two poisons: both times early
    const RowBlock applied(gpu(call), late_->output, late_->before.begin(), late_->before.end());
    late_->before.restore(late_->output);
    KernelResult result = op.kernel->run(call);
    applied.restore(late_->output);
    ++fired_;
    return result;
  }

  void weights(ModelWeights& weights) override {
    if (site_.chosen_op || part_ != LatePart::kTileOfFp4Product) return;
    for (const Fp4Product& product : fp4_products(weights)) {
      if (!glob_matches("*.mlp*gate_up_proj", product.op)) continue;
      site_.selector.op = product.op;
      return;
    }
  }

  // Any op of the product's layer may be the one that reads it or overwrites it.
  bool touches(const Op& op) const override { return site_.selector.layer_may_match(op); }
  void use_device(Device& device) override { device_ = &device; }
  int64_t fired() const override { return fired_; }
  const PlantInfo& info() const override { return *site_.info; }
  std::string where() const override { return site_.selector.text(); }

 private:
  // A tile whose store has not been applied as far as the next reader can see.
  struct Late {
    PassPhase phase;
    int64_t step;
    int layer;
    TensorView output;
    TensorView rows;  // the tile's part of it
    RowBlock before;
    std::string consumer;  // the first op that read it
  };

  // The output that is late; -1: the op has none that this fault is about.
  int late_output(const Op& op, const OpCall& call) const {
    if (part_ == LatePart::kCache) return op.kind->name == ops::CacheWrite::kName ? int{ops::CacheWrite::kCache} : -1;
    if (part_ == LatePart::kTileOfFp4Product) return is_fp4_product(op) ? output_of(op) : -1;
    return site_.selector.may_match(op) ? value_output(op, call) : -1;
  }

  // Rows of the output that are late; nothing where the row to break is not live.
  std::optional<std::pair<int64_t, int64_t>> late_rows(const PassInfo& info, const Op& op, const OpCall& call,
                                                       int operand) const {
    const TensorView& out = call.view(operand);
    if (part_ == LatePart::kCache) return std::pair{int64_t{0}, out.dim(0)};
    const std::optional<int64_t> row = Blow{info, op, call, site_.selector.row, device_}.row_of(operand);
    if (!row) return std::nullopt;
    return tile_of(out, *row);
  }

  KernelResult produce(const PassInfo& info, const Op& op, const OpCall& call, int operand, bool serialized) {
    late_.reset();
    const TensorView& out = call.view(operand);
    const auto rows = late_rows(info, op, call, operand);
    if (serialized || !rows) return op.kernel->run(call);
    const auto [begin, end] = *rows;
    RowBlock before(gpu(call), out, begin, end);
    KernelResult result = op.kernel->run(call);
    late_.emplace(
        Late{info.phase, info.step, op.layer, out, slice_rows(out, begin, end - begin), std::move(before), {}});
    return result;
  }

  Device* gpu(const OpCall& call) const { return call.launch.cuda ? device_ : nullptr; }

  Site site_;
  const LatePart part_;
  Device* device_ = nullptr;
  std::optional<Late> late_;
  int64_t fired_ = 0;
};

}  // namespace

std::unique_ptr<PlantedFault> make_late_tile(Site site) {
  return std::make_unique<LateStore>(std::move(site), LatePart::kTileOfFp4Product);
}

std::unique_ptr<PlantedFault> make_late_rows(Site site) {
  return std::make_unique<LateStore>(std::move(site), LatePart::kTile);
}

std::unique_ptr<PlantedFault> make_late_cache(Site site) {
  return std::make_unique<LateStore>(std::move(site), LatePart::kCache);
}

}  // namespace faultline::plants
