// The inference engine of one configuration: caches, requests, passes. Made anew for every configuration, in a process
// of its own.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/pass.h"
#include "engine/request_pool.h"
#include "engine/run_pass.h"

namespace faultline {

struct EngineLimits {
  int64_t max_requests = 1;
  int64_t max_context = 64;  // longest sequence, tokens
  int64_t pool_tokens = 0;   // cache capacity; 0: enough for max_requests x max_context
};

// A sequence being served.
struct Sequence {
  int64_t request = -1;         // row in the request pool
  std::vector<int32_t> tokens;  // prompt and everything sampled so far
  int64_t prompt = 0;           // tokens of the prompt
  int64_t cached = 0;           // tokens whose keys are in the caches
};

class Engine {
 public:
  // `weights` lie on the device of `mirror` and are known to it; both outlive the engine. No mirror: the CPU.
  // Errors: memory; a kernel name that this build does not have.
  static Result<std::unique_ptr<Engine>> create(const ModelWeights& weights, const EngineConfig& config,
                                                const EngineLimits& limits, const SamplingParams& sampling,
                                                EngineHooks hooks = {}, HostMirror* mirror = nullptr);
  ~Engine();

  Result<Sequence> open(std::vector<int32_t> prompt);
  void close(Sequence& sequence);

  struct StepOptions {
    bool greedy = false;
    bool all_logits = false;
    bool warmup = false;
    bool commit = true;  // append the sampled token to each sequence
  };
  // Runs the next pass of a prefill: up to config.chunk new tokens (0: all) over the sequences in order. `done` is set
  // when no uncached prompt token is left. Only complete sequences get a sampled token.
  Result<PassOutcome> prefill(std::span<Sequence*> sequences, const StepOptions& options, bool& done);
  // One decode step: every sequence's last token is fed, the next one sampled.
  Result<PassOutcome> decode(std::span<Sequence*> sequences, const StepOptions& options);
  // cuda_graph: on — records the decode pass of each batch bucket up to `largest`, as the server does at its start: one
  // run of its own to warm up, then the capture. The outcome is not clean when the warm-up run broke the device.
  Result<PassOutcome> capture(int64_t largest, bool greedy_too);

  // The pass of a shape as it would be run: for looking at, until the next call.
  Result<const Pass*> build(const PassShape& shape);

  // The last pass that ran: its tensors hold what the ops left.
  const Pass& last_pass() const { return *last_; }
  // Its op on the host's views, with the bytes that lie there now.
  const Op& host_op(int index);
  // A tensor of the last pass as the host sees it now.
  TensorView host_view(const TensorView& tensor) { return mirror_->pull(tensor); }
  Device& device() { return mirror_->device(); }
  const PassInfo& last_info() const { return info_; }
  EngineHooks& hooks() { return hooks_; }
  const EngineConfig& config() const { return config_; }
  RunState& state() { return state_; }

 private:
  Engine(const ModelWeights& weights, const EngineConfig& config, const EngineLimits& limits,
         const SamplingParams& sampling, EngineHooks hooks, HostMirror* mirror);
  Status allocate();
  Result<std::unique_ptr<Buffer>> memory(size_t bytes);
  void drop(std::unique_ptr<Pass>& pass);
  struct Rows {
    Sequence* sequence;
    int64_t begin;  // first new position
    int64_t count;
  };
  Result<PassOutcome> run(std::span<const Rows> rows, PassPhase phase, const StepOptions& options);
  Result<Pass*> pass_for(const PassShape& shape, bool keep);

  const ModelWeights& weights_;
  EngineConfig config_;
  EngineLimits limits_;
  SamplingParams sampling_;
  EngineHooks hooks_;
  std::unique_ptr<Device> own_device_;
  std::unique_ptr<HostMirror> own_mirror_;
  HostMirror* mirror_;
  PoolShape pool_shape_;
  std::unique_ptr<Buffer> req_to_token_memory_;
  TensorView req_to_token_;
  std::unique_ptr<RequestPool> pool_;
  Caches caches_;
  std::vector<std::unique_ptr<Pass>> recorded_;  // graph buckets: static buffers, kept
  std::unique_ptr<Pass> eager_;                  // the latest eager shape
  Pass* last_ = nullptr;
  std::unique_ptr<Op> host_op_;  // of last_, on a GPU
  PassInfo info_;
  RunState state_;
  std::map<PassPhase, int64_t> steps_;
  int64_t samples_ = 0;
};

// The decode batch sizes that the server captures, up to `largest` (sglang: 1, 2, 4, 8, then steps of 8).
std::vector<int64_t> graph_buckets(int64_t largest);

}  // namespace faultline
