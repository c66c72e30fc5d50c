// One kernel body, two compilers: the thin layer over which a body is written.
//
// A body is a functor with
//     template <class Block> FAULTLINE_HD void operator()(Block& block) const;
// and uses only
//     block.index(axis)                    the block's position in the grid
//     block.threads()                      threads a block
//     block.for_each_thread([&](int t){})  one phase; a barrier follows it
//     block.template shared<T>(count)      an array that the block's threads share (uninitialised: NaN on the host)
//     PerThread<T, Block> x(block); x[t]   one T a thread, alive across phases
//     block.sum(x), block.max(x)           reductions of a PerThread<float>, the same result for every thread
//     block.atomic_add(pointer, value)     returns the old value
//     block.place(t)                       where we are, for the views' records
// A body with a type HostOnly is not compiled for a GPU (a test's). Where a profile showed a body to be too slow there,
// a CUDA-only one takes its place in the unchecked build: bool cuda_faster(const LaunchContext&, Grid, const Body&),
// declared beside the body and defined in kernels/cuda_*.cu; false where shape, type or alignment are not its own.
//
// The host runs the threads of a phase one after another in a seeded random order (LaunchContext::seed), so that a
// missing barrier shows. nvcc compiles the same body with one CUDA thread a thread (cuda_launch.cuh); what stands
// outside the phases is then run by every thread, so it must not write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/codec.h"
#include "kernels/view.h"

namespace faultline::kernels {

struct Grid {
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;
};

struct LaunchContext {
  uint64_t seed = 0;         // order of threads and blocks on the host
  AccessLog* log = nullptr;  // of the checked build; where the kernel can write
  bool cuda = false;         // the operands lie in a GPU's memory, and the launch goes to `stream`
  void* stream = nullptr;    // cudaStream_t
  bool plain = false;        // the single-source body even where a CUDA-only one is faster (its twin, for tests)
};

// A launch on the GPU. Defined in cuda_launch.cuh, instantiated in kernels/*.cu for every body that is launched. A
// launch that CUDA refuses (grid, shared memory, no code for the architecture) is kept for take_launch_error.
template <class Body>
void cuda_launch(const LaunchContext& context, Grid grid, int threads, size_t shared_bytes, const Body& body);

// The first refused launch of this thread since the last call, in words; nullptr when there was none. The text lives
// until the next refusal.
const char* take_launch_error();
void note_launch_error(const char* text);

class HostBlock {
 public:
  HostBlock(Grid grid, int threads, size_t shared_bytes, uint64_t seed);

  int64_t index(int axis) const { return axis == 0 ? x_ : (axis == 1 ? y_ : z_); }
  int threads() const { return threads_; }

  template <class Phase>
  void for_each_thread(Phase&& phase) {
    for (const int t : order_) {
      place_.thread = t;
      phase(t);
    }
    shuffle();
  }

  template <class T>
  T* shared(int64_t count) {
    return static_cast<T*>(take_shared(static_cast<size_t>(count) * sizeof(T), alignof(T)));
  }
  template <class T>
  T atomic_add(T* pointer, T value) {
    const T old = *pointer;
    *pointer = old + value;
    return old;
  }
  template <class Values>
  float sum(const Values& values) const {
    float result = 0;
    for (int t = 0; t < threads_; ++t) result += values[t];
    return result;
  }
  template <class Values>
  float max(const Values& values) const {
    float result = values[0];
    for (int t = 1; t < threads_; ++t) result = values[t] > result || values[t] != values[t] ? values[t] : result;
    return result;
  }
  const Place* place() const { return &place_; }

  // Moves to another block of the grid: shared memory is poisoned again.
  void begin(int64_t x, int64_t y, int64_t z);

 private:
  void shuffle();
  void* take_shared(size_t bytes, size_t alignment);

  Grid grid_;
  int threads_;
  uint64_t state_;
  int64_t x_ = 0, y_ = 0, z_ = 0;
  Place place_;
  std::vector<int> order_;
  std::vector<std::byte> shared_;
  size_t shared_used_ = 0;
};

template <class T, class Block>
class PerThread {
 public:
  explicit PerThread(const Block& block, T initial = T{}) : values_(static_cast<size_t>(block.threads()), initial) {}
  T& operator[](int t) { return values_[static_cast<size_t>(t)]; }
  const T& operator[](int t) const { return values_[static_cast<size_t>(t)]; }

 private:
  std::vector<T> values_;
};

// Runs `body` once for each block of the grid. `shared_bytes` bounds the body's shared arrays; asking for more aborts.
template <class Body>
void launch(const LaunchContext& context, Grid grid, int threads, size_t shared_bytes, const Body& body) {
#ifdef FAULTLINE_HAVE_CUDA
  if constexpr (!requires { typename Body::HostOnly; }) {
    if (context.cuda) {
      if constexpr (requires { cuda_faster(context, grid, body); }) {
        if (!context.plain && cuda_faster(context, grid, body)) return;
      }
      cuda_launch(context, grid, threads, shared_bytes, body);
      return;
    }
  }
#endif
  HostBlock block(grid, threads, shared_bytes, context.seed);
  for (int64_t z = 0; z < grid.z; ++z)
    for (int64_t y = 0; y < grid.y; ++y)
      for (int64_t x = 0; x < grid.x; ++x) {
        block.begin(x, y, z);
        body(block);
      }
}

}  // namespace faultline::kernels
