// MLA with its cache and the indexer, and the model's own selection beside a row that does without (the shadow).
#include <cmath>

#include "engine/glm_builder.h"

namespace faultline {
namespace {

constexpr double kLatentNormEpsTransformers = 1e-6;  // q_a_layernorm / kv_a_layernorm: the class default there
constexpr double kIndexNormEps = 1e-6;               // indexer.k_norm (transformers glm_moe_dsa, sglang nsa_indexer)
constexpr int64_t kSplits = 4;                       // flashmla_kv: KV splits a row

}  // namespace

NamedTensor GlmBuilder::attention(const LayerWeights& w, const std::string& wp, const NamedTensor& h) {
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
  OpBuilder up(op_name("self_attn.v_up"), layer_, ops::BatchedLinear::kName, kernel(ops::BatchedLinear::kName, "bmm"));
  up.tensor(o_latent).weight(w.w_uv, w.kv_b_name + ".weight").tensor(o).set("weight_kn", false);
  add(up);
  NamedTensor out = activation("self_attn.out", {t_, c_.hidden_size});
  const NamedTensor o_flat = activation("self_attn.o", {t_, heads * c_.v_head_dim});
  linear("self_attn.o_proj", o_flat, {w.o}, out, config_.fp4_linear);
  return out;
}

NamedTensor GlmBuilder::layer_cache(const std::vector<std::unique_ptr<Buffer>>& buffers, const std::string& local,
                                    const CacheGeometry& geometry) {
  const auto& buffer = buffers[static_cast<size_t>(layer_)];
  return {make_view(buffer->data(), Dtype::kU8, {geometry.total_bytes()}), prefix_ + local};
}

void GlmBuilder::write_cache(const std::string& local, const NamedTensor& rows, const NamedTensor& cache,
                             const CacheGeometry& geometry, bool shadow) {
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
NamedTensor GlmBuilder::indexer(const LayerWeights& w, const std::string& ap, const NamedTensor& h,
                                const NamedTensor& qr, bool shadow) {
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
  rope(lp + "rope_q", as_heads(q, n, d), q_rope, interleaved, c_.indexer_rope_interleave, own(ops::Rope::kName, "rope"),
       shadow);
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

bool GlmBuilder::shadow_wanted() const {
  return config_.checks == CheckLevel::kReference && !config_.indexer && !config_.reference_kernels;
}

void GlmBuilder::shadow(const LayerWeights& w, const std::string& ap, const NamedTensor& h, const NamedTensor& qr,
                        const NamedTensor& kv_rows) {
  const NamedTensor cache =
      layer_cache(context_.caches->shadow_kv_layers, "shadow.kv_cache", context_.caches->shadow_kv);
  write_cache("shadow.kv_write", kv_rows, cache, context_.caches->shadow_kv, true);
  if (w.has_indexer) shadow_index_ = indexer(w, ap, h, qr, true);
}

// The server's indexer takes codes of queries and keys alike; a float cache has none.
bool GlmBuilder::fp8_queries(const CacheGeometry& index) const {
  return config_.index_query_fp8 && index.format == Format::kIndexFp8;
}

void GlmBuilder::attend(const NamedTensor& kv_rows, const NamedTensor& pool, const NamedTensor& q,
                        const NamedTensor& out) {
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
    op.tensor(page_table_).tensor(row_to_request_).tensor(lengths_).tensor(ragged_offsets_).tensor(scratch).tensor(out);
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

}  // namespace faultline
