// GLM-5's forward pass put together op by op. One class; its parts by file:
//   build_pass.cpp      the order of a pass: batch, layers, head, sampler
//   glm_attention.cpp   MLA, the indexer, the cache, attention, and their shadow under checks: reference
//   glm_moe.cpp         dense MLP, router, routed and shared experts
//   glm_products.cpp    what all of them use: products, quantisation, norms, RoPE
// The kinds and their operand orders are in ops/kinds.h; what each resolved setting changes is in engine/config.h.
#pragma once

#include "engine/op_builder.h"
#include "ops/kinds.h"

namespace faultline {

class GlmBuilder {
 public:
  GlmBuilder(const PassContext& context, Pass& pass);
  Status build();

 private:
  // How the selection of keys is given to attention (ops/kinds.h).
  enum IndexForm : int64_t { kPositions = 0, kPaged = 1, kRagged = 2 };

  // What the products of a layer's routed experts have in common: `k` experts a token, the shared one included where it
  // is fused.
  struct Routing {
    int64_t k;
    NamedTensor ids, order, offsets;
  };

  const Kernel* kernel(std::string_view kind, std::string_view own);
  void add(Op op);
  void add(OpBuilder& op) { add(op.take()); }
  NamedTensor activation(const std::string& local, std::initializer_list<int64_t> shape);
  NamedTensor typed(const std::string& local, Dtype dtype, std::initializer_list<int64_t> shape);
  std::string op_name(const std::string& local) const { return prefix_ + local; }

  // Projections of one input, side by side in `out`. One op where their precisions agree, else one each.
  void linear(const std::string& local, const NamedTensor& x, const std::vector<LinearWeight>& weights,
              const NamedTensor& out, const std::string& fp4_choice);
  std::pair<NamedTensor, NamedTensor> quantize(const std::string& local, const NamedTensor& x,
                                               std::vector<TensorView> input_scales, const std::string& name,
                                               int64_t rows_per_token = 1);
  void rmsnorm(const std::string& local, const NamedTensor& x, const TensorView& weight, const std::string& weight_name,
               const NamedTensor& out, double eps);
  void rope(const std::string& local, const NamedTensor& x, const NamedTensor& out, bool interleaved,
            bool model_interleaved, const Kernel* kernel_, bool shadow);
  void add_op(const std::string& local, const NamedTensor& a, const NamedTensor& b, const NamedTensor& out);
  void gather(const NamedTensor& from, const NamedTensor& to, const std::string& local);

  void begin();
  void layer(int l);
  void head();

  NamedTensor attention(const LayerWeights& w, const std::string& wp, const NamedTensor& h);
  NamedTensor layer_cache(const std::vector<std::unique_ptr<Buffer>>& buffers, const std::string& local,
                          const CacheGeometry& geometry);
  void write_cache(const std::string& local, const NamedTensor& rows, const NamedTensor& cache,
                   const CacheGeometry& geometry, bool shadow = false);
  // Selects the top-k of each row. The shadow variant computes the model's own selection in float32 beside the run.
  NamedTensor indexer(const LayerWeights& w, const std::string& ap, const NamedTensor& h, const NamedTensor& qr,
                      bool shadow);
  bool shadow_wanted() const;
  void shadow(const LayerWeights& w, const std::string& ap, const NamedTensor& h, const NamedTensor& qr,
              const NamedTensor& kv_rows);
  // The server's indexer takes codes of queries and keys alike; a float cache has none.
  bool fp8_queries(const CacheGeometry& index) const;
  bool prefill() const { return pass_.shape.phase == PassPhase::kPrefill; }
  bool from_rows() const { return prefill() && config_.prefill_from_rows && !pass_.shape.has_prefix; }
  bool gathers() const { return prefill() && config_.prefill_gathers && pass_.shape.has_prefix; }
  IndexForm index_form() const { return from_rows() || gathers() ? kRagged : kPaged; }
  void attend(const NamedTensor& kv_rows, const NamedTensor& pool, const NamedTensor& q, const NamedTensor& out);

  NamedTensor dense_mlp(const std::string& module, const std::vector<LinearWeight>& gate_up, const LinearWeight& down,
                        const NamedTensor& x);
  void expert_linear(const std::string& local, const NamedTensor& x, const std::vector<LinearWeight>& weights,
                     int64_t stacked, bool per_token, const Routing& routing, const NamedTensor& out);
  std::pair<NamedTensor, NamedTensor> quantize_for_experts(const std::string& local, const NamedTensor& x,
                                                           std::vector<TensorView> input_scales,
                                                           const std::string& name, int64_t stacked, bool per_token,
                                                           const Routing& routing);
  NamedTensor moe(const LayerWeights& w, const NamedTensor& x);

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

}  // namespace faultline
