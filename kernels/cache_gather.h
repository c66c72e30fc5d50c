// dequantize_k_cache_paged: rows of listed slots, decoded into a contiguous buffer.
//
// One block decodes row i = block: out[i] = cache[slots[i]], for i below the sum of seq_lens. Slots are trusted, -1
// included (SGLang, layers/attention/nsa/dequant_k_cache.py tests neither); row offsets are 64-bit here, where the
// server's are int32. pool: any format of cache_rows.h; slots: [rows]; seq_lens: [requests]; out: [rows, width], row
// stride in elements.
#pragma once

#include "kernels/cache_rows.h"

namespace faultline::kernels {

inline constexpr int kGatherThreads = 64;

template <class T>
struct CacheGatherOperands {
  Operand<uint8_t> pool;
  Operand<int32_t> slots;
  Operand<int32_t> seq_lens;
  Operand<T> out;
  CacheLayout layout;
  int64_t rows = 0;  // capacity of out
  int64_t requests = 0;
  int64_t out_stride = 0;
};

template <class T, bool kChecked>
struct CacheGatherBody {
  CacheGatherOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto pool = open<kChecked>(operands.pool, log, block);
    const auto slots = open<kChecked>(operands.slots, log, block);
    const auto seq_lens = open<kChecked>(operands.seq_lens, log, block);
    const auto out = open<kChecked>(operands.out, log, block);
    const int64_t row = block.index(0);
    int64_t live = 0;
    for (int64_t r = 0; r < operands.requests; ++r) live += seq_lens.load(r);
    if (row >= live) return;

    float* values = block.template shared<float>(operands.layout.width());
    int64_t* slot = block.template shared<int64_t>(1);
    block.for_each_thread([&](int t) {
      if (t == 0) slot[0] = slots.load(row);
    });
    stage_rows<kChecked>(block, pool, operands.layout, slot, 1, values);
    block.for_each_thread([&](int t) {
      for (int64_t c = t; c < operands.layout.width(); c += block.threads())
        out.store(row * operands.out_stride + c, narrow<T>(values[c]));
    });
  }
};

#ifdef FAULTLINE_HAVE_CUDA
bool cuda_faster(const LaunchContext& context, Grid grid, const CacheGatherBody<Bf16, false>& body);  // cuda_formats.cu
#endif

template <class T, bool kChecked>
void launch_cache_gather(const LaunchContext& context, const CacheGatherOperands<T>& operands) {
  const size_t shared_bytes = static_cast<size_t>(operands.layout.width()) * sizeof(float) + 2 * sizeof(int64_t);
  launch(context, Grid{operands.rows}, kGatherThreads, shared_bytes,
         CacheGatherBody<T, kChecked>{operands, context.log});
}

}  // namespace faultline::kernels
