// Scales of a checkpoint that are missing, were never loaded, or are not a product's own.
#include <algorithm>
#include <limits>

#include "bisect/plant_fault.h"
#include "ops/kinds.h"

namespace faultline::plants {
namespace {

// Which scalar scales of an NVFP4 product are lost, and what stands in their place.
struct Loss {
  TensorView LinearWeight::*scale;
  const char* operand;  // its name in an op
  const char* product;  // where, unless the selector says otherwise: the first that matches
  float value;
  size_t every_second = 0;  // matrices of one expert: only every other expert is struck; 0: all of the product
};

class LostScale : public PlantedFault {
 public:
  LostScale(Site site, Loss loss) : site_(std::move(site)), loss_(loss), value_(std::make_unique<float>(loss.value)) {}

  KernelResult run(const PassInfo&, const Op& op, const OpCall& call, bool) override {
    if (touches(op)) ++fired_;
    return op.kernel->run(call);
  }

  void weights(ModelWeights& weights) override {
    bool any = false;
    for (const Fp4Product& product : fp4_products(weights)) {
      const PlantSelector& selector = site_.selector;
      const bool chosen = site_.chosen_op ? (!selector.op || glob_matches(*selector.op, product.op)) &&
                                                (!selector.layer || *selector.layer == product.layer)
                                          : !any && glob_matches(loss_.product, product.op);
      if (!chosen) continue;
      any = true;
      struck_.push_back(product.op);
      for (size_t i = 0; i < product.weights.size(); ++i)
        if (loss_.every_second == 0 || i / loss_.every_second % 2 == 1)
          (product.weights[i]->*loss_.scale).data = reinterpret_cast<std::byte*>(value_.get());
      if (!site_.chosen_op) site_.selector.op = product.op;
    }
  }

  // By name: on a GPU the scale has another address than the one that weights() gave it.
  bool touches(const Op& op) const override {
    const auto& operands = op.kind->operands;
    if (std::none_of(operands.begin(), operands.end(),
                     [this](const OperandSpec& spec) { return spec.name == loss_.operand; }))
      return false;
    for (const std::string& product : struck_)
      if (op.name == product || (op.name.starts_with(product) && op.name[product.size()] == '.')) return true;
    return false;
  }

  int64_t fired() const override { return fired_; }
  const PlantInfo& info() const override { return *site_.info; }
  std::string where() const override { return site_.selector.text(); }

 private:
  Site site_;
  const Loss loss_;
  std::unique_ptr<float> value_;
  std::vector<std::string> struck_;  // products
  int64_t fired_ = 0;
};

constexpr const char* kGateUp = "*.mlp*gate_up_proj";
constexpr const char* kExperts = "*.mlp.experts.gate_up_proj";

}  // namespace

// Its reciprocal is infinite. A kernel takes the largest of a list of scales, so that all of a product must be lost.
std::unique_ptr<PlantedFault> make_zero_input_scale(Site site) {
  return std::make_unique<LostScale>(std::move(site), Loss{&LinearWeight::input_scale, "input_scale", kGateUp, 0.0f});
}

// Shows where each expert has its own: only tokens that are routed to such an expert are hit.
std::unique_ptr<PlantedFault> make_missing_expert_scale(Site site) {
  constexpr size_t kGateAndUp = 2;
  return std::make_unique<LostScale>(std::move(site),
                                     Loss{&LinearWeight::input_scale, "input_scale", kExperts, 0.0f, kGateAndUp});
}

// The largest of a list in which entries were never written.
std::unique_ptr<PlantedFault> make_infinite_input_scale(Site site) {
  return std::make_unique<LostScale>(std::move(site), Loss{&LinearWeight::input_scale, "input_scale", kGateUp,
                                                           std::numeric_limits<float>::infinity()});
}

std::unique_ptr<PlantedFault> make_zero_weight_scale(Site site) {
  return std::make_unique<LostScale>(std::move(site),
                                     Loss{&LinearWeight::global_scale, "global_scale", "*.mlp*down_proj", 0.0f});
}

// A map from experts to weights that is off by one: each takes what lies behind its own.
KernelResult take_the_next_experts_weights(Blow& blow) {
  using W4A4 = ops::ExpertLinearW4A4;
  using W16 = ops::ExpertLinear;
  const bool quantized = blow.is<W4A4>();
  if (!quantized && !blow.is<W16>()) return blow.miss();
  const auto stacked = static_cast<std::ptrdiff_t>(blow.call.attr().integer("stacked"));
  ArgumentList arguments = copy_arguments(blow.call);
  for (const int operand : {quantized ? int{W4A4::kWeight} : int{W16::kWeight},
                            quantized ? int{W4A4::kBlockScale} : int{W16::kBlockScale}}) {
    const auto& views = blow.call.argument(operand).views;
    std::vector<TensorView> rotated(views.begin(), views.end());
    if (static_cast<std::ptrdiff_t>(rotated.size()) <= stacked) continue;
    std::rotate(rotated.begin(), rotated.begin() + stacked, rotated.end());
    arguments.replace(operand, std::move(rotated));
  }
  return blow.kernel(arguments);
}

}  // namespace faultline::plants
