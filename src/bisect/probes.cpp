#include "bisect/probes.h"

#include <algorithm>

#include "base/rng.h"

namespace faultline {
namespace {

// Requests of one decode batch differ by this much, so that their lengths straddle page and top-k at different steps.
constexpr int64_t kLengthStep = 3;

}  // namespace

std::string Probe::text() const {
  if (kind == Kind::kPrefill) return fmt::format("prefill {}", lengths.front());
  return fmt::format("decode {} x {}, {} steps", lengths.front(), lengths.size(), steps);
}

std::vector<Probe> list_probes(const ProbePlan& plan) {
  std::vector<Probe> probes;
  for (const int64_t length : plan.prefill_lengths) probes.push_back({Probe::Kind::kPrefill, {length}, 0});
  for (const int64_t context : plan.contexts)
    for (const int64_t batch : plan.batch) {
      Probe probe{Probe::Kind::kDecode, {}, plan.steps};
      for (int64_t i = 0; i < batch; ++i) probe.lengths.push_back(std::max<int64_t>(1, context - kLengthStep * i));
      probes.push_back(std::move(probe));
    }
  return probes;
}

std::vector<int32_t> probe_tokens(const ProbePlan& plan, uint64_t seed, int64_t vocab, int64_t index, int64_t row,
                                  int64_t length) {
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(length));
  const CounterRng rng(seed, fmt::format("tokens.{}.{}", index, row));
  const auto any = [&](int64_t i) {
    return static_cast<int32_t>(rng.below(static_cast<uint64_t>(i), static_cast<uint32_t>(vocab)));
  };
  for (int64_t i = 0; i < length; ++i) {
    if (plan.tokens == "file")
      ids.push_back(plan.ids[static_cast<size_t>(i) % plan.ids.size()]);
    else
      ids.push_back(plan.tokens == "repeat" ? any(0) : any(i));
  }
  return ids;
}

int64_t largest_batch(const ProbePlan& plan) {
  int64_t largest = 1;
  for (const int64_t batch : plan.batch) largest = std::max(largest, batch);
  return largest;
}

int64_t longest_sequence(const ProbePlan& plan) {
  int64_t longest = 1;
  for (const int64_t length : plan.prefill_lengths) longest = std::max(longest, length + 1);
  for (const int64_t context : plan.contexts) longest = std::max(longest, context + plan.steps + 1);
  return longest;
}

}  // namespace faultline
