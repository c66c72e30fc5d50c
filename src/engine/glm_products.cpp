// What every part of the pass uses: products, quantisation, norms, RoPE.
#include "engine/glm_builder.h"
#include "engine/weight_views.h"

namespace faultline {

// Projections of one input, side by side in `out`. One op where their precisions agree, else one each.
void GlmBuilder::linear(const std::string& local, const NamedTensor& x, const std::vector<LinearWeight>& weights,
                        const NamedTensor& out, const std::string& fp4_choice) {
  bool same = true;
  for (const LinearWeight& weight : weights) same = same && weight.precision == weights.front().precision;
  if (!same) {
    int64_t column = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const NamedTensor part{slice_last(out.view, column, weights[i].out_features), out.name};
      linear(fmt::format("{}.{}", local, i), x, {weights[i]}, part, fp4_choice);
      column += weights[i].out_features;
    }
    return;
  }
  const Precision precision = weights.front().precision;
  const std::string& name = weights.front().name;
  const auto collect = [&](TensorView LinearWeight::*member) { return views_of(weights, member); };
  if (!config_.reference_kernels && uses_w4a4(weights.front(), fp4_choice)) {
    const auto [codes, scales] = quantize(local + ".quantize", x, collect(&LinearWeight::input_scale), name);
    OpBuilder op(op_name(local), layer_, ops::LinearW4A4::kName, kernel(ops::LinearW4A4::kName, "flashinfer_cutlass"));
    op.tensor(codes).tensor(scales);
    op.weights(collect(&LinearWeight::weight), name + ".weight", Format::kNvfp4);
    op.weights(collect(&LinearWeight::block_scale), name + ".weight_scale");
    op.weights(collect(&LinearWeight::global_scale), name + ".weight_scale_2");
    op.weights(collect(&LinearWeight::input_scale), name + ".input_scale");
    op.tensor(out);
    add(op);
    return;
  }
  const bool nvfp4 = precision == Precision::kNvfp4;
  OpBuilder op(op_name(local), layer_, ops::Linear::kName, kernel(ops::Linear::kName, nvfp4 ? "marlin" : "dense"));
  op.tensor(x);
  op.weights(collect(&LinearWeight::weight), name + ".weight", nvfp4 ? Format::kNvfp4 : Format::kPlain);
  op.weights(collect(&LinearWeight::block_scale), name + ".weight_scale");
  op.weights(collect(&LinearWeight::global_scale), name + ".weight_scale_2");
  op.tensor(out);
  add(op);
}

std::pair<NamedTensor, NamedTensor> GlmBuilder::quantize(const std::string& local, const NamedTensor& x,
                                                         std::vector<TensorView> input_scales, const std::string& name,
                                                         int64_t rows_per_token) {
  const int64_t rows = x.view.dim(0);
  const int64_t columns = x.view.dim(1);
  const NamedTensor codes = typed(local + ".codes", Dtype::kU8, {rows, columns / 2});
  const NamedTensor scales = typed(local + ".scales", Dtype::kF8E4M3, {rows, columns / kNvfp4BlockSize});
  OpBuilder op(op_name(local), layer_, ops::QuantizeFp4::kName, kernel(ops::QuantizeFp4::kName, "fp4_quantize"));
  op.tensor(x).weights(std::move(input_scales), name + ".input_scale").tensor(codes).tensor(scales);
  op.set("k", rows_per_token);
  add(op);
  return {codes, scales};
}

void GlmBuilder::rmsnorm(const std::string& local, const NamedTensor& x, const TensorView& weight,
                         const std::string& weight_name, const NamedTensor& out, double eps) {
  OpBuilder op(op_name(local), layer_, ops::RmsNorm::kName, kernel(ops::RmsNorm::kName, "rmsnorm"));
  op.tensor(x).weight(weight, weight_name).tensor(out).set("eps", eps);
  add(op);
}

void GlmBuilder::rope(const std::string& local, const NamedTensor& x, const NamedTensor& out, bool interleaved,
                      bool model_interleaved, const Kernel* kernel_, bool shadow) {
  OpBuilder op(op_name(local), layer_, ops::Rope::kName, kernel_);
  op.tensor(x).tensor(positions_).tensor(out);
  op.set("theta", shadow || config_.rope_theta == 0 ? c_.rope_theta : config_.rope_theta);
  op.set("rope_dim", c_.qk_rope_head_dim);
  op.set("interleaved", shadow ? model_interleaved : interleaved);
  op.set("enabled", shadow || config_.rope_enabled);
  op.model("theta", c_.rope_theta);
  op.model("interleaved", static_cast<int64_t>(model_interleaved)).model("enabled", int64_t{1});
  if (shadow) op.shadow();
  add(op);
}

void GlmBuilder::add_op(const std::string& local, const NamedTensor& a, const NamedTensor& b, const NamedTensor& out) {
  OpBuilder op(op_name(local), layer_, ops::Add::kName, kernel(ops::Add::kName, "add"));
  op.tensor(a).tensor(b).tensor(out);
  add(op);
}

void GlmBuilder::gather(const NamedTensor& from, const NamedTensor& to, const std::string& local) {
  OpBuilder op(op_name(local), -1, ops::GatherRows::kName, kernel(ops::GatherRows::kName, "gather_rows"));
  op.tensor(from).tensor(last_rows_).tensor(to).index_end(ops::GatherRows::kRows, t_);
  add(op);
}

}  // namespace faultline
