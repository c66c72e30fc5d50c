// Loops spread over threads. A process has one thread unless it asks for more: workers under test run beside each
// other, one a core.
#pragma once

#include <cstdint>
#include <functional>

namespace faultline {

// How many threads parallel_for uses, the caller's included; at least 1. Threads are started at the first loop that
// needs them and stay.
void set_parallel_threads(int threads);
int parallel_threads();

// work(i) for every i in [0, count), in any order, each once; returns when all are done. A loop within a loop, or one
// that another thread begins meanwhile, runs in its caller's thread alone.
void parallel_for(int64_t count, const std::function<void(int64_t)>& work);

}  // namespace faultline
