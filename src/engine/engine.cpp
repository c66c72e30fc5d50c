#include "engine/engine.h"

#include <algorithm>

#include "base/rng.h"
#ifdef FAULTLINE_HAVE_CUDA
#include "engine/cuda_stream_pass.h"
#endif

namespace faultline {
namespace {

// What the scheduler writes before each pass, by the names of its tensors.
struct BatchInput {
  const char* name;
  TensorView Pass::*tensor;
};
constexpr BatchInput kBatchInputs[] = {
    {"batch.req_pool_indices", &Pass::req_pool}, {"batch.seq_lens", &Pass::seq_lens},
    {"batch.cu_seqlens_q", &Pass::cu_seqlens_q}, {"batch.input_ids", &Pass::input_ids},
    {"batch.out_cache_loc", &Pass::slots},       {"batch.last_rows", &Pass::last_rows},
    {"batch.live_requests", &Pass::live},        {"batch.req_to_token", &Pass::req_to_token}};

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::vector<int64_t> graph_buckets(int64_t largest) {
  std::vector<int64_t> buckets;
  for (int64_t size = 1;; size = size < 8 ? size * 2 : size + 8) {
    buckets.push_back(size);
    if (size >= largest) return buckets;
  }
}

Engine::Engine(const ModelWeights& weights, const EngineConfig& config, const EngineLimits& limits,
               const SamplingParams& sampling, EngineHooks hooks, HostMirror* mirror)
    : weights_(weights),
      config_(config),
      limits_(limits),
      sampling_(sampling),
      hooks_(std::move(hooks)),
      own_device_(mirror == nullptr ? make_cpu_device() : nullptr),
      own_mirror_(mirror == nullptr ? std::make_unique<HostMirror>(*own_device_) : nullptr),
      mirror_(mirror == nullptr ? own_mirror_.get() : mirror) {
  state_.seed = config.seed;
}

Engine::~Engine() {
  for (auto& pass : recorded_) drop(pass);
  drop(eager_);
}

Result<std::unique_ptr<Engine>> Engine::create(const ModelWeights& weights, const EngineConfig& config,
                                               const EngineLimits& limits, const SamplingParams& sampling,
                                               EngineHooks hooks, HostMirror* mirror) {
  std::unique_ptr<Engine> engine(new Engine(weights, config, limits, sampling, std::move(hooks), mirror));
  FAULTLINE_TRY_STATUS(engine->allocate());
  return engine;
}

// Memory that outlives a pass, known to the mirror.
Result<std::unique_ptr<Buffer>> Engine::memory(size_t bytes) {
  FAULTLINE_TRY(auto buffer, device().allocate(bytes));
  mirror_->add(buffer->data(), bytes);
  return buffer;
}

void Engine::drop(std::unique_ptr<Pass>& pass) {
  if (pass == nullptr) return;
  for (const auto& buffer : pass->buffers) mirror_->remove(buffer->data());
  if (last_ == pass.get()) {
    last_ = nullptr;
    host_op_.reset();
  }
  pass.reset();
}

const Op& Engine::host_op(int index) {
  const Op& op = last_->ops[static_cast<size_t>(index)];
  if (!last_->on_gpu()) return op;
  mirror_->pull(op);
  host_op_ = std::make_unique<Op>(mirror_->mirrored(op));
  return *host_op_;
}

Status Engine::allocate() {
  const ModelConfig& c = weights_.config;
  const int64_t page = config_.page_size;
  const int64_t pages_per_request = round_up(limits_.max_context, page) / page;
  const int64_t needed = limits_.max_requests * pages_per_request * page;
  const int64_t wanted = config_.max_total_tokens > 0 ? config_.max_total_tokens
                                                      : (limits_.pool_tokens > 0 ? limits_.pool_tokens : needed);
  if (config_.max_total_tokens > 0 && config_.max_total_tokens < needed)
    return bad_input(
        "max_total_tokens: a pool of {} tokens is too small for the probes, which need {} ({} requests of up to {} "
        "tokens, in pages of {}): raise it, or shorten the probes",
        config_.max_total_tokens, needed, limits_.max_requests, limits_.max_context, page);
  pool_shape_.page_size = page;
  pool_shape_.slots = round_up(wanted, page) + page;  // and the dummy page
  pool_shape_.max_requests = limits_.max_requests;
  pool_shape_.max_context = pages_per_request * page;
  FAULTLINE_TRY(req_to_token_memory_,
                memory(static_cast<size_t>(pool_shape_.max_requests * pool_shape_.max_context) * 4));
  req_to_token_ =
      make_view(req_to_token_memory_->data(), Dtype::kI32, {pool_shape_.max_requests, pool_shape_.max_context});
  pool_ = std::make_unique<RequestPool>(pool_shape_, mirror_->view(req_to_token_), config_.seed,
                                        config_.high_slots ? SlotPlacement::kHigh : SlotPlacement::kShuffled);

  const auto geometry = [&](Format format, int64_t latent, int64_t rope) {
    CacheGeometry result;
    result.format = format;
    result.slots = pool_shape_.slots;
    result.page_size = page;
    result.latent = latent;
    result.rope = rope;
    return result;
  };
  const bool f32 = config_.kv_format == Format::kKvF32;
  caches_.kv = geometry(config_.kv_format, c.kv_lora_rank, c.qk_rope_head_dim);
  caches_.index = geometry(f32 ? Format::kIndexF32 : Format::kIndexFp8, c.index_head_dim, 0);
  caches_.shadow_kv = geometry(Format::kKvF32, c.kv_lora_rank, c.qk_rope_head_dim);
  caches_.shadow_index = geometry(Format::kIndexF32, c.index_head_dim, 0);
  const bool shadow = config_.checks == CheckLevel::kReference && !config_.indexer && !config_.reference_kernels;
  for (const LayerWeights& layer : weights_.layers) {
    const auto add = [&](std::vector<std::unique_ptr<Buffer>>& to, const CacheGeometry& shape,
                         bool wanted_here) -> Status {
      to.emplace_back();
      if (!wanted_here) return {};
      FAULTLINE_TRY(to.back(), memory(static_cast<size_t>(shape.total_bytes())));
      return {};
    };
    FAULTLINE_TRY_STATUS(add(caches_.kv_layers, caches_.kv, true));
    FAULTLINE_TRY_STATUS(add(caches_.index_layers, caches_.index, layer.has_indexer && config_.indexer));
    FAULTLINE_TRY_STATUS(add(caches_.shadow_kv_layers, caches_.shadow_kv, shadow));
    FAULTLINE_TRY_STATUS(add(caches_.shadow_index_layers, caches_.shadow_index, shadow && layer.has_indexer));
  }
  return {};
}

Result<Sequence> Engine::open(std::vector<int32_t> prompt) {
  if (prompt.empty()) return bad_input("a prompt has no tokens");
  for (const int32_t id : prompt)
    if (id < 0 || id >= weights_.config.vocab_size)
      return bad_input("token id {} is outside the vocabulary of {}", id, weights_.config.vocab_size);
  Sequence sequence;
  FAULTLINE_TRY(sequence.request, pool_->admit());
  sequence.prompt = static_cast<int64_t>(prompt.size());
  sequence.tokens = std::move(prompt);
  return sequence;
}

void Engine::close(Sequence& sequence) {
  pool_->release(sequence.request);
  sequence.request = -1;
}

Result<PassOutcome> Engine::prefill(std::span<Sequence*> sequences, const StepOptions& options, bool& done) {
  std::vector<Rows> rows;
  int64_t budget = config_.chunk > 0 ? config_.chunk : INT64_MAX;
  for (Sequence* sequence : sequences) {
    const int64_t count = std::min(sequence->prompt - sequence->cached, budget);
    if (count <= 0) continue;
    rows.push_back({sequence, sequence->cached, count});
    budget -= count;
  }
  FAULTLINE_CHECK(!rows.empty());
  FAULTLINE_TRY(PassOutcome outcome, run(rows, PassPhase::kPrefill, options));
  done = std::all_of(sequences.begin(), sequences.end(),
                     [](const Sequence* sequence) { return sequence->cached >= sequence->prompt; });
  return outcome;
}

Result<PassOutcome> Engine::decode(std::span<Sequence*> sequences, const StepOptions& options) {
  std::vector<Rows> rows;
  for (Sequence* sequence : sequences) {
    FAULTLINE_CHECK(sequence->cached + 1 == static_cast<int64_t>(sequence->tokens.size()));
    rows.push_back({sequence, sequence->cached, 1});
  }
  return run(rows, PassPhase::kDecode, options);
}

Result<PassOutcome> Engine::capture(int64_t largest, bool greedy_too) {
  for (const int64_t bucket : graph_buckets(largest))
    for (const bool greedy : {false, true}) {
      if (greedy && !greedy_too) continue;
      PassShape shape;
      shape.phase = PassPhase::kDecode;
      shape.tokens = bucket;
      shape.requests = bucket;
      shape.has_prefix = true;
      shape.greedy = greedy;
      FAULTLINE_TRY(Pass * pass, pass_for(shape, true));
      last_ = pass;
#ifdef FAULTLINE_HAVE_CUDA
      if (!pass->on_gpu()) continue;
      info_ = PassInfo{PassPhase::kDecode, 0, {}, true, true};
      FAULTLINE_TRY(PassOutcome outcome, record_pass(*pass, info_, config_.checks, hooks_));
      if (!outcome.clean()) return outcome;
#endif
    }
  return PassOutcome{};
}

Result<const Pass*> Engine::build(const PassShape& shape) {
  FAULTLINE_TRY(Pass * pass, pass_for(shape, false));
  return pass;
}

Result<Pass*> Engine::pass_for(const PassShape& shape, bool keep) {
  if (keep)
    for (const auto& pass : recorded_)
      if (pass->shape == shape) return pass.get();
  if (!keep && eager_ != nullptr && eager_->shape == shape) return eager_.get();
  PassContext context;
  context.weights = &weights_;
  context.config = &config_;
  context.sampling = sampling_;
  context.pool = pool_shape_;
  context.caches = &caches_;
  context.req_to_token = req_to_token_;
  context.device = &device();
  if (!keep) drop(eager_);
  FAULTLINE_TRY(auto pass, build_pass(context, shape));
  pass->mirror = mirror_;
  for (const auto& buffer : pass->buffers) mirror_->add(buffer->data(), buffer->bytes());
#ifdef FAULTLINE_HAVE_CUDA
  if (pass->on_gpu() && !hooks_.op_by_op && config_.checks > CheckLevel::kOff &&
      config_.checks < CheckLevel::kReference) {
    FAULTLINE_TRY(pass->checks, make_device_checks(*pass, config_.checks, !hooks_.no_poison, hooks_.device_page,
                                                   hooks_.device_page_there));
  }
#endif
  if (keep) {
    // Static buffers: what a padded row finds there at first is what the server's capture leaves (zeros, lengths of
    // one).
    const TensorView seq_lens = mirror_->view(pass->seq_lens);
    const TensorView cu_seqlens = mirror_->view(pass->cu_seqlens_q);
    for (int64_t i = 0; i < shape.requests; ++i) {
      seq_lens.store_index(i, 1);
      cu_seqlens.store_index(i, i);
    }
    cu_seqlens.store_index(shape.requests, shape.requests);
    mirror_->push(pass->seq_lens);
    mirror_->push(pass->cu_seqlens_q);
    recorded_.push_back(std::move(pass));
    return recorded_.back().get();
  }
  eager_ = std::move(pass);
  return eager_.get();
}

Result<PassOutcome> Engine::run(std::span<const Rows> rows, PassPhase phase, const StepOptions& options) {
  int64_t tokens = 0;
  bool prefix = false;
  for (const Rows& row : rows) {
    tokens += row.count;
    prefix = prefix || row.begin > 0;
    FAULTLINE_TRY_STATUS(pool_->grow(row.sequence->request, row.begin + row.count));
  }
  const bool graph = config_.cuda_graph && phase == PassPhase::kDecode;
  PassShape shape;
  shape.phase = phase;
  shape.tokens = graph ? graph_buckets(tokens).back() : tokens;
  shape.requests = graph ? shape.tokens : static_cast<int64_t>(rows.size());
  shape.has_prefix = prefix;
  shape.greedy = options.greedy;
  shape.all_logits = options.all_logits;
  FAULTLINE_TRY(Pass * pass, pass_for(shape, graph));

  const TensorView req_pool = mirror_->view(pass->req_pool);
  const TensorView seq_lens = mirror_->view(pass->seq_lens);
  const TensorView cu_seqlens_q = mirror_->view(pass->cu_seqlens_q);
  const TensorView input_ids = mirror_->view(pass->input_ids);
  const TensorView slots = mirror_->view(pass->slots);
  const TensorView last_rows = mirror_->view(pass->last_rows);
  int64_t at = 0;
  const auto requests = static_cast<int64_t>(rows.size());
  for (int64_t r = 0; r < requests; ++r) {
    const Rows& row = rows[static_cast<size_t>(r)];
    req_pool.store_index(r, row.sequence->request);
    seq_lens.store_index(r, row.begin + row.count);
    cu_seqlens_q.store_index(r, at);
    for (int64_t i = 0; i < row.count; ++i, ++at) {
      input_ids.store_index(at, row.sequence->tokens[static_cast<size_t>(row.begin + i)]);
      slots.store_index(at, pool_->slot(row.sequence->request, row.begin + i));
    }
    last_rows.store_index(r, at - 1);
  }
  mirror_->view(pass->live).store_index(0, requests);
  // Padded rows as the server's graph runner leaves them: length 1, output slot 0; ids, request rows and positions stay
  // stale.
  for (int64_t r = requests; r < shape.requests; ++r, ++at) {
    seq_lens.store_index(r, 1);
    cu_seqlens_q.store_index(r, at);
    slots.store_index(at, 0);
    last_rows.store_index(r, at);
  }
  cu_seqlens_q.store_index(shape.requests, at);
  if (pass->uniform.data != nullptr) {
    const CounterRng rng(config_.seed, "sampling");
    float* uniform = mirror_->view(pass->uniform).as<float>();
    for (int64_t r = 0; r < shape.requests; ++r) uniform[r] = rng.uniform(static_cast<uint64_t>(samples_++));
    mirror_->push(pass->uniform);
  }

  for (const BatchInput& input : kBatchInputs) mirror_->push(pass->*input.tensor);
  const bool refresh = graph && !hooks_.refresh.empty();
  if (refresh) {
    // A fault that shows here shows again in the pass, where it is reported.
    (void)device().wait();
    for (const BatchInput& input : kBatchInputs)
      if (hooks_.refresh.count(input.name) != 0) mirror_->push(pass->*input.tensor);
    (void)device().wait();
  }

  info_ =
      PassInfo{phase, steps_[phase]++, {tokens, requests}, graph, options.warmup, refresh ? &hooks_.refresh : nullptr};
  last_ = pass;
  PassOutcome outcome = run_pass(*pass, info_, config_.checks, hooks_, state_);
  if (!outcome.clean()) return outcome;
  const TensorView sampled = mirror_->pull(pass->tokens);
  for (int64_t r = 0; r < requests; ++r) {
    Sequence& sequence = *rows[static_cast<size_t>(r)].sequence;
    sequence.cached += rows[static_cast<size_t>(r)].count;
    if (options.commit && sequence.cached == static_cast<int64_t>(sequence.tokens.size())) {
      // The sampled id is checked above level off; below it, a broken sampler's id must not index past the embedding.
      const int64_t token = sampled.load_index(r);
      sequence.tokens.push_back(static_cast<int32_t>(std::clamp<int64_t>(token, 0, weights_.config.vocab_size - 1)));
    }
  }
  return outcome;
}

}  // namespace faultline
