#include "engine/forward.h"

#include <algorithm>

namespace faultline {
namespace {

Status require_clean(const PassOutcome& outcome) {
  if (outcome.fault)
    return internal_error("{} ({}): {}", outcome.fault->op, outcome.fault->kernel, outcome.fault->fault.message);
  if (!outcome.violations.empty()) {
    const EngineViolation& v = outcome.violations.front();
    return internal_error("{} ({}), {}: {} in {}: {}", v.op, v.kernel, pass_phase_name(v.info.phase), v.violation.kind,
                          v.tensor, v.violation.detail);
  }
  return {};
}

// A tensor of the pass where the host can read it.
TensorView seen(const Pass& pass, const TensorView& tensor) {
  return pass.mirror->pull(tensor);
}

void append_row(const TensorView& view, int64_t row, std::vector<float>& out) {
  for (int64_t j = 0; j < view.dim(1); ++j) out.push_back(view.load(view.offset(row, j)));
}

// Copies what the layers leave, while it is there.
class Recorder {
 public:
  Recorder(std::vector<ForwardResult>& results, const std::vector<Sequence>& sequences, size_t layers)
      : results_(results),
        sequences_(sequences),
        hidden_(results.size(), std::vector<std::vector<float>>(layers + 1)) {}

  void layer(const Pass& pass, const PassInfo& info, int layer) {
    if (info.phase != PassPhase::kPrefill) return;
    const auto l = static_cast<size_t>(layer);
    const TensorView embeddings = seen(pass, pass.embeddings);
    const TensorView output = seen(pass, pass.layer_outputs[l]);
    const bool selects = pass.layer_topk[l].data != nullptr;
    const Selection selection = selects ? selection_of(pass, l) : Selection{};
    for_each_row(pass, info, [&](size_t i, int64_t row, int64_t position) {
      if (l == 0) append_row(embeddings, row, hidden_[i][0]);
      if (l + 1 < pass.layer_outputs.size()) append_row(output, row, hidden_[i][l + 1]);
      if (selects) topk(pass, selection, i, layer, row, position);
    });
  }

  void head(const Pass& pass, const PassInfo& info) {
    const TensorView norm = seen(pass, pass.final_norm);
    const TensorView logits = seen(pass, pass.logits);
    for_each_row(pass, info, [&](size_t i, int64_t row, int64_t) {
      append_row(norm, row, hidden_[i].back());
      append_row(logits, row, results_[i].prefill_logits);
    });
  }

  void finish() {
    for (size_t i = 0; i < results_.size(); ++i)
      for (const auto& layer : hidden_[i])
        results_[i].prefill_hidden.insert(results_[i].prefill_hidden.end(), layer.begin(), layer.end());
  }

 private:
  template <class Visit>
  void for_each_row(const Pass& pass, const PassInfo& info, Visit&& visit) {
    const TensorView req_pool = seen(pass, pass.req_pool);
    const TensorView starts = seen(pass, pass.cu_seqlens_q);
    const TensorView lengths = seen(pass, pass.seq_lens);
    for (int64_t r = 0; r < info.live.requests; ++r) {
      size_t i = 0;
      while (sequences_[i].request != req_pool.load_index(r)) ++i;
      const int64_t begin = starts.load_index(r);
      const int64_t end = starts.load_index(r + 1);
      for (int64_t row = begin; row < end; ++row) visit(i, row, lengths.load_index(r) - (end - row));
    }
  }

  struct Selection {
    TensorView indices, row_to_request, ragged_offsets, page_table;
  };
  static Selection selection_of(const Pass& pass, size_t layer) {
    return {seen(pass, pass.layer_topk[layer]), seen(pass, pass.row_to_request), seen(pass, pass.ragged_offsets),
            seen(pass, pass.page_table)};
  }

  // Slots (or rows of a gathered buffer) back to positions.
  void topk(const Pass& pass, const Selection& selection, size_t i, int layer, int64_t row, int64_t position) {
    const auto& [indices, row_to_request, ragged_offsets, page_table] = selection;
    const int64_t request = row_to_request.load_index(row);
    const int64_t base = ragged_offsets.load_index(row);
    auto& out = results_[i].topk[layer];
    for (int64_t j = 0; j < results_[i].topk_width; ++j) {
      const int64_t index = indices.load_index(indices.offset(row, j));
      int64_t found = -1;
      if (index >= 0 && pass.topk_ragged) found = index - base;
      for (int64_t c = 0; index >= 0 && !pass.topk_ragged && c <= position && found < 0; ++c)
        if (page_table.load_index(page_table.offset(request, c)) == index) found = c;
      out.push_back(static_cast<int32_t>(found));
    }
  }

  std::vector<ForwardResult>& results_;
  const std::vector<Sequence>& sequences_;
  std::vector<std::vector<std::vector<float>>> hidden_;  // by prompt, by layer
};

}  // namespace

Result<std::vector<ForwardResult>> run_forward(const ModelWeights& weights, const EngineConfig& config,
                                               const std::vector<std::vector<int32_t>>& prompts, int64_t decode,
                                               HostMirror* mirror) {
  EngineLimits limits;
  limits.max_requests = static_cast<int64_t>(prompts.size());
  for (const auto& prompt : prompts)
    limits.max_context = std::max(limits.max_context, static_cast<int64_t>(prompt.size()) + decode + 1);
  FAULTLINE_TRY(auto engine, Engine::create(weights, config, limits, SamplingParams{}, {}, mirror));
  if (config.cuda_graph) {
    FAULTLINE_TRY(const PassOutcome outcome, engine->capture(limits.max_requests, true));
    FAULTLINE_TRY_STATUS(require_clean(outcome));
  }

  std::vector<Sequence> sequences;
  std::vector<Sequence*> pointers;
  std::vector<ForwardResult> results(prompts.size());
  sequences.reserve(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    FAULTLINE_TRY(Sequence sequence, engine->open(prompts[i]));
    sequences.push_back(std::move(sequence));
    pointers.push_back(&sequences.back());
    results[i].input_ids = prompts[i];
    results[i].vocab = weights.config.vocab_size;
    results[i].hidden = weights.config.hidden_size;
    results[i].topk_width = std::min<int64_t>(weights.config.index_topk, static_cast<int64_t>(prompts[i].size()));
  }

  Recorder recorder(results, sequences, weights.layers.size());
  engine->hooks().on_layer = [&](const Pass& pass, const PassInfo& info, int layer) {
    recorder.layer(pass, info, layer);
  };
  Engine::StepOptions options;
  options.greedy = true;
  options.all_logits = true;
  bool done = false;
  while (!done) {
    FAULTLINE_TRY(const PassOutcome outcome, engine->prefill(pointers, options, done));
    FAULTLINE_TRY_STATUS(require_clean(outcome));
    recorder.head(engine->last_pass(), engine->last_info());
  }
  recorder.finish();

  for (int64_t step = 0; step < decode; ++step) {
    for (size_t i = 0; i < sequences.size(); ++i) results[i].decode_tokens.push_back(sequences[i].tokens.back());
    FAULTLINE_TRY(const PassOutcome outcome, engine->decode(pointers, options));
    FAULTLINE_TRY_STATUS(require_clean(outcome));
    const TensorView logits = engine->host_view(engine->last_pass().logits);
    for (size_t i = 0; i < sequences.size(); ++i) append_row(logits, static_cast<int64_t>(i), results[i].decode_logits);
  }
  return results;
}

}  // namespace faultline
