// What the parts of faultline_bench share. A part prints its own lines.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/error.h"

namespace faultline::bench {

// Seconds of the fastest of a few calls: on a shared machine the others measure the neighbours.
template <class Work>
double fastest_seconds(const Work& work) {
  constexpr int kCalls = 7;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kCalls; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void products();
// Error: a worker did not do its task.
Status workers();

}  // namespace faultline::bench
