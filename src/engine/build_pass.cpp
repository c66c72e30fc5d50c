// GLM-5's forward pass as ops, in launch order. The kinds and their operand orders are in ops/kinds.h; what each
// resolved setting changes is in engine/config.h.
#include <cmath>

#include "engine/op_builder.h"
#include "ops/kinds.h"

namespace faultline {
namespace {

constexpr double kLatentNormEpsTransformers = 1e-6;  // q_a_layernorm / kv_a_layernorm: the class default there
constexpr double kIndexNormEps = 1e-6;               // indexer.k_norm (transformers glm_moe_dsa, sglang nsa_indexer)
constexpr int64_t kSplits = 4;                       // flashmla_kv: KV splits a row

enum IndexForm : int64_t { kPositions = 0, kPaged = 1, kRagged = 2 };

bool uses_w4a4(const LinearWeight& weight, const std::string& choice) {
  return choice == "w4a4" && weight.precision == Precision::kNvfp4 && weight.input_scale.data != nullptr;
}

// One view of each weight, in order.
std::vector<TensorView> views_of(const std::vector<LinearWeight>& weights, TensorView LinearWeight::*member) {
  std::vector<TensorView> views;
  views.reserve(weights.size());
  for (const LinearWeight& weight : weights) views.push_back(weight.*member);
  return views;
}

class GlmBuilder {
 public:
  GlmBuilder(const PassContext& context, Pass& pass)
      : context_(context),
        config_(*context.config),
        weights_(*context.weights),
        c_(context.weights->config),
        pass_(pass),
        space_(pass, *context.device),
        activation_(config_.reference_kernels ? Dtype::kF32 : Dtype::kBF16) {}

  Status build() {
    begin();
    for (int64_t l = 0; l < c_.num_hidden_layers; ++l) layer(static_cast<int>(l));
    head();
    FAULTLINE_TRY_STATUS(space_.status());
    return missing_.empty() ? Status{} : cannot_run("this build has no kernel {}", missing_);
  }

 private:
  // --- plumbing
  // ---------------------------------------------------------------------------------------------------------

  const Kernel* kernel(std::string_view kind, std::string_view own) {
    if (config_.reference_kernels) return reference_kernel(kind);
    const auto chosen = config_.kernels.find(std::string(kind));
    if (chosen != config_.kernels.end()) own = chosen->second;
    const Kernel* found = find_kernel(kind, own);
    if (found == nullptr && missing_.empty()) missing_ = fmt::format("'{}' for op kind '{}'", own, kind);
    return found == nullptr ? reference_kernel(kind) : found;
  }

  void add(Op op) {
    pass_.group.push_back(group_);
    pass_.ops.push_back(std::move(op));
  }
  void add(OpBuilder& op) { add(op.take()); }

  NamedTensor activation(const std::string& local, std::initializer_list<int64_t> shape) {
    return space_.activation(prefix_, local, activation_, shape);
  }
  NamedTensor typed(const std::string& local, Dtype dtype, std::initializer_list<int64_t> shape) {
    return space_.activation(prefix_, local, dtype, shape);
  }
  std::string op_name(const std::string& local) const { return prefix_ + local; }

  // --- products
  // ---------------------------------------------------------------------------------------------------------

  // Projections of one input, side by side in `out`. One op where their precisions agree, else one each.
  void linear(const std::string& local, const NamedTensor& x, const std::vector<LinearWeight>& weights,
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
      OpBuilder op(op_name(local), layer_, ops::LinearW4A4::kName,
                   kernel(ops::LinearW4A4::kName, "flashinfer_cutlass"));
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

  std::pair<NamedTensor, NamedTensor> quantize(const std::string& local, const NamedTensor& x,
                                               std::vector<TensorView> input_scales, const std::string& name,
                                               int64_t rows_per_token = 1) {
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

  void rmsnorm(const std::string& local, const NamedTensor& x, const TensorView& weight, const std::string& weight_name,
               const NamedTensor& out, double eps) {
    OpBuilder op(op_name(local), layer_, ops::RmsNorm::kName, kernel(ops::RmsNorm::kName, "rmsnorm"));
    op.tensor(x).weight(weight, weight_name).tensor(out).set("eps", eps);
    add(op);
  }

  void rope(const std::string& local, const NamedTensor& x, const NamedTensor& out, bool interleaved,
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

  // --- the pass
  // ---------------------------------------------------------------------------------------------------------

  void begin() {
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
    pass_.input_ids = input_ids_.view;
    pass_.req_to_token = context_.req_to_token;
    pass_.req_pool = req_pool.view;
    pass_.seq_lens = seq_lens_.view;
    pass_.cu_seqlens_q = cu_seqlens.view;
    pass_.slots = slots_.view;
    pass_.last_rows = last_rows_.view;
    pass_.page_table = page_table_.view;
    pass_.row_to_request = row_to_request_.view;
    pass_.ragged_offsets = ragged_offsets_.view;
    pass_.topk_ragged = index_form() == kRagged;

    using P = ops::Prepare;
    OpBuilder prepare("batch.prepare", -1, P::kName, kernel(P::kName, "prepare"));
    prepare.tensor(req_to_token).tensor(req_pool).tensor(seq_lens_).tensor(cu_seqlens);
    prepare.tensor(positions_).tensor(row_to_request_).tensor(lengths_).tensor(page_table_).tensor(ragged_offsets_);
    prepare.tensor(flat_slots_);
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

  void layer(int l) {
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

  void add_op(const std::string& local, const NamedTensor& a, const NamedTensor& b, const NamedTensor& out) {
    OpBuilder op(op_name(local), layer_, ops::Add::kName, kernel(ops::Add::kName, "add"));
    op.tensor(a).tensor(b).tensor(out);
    add(op);
  }

  NamedTensor attention(const LayerWeights& w, const std::string& wp, const NamedTensor& h) {
    const std::string ap = wp + "self_attn.";
    const int64_t heads = c_.num_attention_heads;
    const int64_t latent = c_.kv_lora_rank;
    const int64_t rope_dim = c_.qk_rope_head_dim;
    const int64_t nope = c_.qk_nope_head_dim;
    const int64_t width = latent + rope_dim;
    const double latent_eps = config_.transformers_numerics ? kLatentNormEpsTransformers : c_.rms_norm_eps;

    const NamedTensor q_a = activation("self_attn.q_a", {t_, c_.q_lora_rank});
    linear("self_attn.q_a_proj", h, {w.q_a}, q_a, config_.fp4_linear);
    const NamedTensor kv_a = activation("self_attn.kv_a", {t_, width});
    linear("self_attn.kv_a_proj", h, {w.kv_a}, kv_a, config_.fp4_linear);
    const NamedTensor qr = activation("self_attn.q_a_norm", {t_, c_.q_lora_rank});
    rmsnorm("self_attn.q_a_layernorm", q_a, w.q_a_norm, ap + "q_a_layernorm.weight", qr, latent_eps);
    const NamedTensor q = activation("self_attn.q", {t_, heads * (nope + rope_dim)});
    linear("self_attn.q_b_proj", qr, {w.q_b}, q, config_.fp4_linear);

    // One row a token: normed latent, then rotated k_pe. Two ops write their own columns.
    const NamedTensor kv_rows = activation("self_attn.kv_rows", {t_, width});
    const auto part = [](const NamedTensor& tensor, int64_t begin, int64_t count) {
      return NamedTensor{slice_last(tensor.view, begin, count), tensor.name};
    };
    rmsnorm("self_attn.kv_a_layernorm", part(kv_a, 0, latent), w.kv_a_norm, ap + "kv_a_layernorm.weight",
            part(kv_rows, 0, latent), latent_eps);
    const auto as_heads = [](const NamedTensor& tensor, int64_t count, int64_t size) {
      return NamedTensor{split_last(tensor.view, count, size), tensor.name};
    };
    const Kernel* rope_kernel = kernel(ops::Rope::kName, "rope");
    const bool interleaved = c_.rope_interleave == config_.rope_interleaved;
    rope("self_attn.rope_k", as_heads(part(kv_a, latent, rope_dim), 1, rope_dim),
         as_heads(part(kv_rows, latent, rope_dim), 1, rope_dim), interleaved, c_.rope_interleave, rope_kernel, false);

    const NamedTensor q_heads = as_heads(q, heads, nope + rope_dim);
    const NamedTensor q_full = as_heads(activation("self_attn.q_full", {t_, heads * width}), heads, width);
    rope("self_attn.rope_q", part(q_heads, nope, rope_dim), part(q_full, latent, rope_dim), interleaved,
         c_.rope_interleave, rope_kernel, false);
    {
      OpBuilder op(op_name("self_attn.q_absorb"), layer_, ops::BatchedLinear::kName,
                   kernel(ops::BatchedLinear::kName, "bmm"));
      op.tensor(part(q_heads, 0, nope)).weight(w.w_uk, w.kv_b_name + ".weight").tensor(part(q_full, 0, latent));
      op.set("weight_kn", true);
      add(op);
    }

    const NamedTensor cache = layer_cache(context_.caches->kv_layers, "self_attn.kv_cache", context_.caches->kv);
    write_cache("self_attn.kv_write", kv_rows, cache, context_.caches->kv);
    if (config_.indexer && w.has_indexer) index_ = indexer(w, ap, h, qr, false);
    if (shadow_wanted()) shadow(w, ap, h, qr, kv_rows);

    const NamedTensor o_latent = as_heads(activation("self_attn.o_latent", {t_, heads * latent}), heads, latent);
    attend(kv_rows, cache, q_full, o_latent);

    const NamedTensor o = as_heads(activation("self_attn.o", {t_, heads * c_.v_head_dim}), heads, c_.v_head_dim);
    OpBuilder up(op_name("self_attn.v_up"), layer_, ops::BatchedLinear::kName,
                 kernel(ops::BatchedLinear::kName, "bmm"));
    up.tensor(o_latent).weight(w.w_uv, w.kv_b_name + ".weight").tensor(o).set("weight_kn", false);
    add(up);
    NamedTensor out = activation("self_attn.out", {t_, c_.hidden_size});
    const NamedTensor o_flat = activation("self_attn.o", {t_, heads * c_.v_head_dim});
    linear("self_attn.o_proj", o_flat, {w.o}, out, config_.fp4_linear);
    return out;
  }

  NamedTensor layer_cache(const std::vector<std::unique_ptr<Buffer>>& buffers, const std::string& local,
                          const CacheGeometry& geometry) {
    const auto& buffer = buffers[static_cast<size_t>(layer_)];
    return {make_view(buffer->data(), Dtype::kU8, {geometry.total_bytes()}), prefix_ + local};
  }

  void write_cache(const std::string& local, const NamedTensor& rows, const NamedTensor& cache,
                   const CacheGeometry& geometry, bool shadow = false) {
    using W = ops::CacheWrite;
    const char* own = geometry.is_index()                      ? "store_index_k"
                      : geometry.format == Format::kKvPacked   ? "quantize_k_cache"
                      : geometry.format == Format::kKvPlainFp8 ? "store_kv_fp8"
                                                               : "store_kv";
    OpBuilder op(op_name(local), layer_, W::kName, shadow ? reference_kernel(W::kName) : kernel(W::kName, own));
    op.tensor(rows).tensor(slots_).cache(cache, geometry, geometry).index_end(W::kSlots, context_.pool.slots);
    // The server's packing writer has no floor; the model has no quantisation to divide by.
    op.set("floorless", geometry.format == Format::kKvPacked).model("floorless", int64_t{0});
    op.set("ue8m0", geometry.format == Format::kIndexFp8 && config_.index_ue8m0);
    if (shadow) op.shadow();
    add(op);
  }

  // Selects the top-k of each row. The shadow variant computes the model's own selection in float32 beside the run.
  NamedTensor indexer(const LayerWeights& w, const std::string& ap, const NamedTensor& h, const NamedTensor& qr,
                      bool shadow) {
    const std::string lp = shadow ? "shadow.indexer." : "self_attn.indexer.";
    const Dtype dtype = shadow ? Dtype::kF32 : activation_;
    const int64_t n = c_.index_n_heads;
    const int64_t d = c_.index_head_dim;
    const auto own = [&](std::string_view kind, std::string_view name) {
      return shadow ? reference_kernel(kind) : kernel(kind, name);
    };
    const auto project = [&](const std::string& local, const NamedTensor& x, const LinearWeight& weight,
                             const NamedTensor& out) {
      if (!shadow) {
        linear(lp + local, x, {weight}, out, config_.fp4_linear);
        return;
      }
      OpBuilder op(op_name(lp + local), layer_, ops::Linear::kName, reference_kernel(ops::Linear::kName));
      op.tensor(x);
      op.weights({weight.weight}, weight.name, weight.precision == Precision::kNvfp4 ? Format::kNvfp4 : Format::kPlain);
      op.weights({weight.block_scale}, "").weights({weight.global_scale}, "").tensor(out).shadow();
      add(op);
    };
    const NamedTensor q = typed(lp + "q", dtype, {t_, n * d});
    project("wq_b", qr, w.index_q, q);
    const NamedTensor k = typed(lp + "k", dtype, {t_, d});
    project("wk", h, w.index_k, k);
    const NamedTensor k_normed = typed(lp + "k_norm", dtype, {t_, d});
    {
      OpBuilder op(op_name(lp + "k_norm"), layer_, ops::LayerNorm::kName, own(ops::LayerNorm::kName, "layernorm"));
      op.tensor(k).weight(w.index_norm_weight, ap + "indexer.k_norm.weight");
      op.weight(w.index_norm_bias, ap + "indexer.k_norm.bias").tensor(k_normed).set("eps", kIndexNormEps);
      if (shadow) op.shadow();
      add(op);
    }
    const auto as_heads = [](const NamedTensor& tensor, int64_t count, int64_t size) {
      return NamedTensor{split_last(tensor.view, count, size), tensor.name};
    };
    const bool interleaved = c_.indexer_rope_interleave == config_.indexer_rope_interleaved;
    NamedTensor q_rope = as_heads(typed(lp + "q_rope", dtype, {t_, n * d}), n, d);
    rope(lp + "rope_q", as_heads(q, n, d), q_rope, interleaved, c_.indexer_rope_interleave,
         own(ops::Rope::kName, "rope"), shadow);
    NamedTensor k_rope = typed(lp + "k_rope", dtype, {t_, d});
    rope(lp + "rope_k", as_heads(k_normed, 1, d), as_heads(k_rope, 1, d), interleaved, c_.indexer_rope_interleave,
         own(ops::Rope::kName, "rope"), shadow);

    if (!shadow && config_.index_hadamard && !config_.reference_kernels) {
      if ((d & (d - 1)) != 0 && missing_.empty()) missing_ = fmt::format("for a Hadamard transform of {} values", d);
      const auto rotate = [&](const std::string& local, const NamedTensor& x, int64_t count) {
        const NamedTensor flat = typed(lp + local, dtype, {t_, count * d});
        OpBuilder op(op_name(lp + "hadamard_" + local.substr(0, 1)), layer_, ops::Hadamard::kName,
                     kernel(ops::Hadamard::kName, "hadamard"));
        op.tensor(x).tensor(as_heads(flat, count, d));
        add(op);
        return flat;
      };
      q_rope = as_heads(rotate("q_rotated", q_rope, n), n, d);
      k_rope = rotate("k_rotated", as_heads(k_rope, 1, d), 1);
    }

    const CacheGeometry& geometry = shadow ? context_.caches->shadow_index : context_.caches->index;
    const NamedTensor cache = layer_cache(shadow ? context_.caches->shadow_index_layers : context_.caches->index_layers,
                                          lp + "k_cache", geometry);
    write_cache(lp + "k_write", k_rope, cache, geometry, shadow);
    const NamedTensor head_weights = typed(lp + "head_weights", Dtype::kF32, {t_, n});
    project("weights_proj", h, w.index_heads, head_weights);

    const NamedTensor scores = typed(lp + "scores", Dtype::kF32, {t_, columns_});
    using S = ops::IndexScores;
    OpBuilder score(op_name(lp + "scores"), layer_, S::kName, own(S::kName, "mqa_logits"));
    score.tensor(q_rope).tensor(head_weights).cache(cache, geometry, geometry);
    score.tensor(page_table_).tensor(row_to_request_).tensor(lengths_).tensor(scores);
    score.set("query_fp8", fp8_queries(geometry)).set("query_ue8m0", fp8_queries(geometry) && config_.index_ue8m0);
    if (shadow) score.shadow();
    add(score);

    NamedTensor indices = typed(lp + "topk", Dtype::kI32, {t_, c_.index_topk});
    using K = ops::TopK;
    OpBuilder topk(op_name(lp + "topk"), layer_, K::kName, own(K::kName, "fast_topk"));
    topk.tensor(scores).tensor(lengths_).tensor(page_table_).tensor(row_to_request_).tensor(ragged_offsets_);
    topk.tensor(indices).set("topk", c_.index_topk).set("transform", shadow ? kPaged : index_form());
    topk.index_end(K::kOut, index_form() == kRagged ? std::max(t_, r_ * columns_) : context_.pool.slots);
    if (!shadow && index_form() == kRagged) topk.no_owner(K::kOut);
    if (shadow) {
      topk.shadow();
    } else {
      pass_.layer_topk.resize(static_cast<size_t>(layer_) + 1);
      pass_.layer_topk.back() = indices.view;
    }
    add(topk);
    return indices;
  }

  bool shadow_wanted() const {
    return config_.checks == CheckLevel::kReference && !config_.indexer && !config_.reference_kernels;
  }

  void shadow(const LayerWeights& w, const std::string& ap, const NamedTensor& h, const NamedTensor& qr,
              const NamedTensor& kv_rows) {
    const NamedTensor cache =
        layer_cache(context_.caches->shadow_kv_layers, "shadow.kv_cache", context_.caches->shadow_kv);
    write_cache("shadow.kv_write", kv_rows, cache, context_.caches->shadow_kv, true);
    if (w.has_indexer) shadow_index_ = indexer(w, ap, h, qr, true);
  }

  // The server's indexer takes codes of queries and keys alike; a float cache has none.
  bool fp8_queries(const CacheGeometry& index) const {
    return config_.index_query_fp8 && index.format == Format::kIndexFp8;
  }
  bool prefill() const { return pass_.shape.phase == PassPhase::kPrefill; }
  bool from_rows() const { return prefill() && config_.prefill_from_rows && !pass_.shape.has_prefix; }
  bool gathers() const { return prefill() && config_.prefill_gathers && pass_.shape.has_prefix; }
  IndexForm index_form() const { return from_rows() || gathers() ? kRagged : kPaged; }

  void attend(const NamedTensor& kv_rows, const NamedTensor& pool, const NamedTensor& q, const NamedTensor& out) {
    using A = ops::Attention;
    const CacheGeometry written = context_.caches->kv;
    NamedTensor source = pool;
    CacheGeometry source_written = written;
    CacheGeometry source_read = written;
    const Format contiguous = activation_ == Dtype::kF32 ? Format::kKvF32 : Format::kKvBf16;
    if (from_rows()) {
      source = kv_rows;
      source_written = CacheGeometry{contiguous, t_, 1, written.latent, written.rope};
      source_read = source_written;
    } else if (gathers()) {
      const int64_t rows = r_ * columns_;
      source = activation("self_attn.kv_gathered", {rows, written.width()});
      OpBuilder gather(op_name("self_attn.kv_gather"), layer_, ops::CacheGather::kName,
                       kernel(ops::CacheGather::kName, "dequantize_k_cache_paged"));
      gather.cache(pool, written, written).tensor(flat_slots_).tensor(seq_lens_).tensor(source);
      gather.index_end(ops::CacheGather::kSlots, context_.pool.slots);
      add(gather);
      source_written = CacheGeometry{contiguous, rows, 1, written.latent, written.rope};
      source_read = source_written;
    } else if (prefill() ? config_.prefill_requantizes : config_.decode_requantizes) {
      CacheGeometry packed = written;
      packed.format = Format::kKvPacked;
      source = typed("self_attn.kv_requantized", Dtype::kU8, {packed.total_bytes()});
      OpBuilder requantize(op_name("self_attn.kv_requantize"), layer_, ops::CacheRequantize::kName,
                           kernel(ops::CacheRequantize::kName, "quantize_k_cache"));
      requantize.cache(pool, written, written).tensor(flat_slots_).tensor(seq_lens_).cache(source, packed, packed);
      requantize.index_end(ops::CacheRequantize::kSlots, context_.pool.slots);
      add(requantize);
      source_written = packed;
      source_read = packed;
    } else {
      source_read.format = prefill() ? config_.prefill_reads : config_.decode_reads;
      if (config_.reference_kernels) source_read.format = written.format;
      if (source_read.format != written.format) source_read.row_stride_bytes = written.row_bytes();
    }
    NamedTensor query = q;
    if (config_.query_fp8 && !config_.reference_kernels && source_read.format == Format::kKvPlainFp8) {
      const NamedTensor flat = activation("self_attn.q_fp8", {t_, q.view.dim(1) * q.view.dim(2)});
      query = {split_last(flat.view, q.view.dim(1), q.view.dim(2)), flat.name};
      OpBuilder round(op_name("self_attn.q_quantize"), layer_, ops::RoundFp8::kName,
                      kernel(ops::RoundFp8::kName, "quantize_q"));
      round.tensor(q).tensor(query);
      add(round);
    }
    const bool dense = !config_.indexer;
    const int64_t splits = kSplits;
    const NamedTensor scratch =
        typed("self_attn.scratch", Dtype::kF32, {t_ * splits * c_.num_attention_heads * (c_.kv_lora_rank + 2)});
    const auto arguments = [&](OpBuilder& op, const NamedTensor& cache, const CacheGeometry& read,
                               const CacheGeometry& as_written, const NamedTensor& indices) {
      op.tensor(query).cache(cache, read, as_written);
      if (indices.view.data != nullptr)
        op.tensor(indices);
      else
        op.absent();
      op.tensor(page_table_)
          .tensor(row_to_request_)
          .tensor(lengths_)
          .tensor(ragged_offsets_)
          .tensor(scratch)
          .tensor(out);
    };
    OpBuilder op(op_name("self_attn.attention"), layer_, A::kName,
                 kernel(A::kName, prefill() ? config_.prefill_attention : config_.decode_attention));
    arguments(op, source, source_read, source_written, dense ? NamedTensor{} : index_);
    op.set("scale", std::pow(static_cast<double>(c_.qk_head_dim()), -0.5));
    op.set("dense", dense).set("index_form", static_cast<int64_t>(index_form()));
    op.set("topk", c_.index_topk).set("splits", splits);
    op.index_end(A::kIndices, source_written.slots);
    if (index_form() == kRagged) op.no_owner(A::kIndices);
    if (dense && shadow_wanted()) {
      OpBuilder model(op_name("shadow.attention"), layer_, A::kName, reference_kernel(A::kName));
      // The keys that the row itself attends to: what is left between the two is the structure, not the format. The
      // new rows of a pass have no slots, but are not quantized either: the float cache holds the same.
      const CacheGeometry& shadow_geometry = context_.caches->shadow_kv;
      if (from_rows())
        arguments(model, layer_cache(context_.caches->shadow_kv_layers, "shadow.kv_cache", shadow_geometry),
                  shadow_geometry, shadow_geometry, shadow_index_);
      else
        arguments(model, pool, written, written, shadow_index_);
      op.model_arguments(model.arguments().clone());
      op.model("dense", int64_t{0}).model("index_form", static_cast<int64_t>(kPaged));
    }
    add(op);
  }

  NamedTensor dense_mlp(const std::string& module, const std::vector<LinearWeight>& gate_up, const LinearWeight& down,
                        const NamedTensor& x) {
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

  // What the products of a layer's routed experts have in common: `k` experts a token, the shared one included where it
  // is fused.
  struct Routing {
    int64_t k;
    NamedTensor ids, order, offsets;
  };

  void expert_linear(const std::string& local, const NamedTensor& x, const std::vector<LinearWeight>& weights,
                     int64_t stacked, bool per_token, const Routing& routing, const NamedTensor& out) {
    const auto collect = [&](TensorView LinearWeight::*member) { return views_of(weights, member); };
    const std::string& name = weights.front().name;
    const int64_t k = routing.k;
    const bool nvfp4 = weights.front().precision == Precision::kNvfp4;
    for (const LinearWeight& weight : weights)
      if (weight.precision != weights.front().precision && missing_.empty())
        missing_ = fmt::format("for experts of mixed precision ({} and {})", name, weight.name);
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
      const std::vector<TensorView> global = collect(&LinearWeight::global_scale);
      const bool first = config_.first_gate_up_scale && stacked > 1;
      op.weights(first ? first_of_each(global, stacked) : global, name + ".weight_scale_2");
      op.weights(collect(&LinearWeight::input_scale), name + ".input_scale").tensor(out);
      op.set("k", k).set("stacked", stacked).set("x_per_token", per_token && !own_scale);
      op.set("per_expert", own_scale).index_end(E::kOrder, t_ * k);
      op.set("gate_up_scale", first).model("gate_up_scale", int64_t{0});
      if (first) {
        ArgumentList model = op.arguments().clone();
        model.replace(E::kGlobalScale, global);
        op.model_arguments(std::move(model));
      }
      add(op);
      return;
    }
    using E = ops::ExpertLinear;
    OpBuilder op(op_name(local), layer_, E::kName, kernel(E::kName, nvfp4 ? "marlin" : "dense"));
    op.tensor(x).tensor(routing.order).tensor(routing.offsets);
    op.weights(collect(&LinearWeight::weight), name + ".weight", nvfp4 ? Format::kNvfp4 : Format::kPlain);
    op.weights(collect(&LinearWeight::block_scale), name + ".weight_scale");
    op.weights(collect(&LinearWeight::global_scale), name + ".weight_scale_2").tensor(out);
    op.set("k", k).set("stacked", stacked).set("x_per_token", per_token).index_end(E::kOrder, t_ * k);
    add(op);
  }

  static std::vector<TensorView> first_of_each(std::vector<TensorView> views, int64_t stacked) {
    const auto step = static_cast<size_t>(stacked);
    for (size_t i = 0; i < views.size(); ++i) views[i] = views[i / step * step];
    return views;
  }

  std::pair<NamedTensor, NamedTensor> quantize_for_experts(const std::string& local, const NamedTensor& x,
                                                           std::vector<TensorView> input_scales,
                                                           const std::string& name, int64_t stacked, bool per_token,
                                                           const Routing& routing) {
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

  // The routed experts' weights, and the shared one's behind them where it is fused.
  static std::vector<LinearWeight> with_shared(std::vector<LinearWeight> experts,
                                               const std::vector<LinearWeight>& shared) {
    experts.insert(experts.end(), shared.begin(), shared.end());
    return experts;
  }

  NamedTensor moe(const LayerWeights& w, const NamedTensor& x) {
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

  void head() {
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

  void gather(const NamedTensor& from, const NamedTensor& to, const std::string& local) {
    OpBuilder op(op_name(local), -1, ops::GatherRows::kName, kernel(ops::GatherRows::kName, "gather_rows"));
    op.tensor(from).tensor(last_rows_).tensor(to).index_end(ops::GatherRows::kRows, t_);
    add(op);
  }

  const PassContext& context_;
  const EngineConfig& config_;
  const ModelWeights& weights_;
  const ModelConfig& c_;
  Pass& pass_;
  Workspace space_;
  const Dtype activation_;
  std::string missing_;

  int64_t t_ = 0, r_ = 0, columns_ = 0;
  int layer_ = -1;
  int group_ = 0;
  std::string prefix_;
  NamedTensor x_;      // the residual stream
  NamedTensor index_;  // the latest full layer's selection
  NamedTensor shadow_index_;
  NamedTensor input_ids_, seq_lens_, slots_, last_rows_, positions_, row_to_request_, lengths_, page_table_,
      ragged_offsets_, flat_slots_;
};

}  // namespace

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
