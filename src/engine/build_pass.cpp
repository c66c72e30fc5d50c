// GLM-5's forward pass as ops, in launch order.
#include "engine/glm_builder.h"

namespace faultline {

GlmBuilder::GlmBuilder(const PassContext& context, Pass& pass)
    : context_(context),
      config_(*context.config),
      weights_(*context.weights),
      c_(context.weights->config),
      pass_(pass),
      space_(pass, *context.device),
      activation_(config_.reference_kernels ? Dtype::kF32 : Dtype::kBF16) {}

Status GlmBuilder::build() {
  begin();
  for (int64_t l = 0; l < c_.num_hidden_layers; ++l) layer(static_cast<int>(l));
  head();
  FAULTLINE_TRY_STATUS(space_.status());
  return missing_.empty() ? Status{} : cannot_run("this build has no kernel {}", missing_);
}

const Kernel* GlmBuilder::kernel(std::string_view kind, std::string_view own) {
  if (config_.reference_kernels) return reference_kernel(kind);
  const auto chosen = config_.kernels.find(std::string(kind));
  if (chosen != config_.kernels.end()) own = chosen->second;
  const Kernel* found = find_kernel(kind, own);
  if (found == nullptr && missing_.empty()) missing_ = fmt::format("'{}' for op kind '{}'", own, kind);
  return found == nullptr ? reference_kernel(kind) : found;
}

void GlmBuilder::add(Op op) {
  pass_.group.push_back(group_);
  pass_.ops.push_back(std::move(op));
}

NamedTensor GlmBuilder::activation(const std::string& local, std::initializer_list<int64_t> shape) {
  return space_.activation(prefix_, local, activation_, shape);
}

NamedTensor GlmBuilder::typed(const std::string& local, Dtype dtype, std::initializer_list<int64_t> shape) {
  return space_.activation(prefix_, local, dtype, shape);
}

void GlmBuilder::begin() {
  const PassShape& shape = pass_.shape;
  t_ = shape.tokens;
  r_ = shape.requests;
  columns_ = context_.pool.max_context;
  layer_ = -1;
  prefix_ = "";
  group_ = 0;
  const auto input = [&](const std::string& name, std::initializer_list<int64_t> dims) {
    return typed("batch." + name, Dtype::kI32, dims);
  };
  input_ids_ = input("input_ids", {t_});
  const NamedTensor req_to_token{context_.req_to_token, "batch.req_to_token"};
  const NamedTensor req_pool = input("req_pool_indices", {r_});
  seq_lens_ = input("seq_lens", {r_});
  const NamedTensor cu_seqlens = input("cu_seqlens_q", {r_ + 1});
  slots_ = input("out_cache_loc", {t_});
  last_rows_ = input("last_rows", {r_});
  positions_ = input("positions", {t_});
  row_to_request_ = input("row_to_request", {t_});
  lengths_ = input("lengths", {t_});
  page_table_ = input("page_table", {r_, columns_});
  ragged_offsets_ = input("ragged_offsets", {t_});
  flat_slots_ = input("flat_slots", {r_ * columns_});
  const NamedTensor live = input("live_requests", {1});
  pass_.input_ids = input_ids_.view;
  pass_.req_to_token = context_.req_to_token;
  pass_.req_pool = req_pool.view;
  pass_.seq_lens = seq_lens_.view;
  pass_.cu_seqlens_q = cu_seqlens.view;
  pass_.slots = slots_.view;
  pass_.last_rows = last_rows_.view;
  pass_.live = live.view;
  pass_.page_table = page_table_.view;
  pass_.row_to_request = row_to_request_.view;
  pass_.ragged_offsets = ragged_offsets_.view;
  pass_.topk_ragged = index_form() == kRagged;

  using P = ops::Prepare;
  OpBuilder prepare("batch.prepare", -1, P::kName, kernel(P::kName, "prepare"));
  prepare.tensor(req_to_token).tensor(req_pool).tensor(seq_lens_).tensor(cu_seqlens);
  prepare.tensor(positions_).tensor(row_to_request_).tensor(lengths_).tensor(page_table_).tensor(ragged_offsets_);
  prepare.tensor(flat_slots_).tensor(live);
  prepare.index_end(P::kPositions, columns_).index_end(P::kRowToRequest, r_).index_end(P::kLengths, columns_ + 1);
  prepare.index_end(P::kPageTable, context_.pool.slots).index_end(P::kFlatSlots, context_.pool.slots);
  prepare.index_end(P::kRaggedOffsets, r_ * columns_ + 1).index_end(P::kReqPool, context_.pool.max_requests);
  add(prepare);

  x_ = activation("embeddings", {t_, c_.hidden_size});
  OpBuilder embed("embed_tokens", -1, ops::Embed::kName, kernel(ops::Embed::kName, "embed"));
  embed.tensor(input_ids_).weight(weights_.embed, "model.embed_tokens.weight").tensor(x_);
  embed.index_end(ops::Embed::kIds, c_.vocab_size);
  add(embed);
  pass_.embeddings = x_.view;
}

void GlmBuilder::layer(int l) {
  layer_ = l;
  prefix_ = fmt::format("layers.{}.", l);
  ++group_;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(l)];
  const std::string wp = fmt::format("model.layers.{}.", l);
  const int64_t hidden = c_.hidden_size;

  const NamedTensor h = activation("input_layernorm", {t_, hidden});
  rmsnorm("input_layernorm", x_, w.input_norm, wp + "input_layernorm.weight", h, c_.rms_norm_eps);
  const NamedTensor attended = attention(w, wp, h);
  const NamedTensor mid = activation("residual_mid", {t_, hidden});
  add_op("self_attn.residual", x_, attended, mid);

  const NamedTensor h2 = activation("post_attention_layernorm", {t_, hidden});
  rmsnorm("post_attention_layernorm", mid, w.post_attention_norm, wp + "post_attention_layernorm.weight", h2,
          c_.rms_norm_eps);
  const NamedTensor mlp_out = w.is_moe ? moe(w, h2) : dense_mlp("mlp.", w.gate_up, w.down, h2);
  x_ = activation(l % 2 == 0 ? "residual_even" : "residual_odd", {t_, hidden});
  add_op("mlp.residual", mid, mlp_out, x_);
  pass_.layer_outputs.push_back(x_.view);
}

void GlmBuilder::head() {
  layer_ = -1;
  prefix_ = "";
  ++group_;
  const int64_t hidden = c_.hidden_size;
  const int64_t rows = pass_.shape.all_logits ? t_ : r_;
  NamedTensor x = x_;
  const NamedTensor normed = activation("final_norm", {rows, hidden});
  if (!pass_.shape.all_logits) {
    x = activation("last_hidden", {r_, hidden});
    gather(x_, x, "gather_last");
  }
  rmsnorm("norm", x, weights_.final_norm, "model.norm.weight", normed, c_.rms_norm_eps);
  const NamedTensor logits = activation("logits", {rows, c_.vocab_size});
  linear("lm_head", normed, {weights_.lm_head}, logits, config_.fp4_linear);
  pass_.final_norm = normed.view;
  pass_.logits = logits.view;
  NamedTensor last = logits;
  if (pass_.shape.all_logits) {
    last = activation("last_logits", {r_, c_.vocab_size});
    gather(logits, last, "gather_last_logits");
  }

  ++group_;
  const NamedTensor tokens = typed("sampler.tokens", Dtype::kI32, {r_});
  pass_.tokens = tokens.view;
  if (pass_.shape.greedy) {
    OpBuilder op("sampler.argmax", -1, ops::Argmax::kName, kernel(ops::Argmax::kName, "argmax"));
    op.tensor(last).tensor(tokens).index_end(ops::Argmax::kTokens, c_.vocab_size);
    add(op);
    return;
  }
  const NamedTensor probs = typed("sampler.probabilities", Dtype::kF32, {r_, c_.vocab_size});
  OpBuilder softmax("sampler.softmax", -1, ops::Softmax::kName, kernel(ops::Softmax::kName, "softmax"));
  softmax.tensor(last).tensor(probs);
  softmax.set("temperature", context_.sampling.temperature).set("top_p", context_.sampling.top_p);
  add(softmax);
  const NamedTensor uniform = typed("sampler.uniform", Dtype::kF32, {r_});
  OpBuilder sample("sampler.sample", -1, ops::Sample::kName, kernel(ops::Sample::kName, config_.sampling));
  sample.tensor(probs).tensor(uniform).tensor(tokens).index_end(ops::Sample::kTokens, c_.vocab_size);
  add(sample);
  pass_.uniform = uniform.view;
  pass_.probabilities = probs.view;
}

const Op* Pass::find(const std::string& name) const {
  for (const Op& op : ops)
    if (op.name == name) return &op;
  return nullptr;
}

const Kernel* reference_kernel(std::string_view kind) {
  static std::map<std::string, Kernel, std::less<>> kernels;
  const auto it = kernels.find(kind);
  if (it != kernels.end()) return &it->second;
  Kernel kernel;
  kernel.name = "reference";
  kernel.kind = std::string(kind);
  kernel.provenance = Provenance::kReference;
  return &kernels.emplace(std::string(kind), std::move(kernel)).first->second;
}

Result<std::unique_ptr<Pass>> build_pass(const PassContext& context, const PassShape& shape) {
  auto pass = std::make_unique<Pass>();
  pass->shape = shape;
  FAULTLINE_TRY_STATUS(GlmBuilder(context, *pass).build());
  pass->layer_topk.resize(pass->layer_outputs.size());
  return pass;
}

}  // namespace faultline
