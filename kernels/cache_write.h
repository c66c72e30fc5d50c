// Writers of the caches: row t of x goes to slot slots[t].
//
// One block writes one row. An out-of-range slot is not tested for, as in the server: the unchecked build then writes
// where it should not, the checked build records and drops it.
//   StoreRowsBody      store_kv (F32, BF16 pools), store_kv_fp8 (plain e4m3, clamped to +-448), store_index_k on F32
//   pools PackRowsBody       quantize_k_cache: e4m3 latent with one scale a quarter, rope in bf16 StoreIndexKeysBody
//   store_index_k: e4m3 keys with one scale a key, amax floor 1e-4; scales in float, or powers of two
// Quantisation is scale = amax / 448, code = e4m3(clamp(x * (1 / scale))): the server's order of operations. With a
// floorless amax of 0 that is 0 * inf = NaN, code 0x7F (SGLang v0.5.9, layers/attention/nsa/quant_k_cache.py).
// x: [rows, width], row stride in elements; slots: [rows]; absent slots: row t goes to slot t.
#pragma once

#include <cmath>

#include "kernels/cache_rows.h"

namespace faultline::kernels {

inline constexpr int kCacheThreads = 64;
inline constexpr float kPackedAmaxFloor = 1e-4f;  // when a floor is asked for; the server's writer has none

template <class T>
struct CacheWriteOperands {
  Operand<T> x;
  Operand<int32_t> slots;
  Operand<uint8_t> pool;
  CacheLayout layout;
  int64_t rows = 0;
  int64_t x_stride = 0;
  int64_t slot_stride = 1;
  bool floorless = false;
  bool ue8m0 = false;  // of index keys: scales are powers of two
};

// max(|x|) of `group_count` groups of `group_size` columns each, by `block`'s threads: the result is in amax[group].
// NaN is passed over, as fmax does.
template <class T, bool kChecked, class Block>
FAULTLINE_HD void group_amax(Block& block, const View<T, kChecked>& x, int64_t x_row, int64_t group_count,
                             int64_t group_size, float* partial, float* amax) {
  const int64_t lanes = block.threads() / group_count;
  block.for_each_thread([&](int t) {
    const int64_t group = t / lanes;
    float largest = 0;
    if (group < group_count) {
      for (int64_t i = t % lanes; i < group_size; i += lanes) {
        const float magnitude = fabsf(to_float(x.load(x_row + group * group_size + i)));
        if (magnitude > largest) largest = magnitude;
      }
    }
    partial[t] = largest;
  });
  block.for_each_thread([&](int t) {
    if (t >= group_count) return;
    float largest = 0;
    for (int64_t lane = 0; lane < lanes; ++lane)
      if (partial[t * lanes + lane] > largest) largest = partial[t * lanes + lane];
    amax[t] = largest;
  });
}

template <class T, bool kChecked>
struct StoreRowsBody {
  CacheWriteOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto x = open<kChecked>(operands.x, log, block);
    const auto slots = open<kChecked>(operands.slots, log, block);
    const auto pool = open<kChecked>(operands.pool, log, block);
    const CacheLayout& layout = operands.layout;
    const int64_t x_row = block.index(0) * operands.x_stride;
    block.for_each_thread([&](int t) {
      const int64_t slot = slots.load(block.index(0) * operands.slot_stride);
      for (int64_t c = t; c < layout.width(); c += block.threads()) {
        const float value = to_float(x.load(x_row + c));
        if (layout.format == RowFormat::kF32)
          pool.template store_as<float>(layout.row(slot) + c * 4, value);
        else if (layout.format == RowFormat::kBf16)
          pool.template store_as<Bf16>(layout.row(slot) + c * 2, to_bf16(value));
        else
          pool.template store_as<E4m3>(layout.row(slot) + c, to_e4m3(value));
      }
    });
  }
};

template <class T, bool kChecked>
struct PackRowsBody {
  CacheWriteOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto x = open<kChecked>(operands.x, log, block);
    const auto slots = open<kChecked>(operands.slots, log, block);
    const auto pool = open<kChecked>(operands.pool, log, block);
    const CacheLayout& layout = operands.layout;
    const int64_t x_row = block.index(0) * operands.x_stride;
    const int64_t group_size = layout.latent / kPackedGroups;
    const bool listed = operands.slots.data != nullptr;
    float* partial = block.template shared<float>(block.threads());
    float* amax = block.template shared<float>(kPackedGroups);

    group_amax<T, kChecked>(block, x, x_row, kPackedGroups, group_size, partial, amax);
    block.for_each_thread([&](int t) {
      const int64_t slot = listed ? slots.load(block.index(0) * operands.slot_stride) : block.index(0);
      const auto scale_of = [&](int64_t group) {
        const float largest = operands.floorless || amax[group] > kPackedAmaxFloor ? amax[group] : kPackedAmaxFloor;
        return largest / kE4m3Largest;
      };
      if (t < kPackedGroups) pool.template store_as<float>(layout.packed_scale(slot, t), scale_of(t));
      for (int64_t group = 0; group < kPackedGroups; ++group) {
        const float inverse = 1.0f / scale_of(group);
        const int64_t end = (group + 1) * group_size;
        for (int64_t c = group * group_size + t; c < end; c += block.threads())
          pool.template store_as<E4m3>(layout.row(slot) + c, to_e4m3(to_float(x.load(x_row + c)) * inverse));
      }
      for (int64_t c = t; c < layout.rope; c += block.threads())
        pool.template store_as<Bf16>(layout.packed_rope(slot) + c * 2,
                                     to_bf16(to_float(x.load(x_row + layout.latent + c))));
    });
  }
};

template <class T, bool kChecked>
struct StoreIndexKeysBody {
  CacheWriteOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto x = open<kChecked>(operands.x, log, block);
    const auto slots = open<kChecked>(operands.slots, log, block);
    const auto pool = open<kChecked>(operands.pool, log, block);
    const CacheLayout& layout = operands.layout;
    const int64_t x_row = block.index(0) * operands.x_stride;
    float* partial = block.template shared<float>(block.threads());
    float* amax = block.template shared<float>(1);

    group_amax<T, kChecked>(block, x, x_row, 1, layout.latent, partial, amax);
    block.for_each_thread([&](int t) {
      const int64_t slot = slots.load(block.index(0) * operands.slot_stride);
      const float scale = index_scale_of(amax[0], operands.ue8m0);
      const float inverse = 1.0f / scale;
      if (t == 0) pool.template store_as<float>(layout.index_scale(slot), scale);
      for (int64_t c = t; c < layout.latent; c += block.threads())
        pool.template store_as<E4m3>(layout.index_codes(slot) + c, to_e4m3(to_float(x.load(x_row + c)) * inverse));
    });
  }
};

#ifdef FAULTLINE_HAVE_CUDA
// cuda_formats.cu
bool cuda_faster(const LaunchContext& context, Grid grid, const StoreRowsBody<Bf16, false>& body);
bool cuda_faster(const LaunchContext& context, Grid grid, const PackRowsBody<Bf16, false>& body);
bool cuda_faster(const LaunchContext& context, Grid grid, const StoreIndexKeysBody<Bf16, false>& body);
#endif

template <class T, bool kChecked>
void launch_cache_write(const LaunchContext& context, const CacheWriteOperands<T>& operands) {
  constexpr size_t kSharedBytes = (kCacheThreads + kPackedGroups) * sizeof(float);
  const Grid grid{operands.rows};
  if (operands.layout.format == RowFormat::kPacked)
    launch(context, grid, kCacheThreads, kSharedBytes, PackRowsBody<T, kChecked>{operands, context.log});
  else if (operands.layout.format == RowFormat::kIndexFp8)
    launch(context, grid, kCacheThreads, kSharedBytes, StoreIndexKeysBody<T, kChecked>{operands, context.log});
  else
    launch(context, grid, kCacheThreads, 0, StoreRowsBody<T, kChecked>{operands, context.log});
}

}  // namespace faultline::kernels
