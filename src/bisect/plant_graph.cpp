// stale_graph_slots: in a graph's replay the static buffer that says where new keys go still holds the step before's
// values.
//
// A server copies each step's metadata into buffers that the recorded graph reads. Where a copy is left out, or lands
// after the replay has begun, the kernels work on the last step's batch: here the new key is written over the last one.
// Run op by op there is no replay, and the buffer is what it should be.
#include <algorithm>
#include <optional>
#include <vector>

#include "bisect/plant_fault.h"

namespace faultline::plants {
namespace {

constexpr const char* kBuffer = "batch.out_cache_loc";

class StaleGraphSlots : public PlantedFault {
 public:
  explicit StaleGraphSlots(Site site) : site_(std::move(site)) {}

  KernelResult run(const PassInfo& info, const Op& op, const OpCall& call, bool) override {
    const auto name = std::find(op.tensor_names.begin(), op.tensor_names.end(), kBuffer);
    const bool replay = info.graph && !call.checked;
    if (!replay || name == op.tensor_names.end() || !site_.selector.may_match(op)) return op.kernel->run(call);
    const int operand = static_cast<int>(name - op.tensor_names.begin());
    Device* const gpu = call.launch.cuda ? device_ : nullptr;
    if (info.step != step_) {
      before_ = std::move(now_);
      now_ = values(HostTensor(gpu, call.view(operand)).view());
      step_ = info.step;
    }
    const bool refreshed = info.refreshed != nullptr && info.refreshed->count(kBuffer) != 0;
    if (refreshed || before_.size() != now_.size() || !site_.selector.matches(info, op, call.checked))
      return op.kernel->run(call);
    TensorCopy stale(gpu, call.view(operand));
    for (size_t i = 0; i < before_.size(); ++i) stale.host().store_index(static_cast<int64_t>(i), before_[i]);
    ArgumentList arguments = copy_arguments(call);
    arguments.replace(operand, {stale.publish()});
    ++fired_;
    const Blow blow{info, op, call, {}, device_};
    return blow.kernel(arguments);
  }

  void weights(ModelWeights&) override {}
  bool touches(const Op& op) const override { return site_.selector.may_match(op); }
  void use_device(Device& device) override { device_ = &device; }
  int64_t fired() const override { return fired_; }
  const PlantInfo& info() const override { return *site_.info; }
  std::string where() const override { return site_.selector.text(); }

 private:
  static std::vector<int64_t> values(const TensorView& view) {
    std::vector<int64_t> result;
    for (int64_t i = 0; i < view.dim(0); ++i) result.push_back(view.load_index(i));
    return result;
  }

  Site site_;
  Device* device_ = nullptr;
  std::vector<int64_t> before_, now_;  // of the replay before this one, and of this one
  int64_t step_ = -1;
  int64_t fired_ = 0;
};

}  // namespace

std::unique_ptr<PlantedFault> make_stale_graph_slots(Site site) {
  return std::make_unique<StaleGraphSlots>(std::move(site));
}

}  // namespace faultline::plants
