// One forward pass as a list of ops, built once for a (configuration, batch shape) and run by one function (run_pass).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "check/device_checks.h"
#include "check/violation.h"
#include "device/device.h"
#include "engine/config.h"
#include "engine/host_mirror.h"
#include "engine/weights.h"
#include "ops/op.h"

namespace faultline {

enum class PassPhase : uint8_t { kPrefill, kDecode };
inline const char* pass_phase_name(PassPhase phase) {
  return phase == PassPhase::kPrefill ? "prefill" : "decode";
}

// The rows of a pass. `tokens` and `requests` are what the buffers hold; a padded replay has fewer live ones.
struct PassShape {
  PassPhase phase = PassPhase::kPrefill;
  int64_t tokens = 0;
  int64_t requests = 0;
  bool has_prefix = false;  // a request already has cached tokens
  bool greedy = false;
  bool all_logits = false;  // lm_head on every token row, not only on each request's last
  bool operator==(const PassShape&) const = default;
};

struct SamplingParams {
  double temperature = 1.0;
  double top_p = 1.0;
};

// The paged caches of one engine: one latent cache a layer, one index cache a layer that has an indexer.
struct Caches {
  CacheGeometry kv;
  CacheGeometry index;
  std::vector<std::unique_ptr<Buffer>> kv_layers;
  std::vector<std::unique_ptr<Buffer>> index_layers;      // null where the layer has no indexer
  std::vector<std::unique_ptr<Buffer>> shadow_kv_layers;  // f32, under checks: reference for rows without DSA
  std::vector<std::unique_ptr<Buffer>> shadow_index_layers;
  CacheGeometry shadow_kv;
  CacheGeometry shadow_index;
};

// Sizes that do not change over an engine's life.
struct PoolShape {
  int64_t slots = 0;  // a multiple of the page size; page 0 is the dummy that padded rows write to
  int64_t page_size = 64;
  int64_t max_requests = 0;  // rows of req_to_token
  int64_t max_context = 0;   // columns of req_to_token and of the page table
};

// Stretches of a recorded pass on a GPU: launches captured into a graph, and between them ops that the host has a hand
// in (a planted fault's, a reference's without a device form).
struct PassSegment {
  int begin = 0;  // ops [begin, end)
  int end = 0;
  std::unique_ptr<DeviceGraph> graph;  // null: run one by one
};

struct Pass {
  PassShape shape;
  std::vector<Op> ops;
  std::vector<int>
      group;  // one an op: ops of one group are poisoned and checked together (a layer, the head, the sampler)
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<std::string> buffer_names;
  HostMirror* mirror = nullptr;          // never null once the engine has built the pass
  std::shared_ptr<DeviceChecks> checks;  // on a GPU, above level off and below reference
  std::vector<PassSegment> segments;     // on a GPU, once recorded

  // Filled in by the scheduler before each run.
  TensorView input_ids, req_to_token, req_pool, seq_lens, cu_seqlens_q, slots, last_rows, live, uniform;
  // Read after a run.
  TensorView embeddings, logits, probabilities, tokens, final_norm;
  std::vector<TensorView> layer_outputs;
  std::vector<TensorView> layer_topk;  // null views where the layer selects nothing itself
  TensorView page_table, row_to_request, ragged_offsets;
  bool topk_ragged = false;  // selections are rows of a contiguous buffer, not slots

  const Op* find(const std::string& name) const;
  bool on_gpu() const { return mirror != nullptr && mirror->device().is_cuda(); }
};

struct PassContext {
  const ModelWeights* weights = nullptr;
  const EngineConfig* config = nullptr;
  SamplingParams sampling;
  PoolShape pool;
  const Caches* caches = nullptr;
  TensorView req_to_token;
  Device* device = nullptr;
};

// Builds the op list. Errors: a kernel that this build does not have, out of memory.
Result<std::unique_ptr<Pass>> build_pass(const PassContext& context, const PassShape& shape);

// The engine's stand-in for a kernel: the kind's model reference. Never null.
const Kernel* reference_kernel(std::string_view kind);

}  // namespace faultline
