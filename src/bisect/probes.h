// The probes of a plan as single workloads, in the order in which they run.
#pragma once

#include <string>
#include <vector>

#include "bisect/task.h"

namespace faultline {

struct Probe {
  enum class Kind : uint8_t { kPrefill, kDecode };
  Kind kind = Kind::kPrefill;
  std::vector<int64_t> lengths;  // prompt tokens of each request
  int64_t steps = 0;             // decode steps after the prompts
  std::string text() const;      // "prefill 17", "decode 40 x 3, 2 steps"
};

// Prefill probes first (one prompt each), then decode probes: every context with every batch size, requests of
// different lengths.
std::vector<Probe> list_probes(const ProbePlan& plan);

// Ids of request `row` of probe `index`.
std::vector<int32_t> probe_tokens(const ProbePlan& plan, uint64_t seed, int64_t vocab, int64_t index, int64_t row,
                                  int64_t length);

int64_t largest_batch(const ProbePlan& plan);
int64_t longest_sequence(const ProbePlan& plan);

}  // namespace faultline
