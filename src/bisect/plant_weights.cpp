// zero_input_scale: a checkpoint that lacks, or a loader that loses, the activation scale of an NVFP4 product. Its
// reciprocal is infinite (vllm#45212, sglang#12866).
#include "bisect/plant_fault.h"
#include "ops/kinds.h"

namespace faultline::plants {
namespace {

int input_scale_of(const Op& op) {
  if (op.kind->name == ops::QuantizeFp4::kName) return ops::QuantizeFp4::kInputScale;
  if (op.kind->name == ops::LinearW4A4::kName) return ops::LinearW4A4::kInputScale;
  if (op.kind->name == ops::ExpertLinearW4A4::kName) return ops::ExpertLinearW4A4::kInputScale;
  return -1;
}

class ZeroInputScale : public PlantedFault {
 public:
  explicit ZeroInputScale(Site site) : site_(std::move(site)), zero_(std::make_unique<float>(0.0f)) {}

  KernelResult run(const PassInfo&, const Op& op, const OpCall& call, bool) override {
    if (touches(op)) ++fired_;
    return op.kernel->run(call);
  }

  // A kernel takes the largest of a list of scales, so that all of a product must be lost.
  void weights(ModelWeights& weights) override {
    bool any = false;
    for (const Fp4Product& product : fp4_products(weights)) {
      const PlantSelector& selector = site_.selector;
      const bool chosen = site_.chosen_op ? (!selector.op || glob_matches(*selector.op, product.op)) &&
                                                (!selector.layer || *selector.layer == product.layer)
                                          : !any && glob_matches("*.mlp*gate_up_proj", product.op);
      if (!chosen) continue;
      any = true;
      struck_.push_back(product.op);
      for (LinearWeight* weight : product.weights) weight->input_scale.data = zero_bytes();
      if (!site_.chosen_op) site_.selector.op = product.op;
    }
  }

  // By name: on a GPU the scale has another address than the one that weights() gave it.
  bool touches(const Op& op) const override {
    if (input_scale_of(op) < 0) return false;
    for (const std::string& product : struck_)
      if (op.name == product || (op.name.starts_with(product) && op.name[product.size()] == '.')) return true;
    return false;
  }

  int64_t fired() const override { return fired_; }
  const PlantInfo& info() const override { return *site_.info; }
  std::string where() const override { return site_.selector.text(); }

 private:
  std::byte* zero_bytes() const { return reinterpret_cast<std::byte*>(zero_.get()); }

  Site site_;
  std::unique_ptr<float> zero_;
  std::vector<std::string> struck_;  // products
  int64_t fired_ = 0;
};

}  // namespace

std::unique_ptr<PlantedFault> make_zero_input_scale(Site site) {
  return std::make_unique<ZeroInputScale>(std::move(site));
}

}  // namespace faultline::plants
