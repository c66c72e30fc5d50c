// References of cache_write, cache_gather and cache_requantize. One warp a slot.
#include "ops/cuda_reference_device.cuh"

namespace faultline::cuda_reference {
namespace {

// Values [begin, begin + count) as codes that share one scale, which is written too. The server multiplies with the
// reciprocal, so a scale of 0 gives 0 * inf = NaN.
template <class Values>
__device__ void encode_scaled(const Values& values, int64_t begin, int64_t count, float scale, uint8_t* codes,
                              uint8_t* scale_at) {
  const float inverse = 1.0f / scale;
  for (int64_t i = lane(); i < count; i += kWarp) codes[begin + i] = saturated_code(values(begin + i) * inverse);
  if (lane() == 0) put_value(scale_at, scale);
}
template <class Values>
__device__ void encode_group(const Values& values, int64_t begin, int64_t count, float amax, uint8_t* codes,
                             uint8_t* scale_at) {
  encode_scaled(values, begin, count, amax / kLargestCode, codes, scale_at);
}

// values(i) gives value i of the slot.
template <class Values>
__device__ void encode_slot(const Cache& cache, int64_t slot, bool floorless, bool ue8m0, const Values& values) {
  uint8_t* row = slot_row(cache, slot);
  switch (cache.format) {
    case RowFormat::kFloats:
      for (int64_t i = lane(); i < cache.width(); i += kWarp) put_value(row + i * kFloatBytes, values(i));
      return;
    case RowFormat::kBf16:
      for (int64_t i = lane(); i < cache.width(); i += kWarp) put_value(row + i * kBf16Bytes, to_bf16(values(i)));
      return;
    case RowFormat::kPlainFp8:
      for (int64_t i = lane(); i < cache.width(); i += kWarp) row[i] = saturated_code(values(i));
      return;
    case RowFormat::kIndexFp8:
      encode_scaled(values, 0, cache.latent, index_scale_value(warp_amax(values, 0, cache.latent), ue8m0), row,
                    index_scale(cache, slot));
      return;
    case RowFormat::kPacked: {
      const int64_t group = cache.latent / kPackedGroups;
      uint8_t* scales = row + cache.latent;
      uint8_t* rope = scales + kPackedGroups * kFloatBytes;
      for (int64_t g = 0; g < kPackedGroups; ++g) {
        const float found = warp_amax(values, g * group, group);
        encode_group(values, g * group, group, floorless ? found : fmaxf(found, kAmaxFloor), row,
                     scales + g * kFloatBytes);
      }
      for (int64_t i = lane(); i < cache.rope; i += kWarp)
        put_value(rope + i * kBf16Bytes, to_bf16(values(cache.latent + i)));
      return;
    }
  }
}

// Rows that share a slot (padded ones) are stored in order on the host: the last one stays.
__device__ bool written_later(const Tensor& slots, int64_t token, int64_t tokens, int64_t slot) {
  bool found = false;
  for (int64_t t = token + 1 + lane(); t < tokens; t += kWarp)
    found = found || slots.load_index(slots.offset(t)) == slot;
  return __any_sync(0xFFFFFFFFu, found) != 0;
}

__global__ void cache_write_kernel(const Tensor x, const Tensor slots, const Cache cache, bool floorless, bool ue8m0) {
  const int64_t t = warp_index();
  if (t >= x.shape[0]) return;
  const int64_t slot = slots.load_index(slots.offset(t));
  if (slot < 0 || slot >= cache.slots || written_later(slots, t, x.shape[0], slot)) return;
  encode_slot(cache, slot, floorless, ue8m0, [&](int64_t i) { return x.load(x.offset(t, i)); });
}

// One thread a value.
__global__ void cache_gather_kernel(const Cache cache, const Tensor slots, const Tensor seq_lens, const Tensor out) {
  const int64_t i = thread_index() / cache.width();
  const int64_t c = thread_index() % cache.width();
  int64_t live = 0;
  for (int64_t r = 0; r < seq_lens.shape[0]; ++r) live += seq_lens.load_index(r);
  if (i >= smaller(live, smaller(slots.shape[0], out.shape[0]))) return;
  const int64_t slot = slots.load_index(i);
  const bool exists = slot >= 0 && slot < cache.slots;
  out.store(out.offset(i, c), exists ? slot_value(cache, slot, c) : nan_value());
}

__global__ void cache_requantize_kernel(const Cache from, const Cache to, bool floorless) {
  const int64_t slot = warp_index();
  if (slot >= from.slots) return;
  encode_slot(to, slot, floorless, false, [&](int64_t i) { return slot_value(from, slot, i); });
}

}  // namespace

void cache_write(void* stream, const Tensor& x, const Tensor& slots, const Cache& cache, bool floorless, bool ue8m0) {
  start(stream, blocks_for(x.shape[0], kWarpsPerBlock), kThreads, 0, cache_write_kernel, x, slots, cache, floorless,
        ue8m0);
}
void cache_gather(void* stream, const Cache& cache, const Tensor& slots, const Tensor& seq_lens, const Tensor& out) {
  start(stream, blocks_for(out.shape[0] * cache.width(), kThreads), kThreads, 0, cache_gather_kernel, cache, slots,
        seq_lens, out);
}
void cache_requantize(void* stream, const Cache& from, const Cache& to, bool floorless) {
  start(stream, blocks_for(from.slots, kWarpsPerBlock), kThreads, 0, cache_requantize_kernel, from, to, floorless);
}

}  // namespace faultline::cuda_reference
