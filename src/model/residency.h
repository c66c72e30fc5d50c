// Where the weights of a model are while it runs, decided before anything is loaded: in the GPU's memory, in the
// host's, or made (read) each time they are used.
//
// Weights are placed by how often a decode step reads them. What every step reads as a whole (attention, norms, router,
// dense MLP, shared experts, the vocabulary projection) comes first, then the routed experts, layer by layer, of which
// a step reads a few. What does not fit is used through a buffer that all layers share: a layer's experts are fetched
// after routing, those in use alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/checkpoint.h"

namespace faultline {

enum class Residency : uint8_t { kAuto, kGpu, kHost, kStream };
// "auto", "gpu", "host", "stream"; bad input for anything else.
Result<Residency> parse_residency(std::string_view text);
// "24GiB", "24G" (both 2^30), "24GB" (10^9), "500MB", a plain number of bytes. Bad input for anything else and for 0.
Result<uint64_t> parse_bytes(std::string_view text, std::string_view option);

enum class Home : uint8_t { kGpu, kHost, kPerUse };
std::string_view home_name(Home home);  // "GPU", "host memory", "per use"

struct ResidencyRequest {
  Residency residency = Residency::kAuto;
  bool gpu = false;         // there is one (or one is asked about)
  uint64_t gpu_bytes = 0;   // of its memory that may be used, a rank's
  uint64_t host_bytes = 0;  // of the host's, all ranks' together
  int64_t ranks = 1;        // of tensor parallelism: 1, 2, 4 or 8
  bool synthetic = false;   // made on use; else read from files, through the page cache
};

// Weights of one sort with one fate.
struct PlanRow {
  std::string what;  // "routed experts, layers 3 to 19"
  int64_t tensors = 0;
  uint64_t bytes = 0;  // of one rank
  Home home = Home::kGpu;
  std::string reason;
};

struct ResidencyPlan {
  ResidencyRequest request;
  std::vector<PlanRow> rows;
  uint64_t gpu_bytes = 0;                  // resident, a rank
  uint64_t host_bytes = 0;                 // resident, all ranks together
  uint64_t per_use_bytes = 0;              // a rank
  uint64_t buffer_bytes = 0;               // that per-use weights pass through: on the GPU, or on the host without one
  uint64_t reserve_bytes = 0;              // left on the GPU for caches, activations and libraries
  uint64_t step_bytes = 0;                 // that a decode step of one token makes or moves, a rank
  std::vector<int64_t> gpu_expert_layers;  // whose routed experts stay on the GPU
};

// `bytes` of each tensor by name. Cannot-run when nothing can hold what must be resident: the message says what is
// missing. Bad input when the ranks do not divide what tensor parallelism cuts.
struct NamedBytes {
  std::string_view name;
  uint64_t bytes = 0;
};
Result<ResidencyPlan> plan_residency(const ModelConfig& config, const std::vector<NamedBytes>& tensors,
                                     const ResidencyRequest& request);

std::string to_text(const ResidencyPlan& plan);

}  // namespace faultline
