// The routed experts' index work: sorting rows by expert, and the weighted sum of the experts' results.
//
// MoeAlign    one block. Thread t owns a run of consecutive flat entries t*k+j: it counts them by expert, thread 0
// turns the
//             counts into starts (by expert, then by thread), and each thread places its run: a stable counting sort.
//             ids [T, k] int32 with a row stride | order [T*k] int32, offsets [E+1] int32.
// MoeCombine  one block a token; thread t takes columns t, t + threads, …; out = narrow(sum_j weights[j] * x[t*k + j]),
//             summed in float in the order of j.
//             x [T*k, H], weights [T, k] float, out [T, H], each with a row stride.
#pragma once

#include "kernels/operand.h"

namespace faultline::kernels {

inline constexpr int kMoeAlignThreads = 64;
inline constexpr int kMoeCombineThreads = 128;

template <bool kChecked>
struct MoeAlignBody {
  Operand<int32_t> ids;
  Operand<int32_t> order;
  Operand<int32_t> offsets;
  int64_t tokens = 0;
  int64_t k = 0;
  int64_t experts = 0;
  int64_t ids_stride = 0;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto ids_view = open<kChecked>(ids, log, block);
    const auto order_view = open<kChecked>(order, log, block);
    const auto offsets_view = open<kChecked>(offsets, log, block);
    const int64_t total = tokens * k;
    const int64_t run = (total + block.threads() - 1) / block.threads();
    int32_t* counts = block.template shared<int32_t>(block.threads() * experts);  // [thread][expert]
    // A thread's own counts behind a view: an id that is no expert is recorded, not counted elsewhere.
    const auto counts_of = [&](int t) {
      return View<int32_t, kChecked>(counts + t * experts, experts, ids.position, log, block.place());
    };

    block.for_each_thread([&](int t) {
      const auto mine = counts_of(t);
      for (int64_t e = 0; e < experts; ++e) mine.store(e, 0);
      for (int64_t i = t * run; i < min_of(total, (t + 1) * run); ++i) {
        const int64_t expert = ids_view.load(i / k * ids_stride + i % k);
        mine.store(expert, mine.load(expert) + 1);
      }
    });
    block.for_each_thread([&](int t) {
      if (t != 0) return;
      int32_t at = 0;
      for (int64_t e = 0; e < experts; ++e) {
        offsets_view.store(e, at);
        for (int64_t thread = 0; thread < block.threads(); ++thread) {
          const int32_t count = counts[thread * experts + e];
          counts[thread * experts + e] = at;
          at += count;
        }
      }
      offsets_view.store(experts, at);
    });
    block.for_each_thread([&](int t) {
      const auto mine = counts_of(t);
      for (int64_t i = t * run; i < min_of(total, (t + 1) * run); ++i) {
        const int64_t expert = ids_view.load(i / k * ids_stride + i % k);
        if (kChecked && (expert < 0 || expert >= experts)) continue;  // recorded when it was counted
        const int32_t at = mine.load(expert);
        order_view.store(at, static_cast<int32_t>(i));
        mine.store(expert, at + 1);
      }
    });
  }

 private:
  FAULTLINE_HD static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
};

#ifdef FAULTLINE_HAVE_CUDA
bool cuda_faster(const LaunchContext& context, Grid grid, const MoeAlignBody<false>& body);  // cuda_routing.cu
#endif

template <bool kChecked>
void launch_moe_align(const LaunchContext& context, const MoeAlignBody<kChecked>& body) {
  const auto shared = static_cast<size_t>(kMoeAlignThreads * body.experts) * sizeof(int32_t);
  launch(context, Grid{}, kMoeAlignThreads, shared, body);
}

template <class T, bool kChecked>
struct MoeCombineBody {
  Operand<T> x;
  Operand<float> weights;
  Operand<T> out;
  int64_t k = 0;
  int64_t columns = 0;
  int64_t x_stride = 0;
  int64_t weights_stride = 0;
  int64_t out_stride = 0;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto x_view = open<kChecked>(x, log, block);
    const auto weights_view = open<kChecked>(weights, log, block);
    const auto out_view = open<kChecked>(out, log, block);
    const int64_t token = block.index(0);
    block.for_each_thread([&](int t) {
      for (int64_t c = t; c < columns; c += block.threads()) {
        float sum = 0;
        for (int64_t j = 0; j < k; ++j)
          sum += weights_view.load(token * weights_stride + j) * to_float(x_view.load((token * k + j) * x_stride + c));
        out_view.store(token * out_stride + c, narrow<T>(sum));
      }
    });
  }
};

#ifdef FAULTLINE_HAVE_CUDA
bool cuda_faster(const LaunchContext& context, Grid grid, const MoeCombineBody<Bf16, false>& body);  // cuda_rows.cu
#endif

template <class T, bool kChecked>
void launch_moe_combine(const LaunchContext& context, int64_t tokens, const MoeCombineBody<T, kChecked>& body) {
  launch(context, Grid{tokens}, kMoeCombineThreads, 0, body);
}

}  // namespace faultline::kernels
