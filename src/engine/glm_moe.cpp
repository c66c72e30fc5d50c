// The MLP of dense layers, and the router with routed and shared experts of the others.
#include "engine/glm_builder.h"
#include "engine/weight_views.h"

namespace faultline {
namespace {

std::vector<TensorView> first_of_each(std::vector<TensorView> views, int64_t stacked) {
  const auto step = static_cast<size_t>(stacked);
  for (size_t i = 0; i < views.size(); ++i) views[i] = views[i / step * step];
  return views;
}

// The routed experts' weights, and the shared one's behind them where it is fused.
std::vector<LinearWeight> with_shared(std::vector<LinearWeight> experts, const std::vector<LinearWeight>& shared) {
  experts.insert(experts.end(), shared.begin(), shared.end());
  return experts;
}

}  // namespace

NamedTensor GlmBuilder::dense_mlp(const std::string& module, const std::vector<LinearWeight>& gate_up,
                                  const LinearWeight& down, const NamedTensor& x) {
  const int64_t width = down.in_features;
  const NamedTensor both = activation(module + "gate_up", {t_, 2 * width});
  linear(module + "gate_up_proj", x, gate_up, both, config_.fp4_linear);
  const NamedTensor act = activation(module + "act", {t_, width});
  OpBuilder op(op_name(module + "act_fn"), layer_, ops::SiluMul::kName, kernel(ops::SiluMul::kName, "silu_and_mul"));
  op.tensor(both).tensor(act);
  add(op);
  NamedTensor out = activation(module + "out", {t_, c_.hidden_size});
  linear(module + "down_proj", act, {down}, out, config_.fp4_linear);
  return out;
}

void GlmBuilder::expert_linear(const std::string& local, const NamedTensor& x, const std::vector<LinearWeight>& weights,
                               int64_t stacked, bool per_token, const Routing& routing, const NamedTensor& out) {
  const auto collect = [&](TensorView LinearWeight::*member) { return views_of(weights, member); };
  const std::string& name = weights.front().name;
  const int64_t k = routing.k;
  const bool nvfp4 = weights.front().precision == Precision::kNvfp4;
  for (const LinearWeight& weight : weights)
    if (weight.precision != weights.front().precision && missing_.empty())
      missing_ = fmt::format("for experts of mixed precision ({} and {})", name, weight.name);
  // Gate's global scale for up too: the model's own arguments keep each one's.
  const bool first = config_.first_gate_up_scale && !config_.reference_kernels && nvfp4 && stacked > 1;
  const std::vector<TensorView> own_globals = collect(&LinearWeight::global_scale);
  const std::vector<TensorView> globals = first ? first_of_each(own_globals, stacked) : own_globals;
  const auto declare_first = [&](OpBuilder& op, int operand) {
    op.set("gate_up_scale", first).model("gate_up_scale", int64_t{0});
    if (!first) return;
    ArgumentList model = op.arguments().clone();
    model.replace(operand, own_globals);
    op.model_arguments(std::move(model));
  };
  if (!config_.reference_kernels && uses_w4a4(weights.front(), config_.fp4_experts)) {
    const bool own_scale = config_.experts_own_input_scale;
    const auto [codes, scales] =
        own_scale ? quantize_for_experts(local + ".quantize", x, collect(&LinearWeight::input_scale), name, stacked,
                                         per_token, routing)
                  : quantize(local + ".quantize", x, collect(&LinearWeight::input_scale), name, per_token ? 1 : k);
    using E = ops::ExpertLinearW4A4;
    OpBuilder op(op_name(local), layer_, E::kName, kernel(E::kName, "flashinfer_cutlass"));
    op.tensor(codes).tensor(scales).tensor(routing.order).tensor(routing.offsets);
    op.weights(collect(&LinearWeight::weight), name + ".weight", Format::kNvfp4);
    op.weights(collect(&LinearWeight::block_scale), name + ".weight_scale");
    op.weights(globals, name + ".weight_scale_2");
    op.weights(collect(&LinearWeight::input_scale), name + ".input_scale").tensor(out);
    op.set("k", k).set("stacked", stacked).set("x_per_token", per_token && !own_scale);
    op.set("per_expert", own_scale).index_end(E::kOrder, t_ * k).index_end(E::kOffsets, t_ * k + 1);
    declare_first(op, E::kGlobalScale);
    add(op);
    return;
  }
  using E = ops::ExpertLinear;
  OpBuilder op(op_name(local), layer_, E::kName, kernel(E::kName, nvfp4 ? "marlin" : "dense"));
  op.tensor(x).tensor(routing.order).tensor(routing.offsets);
  op.weights(collect(&LinearWeight::weight), name + ".weight", nvfp4 ? Format::kNvfp4 : Format::kPlain);
  op.weights(collect(&LinearWeight::block_scale), name + ".weight_scale");
  op.weights(globals, name + ".weight_scale_2").tensor(out);
  op.set("k", k)
      .set("stacked", stacked)
      .set("x_per_token", per_token)
      .index_end(E::kOrder, t_ * k)
      .index_end(E::kOffsets, t_ * k + 1);
  declare_first(op, E::kGlobalScale);
  add(op);
}

std::pair<NamedTensor, NamedTensor> GlmBuilder::quantize_for_experts(const std::string& local, const NamedTensor& x,
                                                                     std::vector<TensorView> input_scales,
                                                                     const std::string& name, int64_t stacked,
                                                                     bool per_token, const Routing& routing) {
  using Q = ops::QuantizeFp4Experts;
  const int64_t rows = t_ * routing.k;
  const int64_t columns = x.view.dim(1);
  const NamedTensor codes = typed(local + ".codes", Dtype::kU8, {rows, columns / 2});
  const NamedTensor scales = typed(local + ".scales", Dtype::kF8E4M3, {rows, columns / kNvfp4BlockSize});
  OpBuilder op(op_name(local), layer_, Q::kName, kernel(Q::kName, "scaled_fp4_experts_quant"));
  op.tensor(x).tensor(routing.ids).weights(std::move(input_scales), name + ".input_scale");
  op.tensor(codes).tensor(scales).index_end(Q::kIds, routing.offsets.view.dim(0) - 1);
  op.set("k", routing.k).set("stacked", stacked).set("x_per_token", per_token);
  add(op);
  return {codes, scales};
}

NamedTensor GlmBuilder::moe(const LayerWeights& w, const NamedTensor& x) {
  const bool has_shared = !w.shared_gate_up.empty();
  const bool fused = has_shared && config_.shared_experts_fused && !config_.reference_kernels;
  const int64_t width = c_.moe_intermediate_size;
  if (fused && w.shared_down.in_features != width && missing_.empty())
    missing_ =
        fmt::format("for a shared expert of {} columns fused with experts of {}", w.shared_down.in_features, width);
  const int64_t routed_experts = c_.n_routed_experts;
  const int64_t experts = routed_experts + (fused ? 1 : 0);
  const int64_t k = c_.num_experts_per_tok + (fused ? 1 : 0);
  const NamedTensor logits = typed("mlp.router_logits", Dtype::kF32, {t_, routed_experts});
  linear("mlp.gate", x, {w.router}, logits, config_.fp4_linear);
  const NamedTensor ids = typed("mlp.topk_ids", Dtype::kI32, {t_, k});
  const NamedTensor topk_weights = typed("mlp.topk_weights", Dtype::kF32, {t_, k});
  using R = ops::Router;
  OpBuilder router(op_name("mlp.router"), layer_, R::kName, kernel(R::kName, "moe_fused_gate"));
  router.tensor(logits).weight(w.router_bias, w.router.name + ".e_score_correction_bias");
  router.tensor(ids).tensor(topk_weights).index_end(R::kIds, experts);
  router.set("k", c_.num_experts_per_tok).set("n_group", c_.n_group).set("topk_group", c_.topk_group);
  router.set("norm_topk", c_.norm_topk_prob).set("scaling", c_.routed_scaling_factor).set("fused_shared", fused);
  router.set("router_bias", config_.router_bias_bf16 && !config_.reference_kernels).model("router_bias", int64_t{0});
  add(router);

  const NamedTensor order = typed("mlp.experts.order", Dtype::kI32, {t_ * k});
  const NamedTensor offsets = typed("mlp.experts.offsets", Dtype::kI32, {experts + 1});
  OpBuilder permute(op_name("mlp.experts.permute"), layer_, ops::MoePermute::kName,
                    kernel(ops::MoePermute::kName, "moe_align"));
  permute.tensor(ids).tensor(order).tensor(offsets);
  permute.index_end(ops::MoePermute::kIds, experts).index_end(ops::MoePermute::kOrder, t_ * k);
  permute.index_end(ops::MoePermute::kOffsets, t_ * k + 1);
  add(permute);

  const Routing routing{k, ids, order, offsets};
  const NamedTensor both = activation("mlp.experts.gate_up", {t_ * k, 2 * width});
  expert_linear("mlp.experts.gate_up_proj", x,
                fused ? with_shared(w.expert_gate_up, w.shared_gate_up) : w.expert_gate_up, 2, true, routing, both);
  const NamedTensor act = activation("mlp.experts.act", {t_ * k, width});
  OpBuilder silu(op_name("mlp.experts.act_fn"), layer_, ops::SiluMul::kName,
                 kernel(ops::SiluMul::kName, "silu_and_mul"));
  silu.tensor(both).tensor(act).set("k", k);
  add(silu);
  const NamedTensor down = activation("mlp.experts.down", {t_ * k, c_.hidden_size});
  expert_linear("mlp.experts.down_proj", act, fused ? with_shared(w.expert_down, {w.shared_down}) : w.expert_down, 1,
                false, routing, down);
  NamedTensor routed = activation("mlp.experts.out", {t_, c_.hidden_size});
  OpBuilder combine(op_name("mlp.experts.combine"), layer_, ops::MoeCombine::kName,
                    kernel(ops::MoeCombine::kName, "moe_finalize"));
  combine.tensor(down).tensor(topk_weights).tensor(routed).set("k", k);
  add(combine);
  if (fused || !has_shared) return routed;
  const NamedTensor shared = dense_mlp("mlp.shared_experts.", w.shared_gate_up, w.shared_down, x);
  NamedTensor sum = activation("mlp.moe_out", {t_, c_.hidden_size});
  add_op("mlp.add_shared", routed, shared, sum);
  return sum;
}

}  // namespace faultline
