// Faults of the quantized caches.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include "base/codec.h"
#include "bisect/plant_fault.h"
#include "check/violation.h"
#include "ops/kinds.h"

namespace faultline::plants {
namespace {

int cache_read_by(const Op& op) {
  if (op.kind->name == ops::Attention::kName) return ops::Attention::kCache;
  if (op.kind->name == ops::IndexScores::kName) return ops::IndexScores::kCache;
  if (op.kind->name == ops::CacheGather::kName) return ops::CacheGather::kCache;
  return -1;
}

using FourScales = std::array<float, kPackedScales>;

// What a kernel that expects UE8M0 gets: the packer shifts the exponents of four fp32 scales into one word and relies
// on their mantissas being zero; where they are not, their bits leak into the neighbours' exponents. 0xFF means NaN
// (DeepGEMM, impls/smxx_layout.cuh: v0 >> 23 | v1 >> 15 | v2 >> 7 | v3 << 1).
FourScales as_powers_of_two(const FourScales& scales) {
  constexpr uint32_t kExponentShift = 23;
  constexpr uint32_t kNanExponent = 0xFF;
  constexpr uint32_t kNan = 0x7FC00000u;
  uint32_t word = 0;
  word |= float_bits(scales[0]) >> 23;
  word |= float_bits(scales[1]) >> 15;
  word |= float_bits(scales[2]) >> 7;
  word |= float_bits(scales[3]) << 1;
  FourScales result;
  for (size_t i = 0; i < scales.size(); ++i) {
    const uint32_t exponent = (word >> (8 * i)) & 0xFFu;
    result[i] = float_from_bits(exponent == kNanExponent ? kNan : exponent << kExponentShift);
  }
  return result;
}

void rewrite(std::byte* cache, const std::array<int64_t, kPackedScales>& at) {
  FourScales scales;
  for (size_t i = 0; i < scales.size(); ++i) std::memcpy(&scales[i], cache + at[i], sizeof(float));
  scales = as_powers_of_two(scales);
  for (size_t i = 0; i < scales.size(); ++i) std::memcpy(cache + at[i], &scales[i], sizeof(float));
}

// A packed row has four scales of its own; of an index cache, the scales of four neighbouring keys go into one word.
void rewrite_scales(const CacheGeometry& geometry, std::byte* cache) {
  constexpr auto kScale = static_cast<int64_t>(sizeof(float));
  std::array<int64_t, kPackedScales> at;
  if (geometry.format == Format::kKvPacked) {
    for (int64_t slot = 0; slot < geometry.slots; ++slot) {
      const int64_t first = slot_bytes(geometry, slot)[0].begin + geometry.latent;
      for (size_t i = 0; i < at.size(); ++i) at[i] = first + static_cast<int64_t>(i) * kScale;
      rewrite(cache, at);
    }
    return;
  }
  for (int64_t slot = 0; slot + kPackedScales <= geometry.slots; slot += kPackedScales) {
    for (size_t i = 0; i < at.size(); ++i) at[i] = slot_bytes(geometry, slot + static_cast<int64_t>(i))[1].begin;
    rewrite(cache, at);
  }
}

// The slot that the broken row of a cache write goes to.
std::optional<int64_t> slot_of_row(const Blow& blow) {
  using W = ops::CacheWrite;
  if (!blow.is<W>()) return std::nullopt;
  const std::optional<int64_t> row = blow.row_of(W::kX);
  if (!row) return std::nullopt;
  const HostTensor slots(blow.gpu(), blow.call.view(W::kSlots));
  const int64_t slot = slots.view().load_index(slots.view().offset(*row));
  if (slot < 0 || slot >= blow.call.argument(W::kCache).geometry->slots) return std::nullopt;
  return slot;
}

// After the write: change(bytes of the cache, where the row's slot lies in them).
template <class Change>
KernelResult change_slot(Blow& blow, const Change& change) {
  using W = ops::CacheWrite;
  const std::optional<int64_t> slot = slot_of_row(blow);
  if (!slot) return blow.miss();
  const auto ranges = slot_bytes(*blow.call.argument(W::kCache).geometry, *slot);
  return with_output(blow, W::kCache, [&](const TensorView& cache) { change(cache.data, ranges); });
}

// Slots of the pool's last page become those of its first one.
KernelResult wrap_high_slots(Blow& blow, int operand, const CacheGeometry& geometry) {
  const int64_t first = geometry.slots - geometry.page_size;
  const HostTensor host(blow.gpu(), blow.call.view(operand));
  bool any = false;
  const auto wrap = [&](const TensorView& slots, bool change) {
    for (int64_t r = 0; r < (slots.rank > 1 ? slots.dim(0) : 1); ++r)
      for (int64_t c = 0; c < slots.dim(slots.rank - 1); ++c) {
        const int64_t at = r * (slots.rank > 1 ? slots.stride[0] : 0) + c;
        const int64_t slot = slots.load_index(at);
        if (slot < first || slot >= geometry.slots) continue;
        any = true;
        if (change) slots.store_index(at, slot - first);
      }
  };
  wrap(host.view(), false);
  if (!any) return blow.miss();
  return with_input(blow, operand, [&](const TensorView& slots) { wrap(slots, true); });
}

}  // namespace

KernelResult read_scales_as_powers_of_two(Blow& blow) {
  const int operand = cache_read_by(blow.op);
  if (operand < 0) return blow.miss();
  const CacheGeometry& geometry = *blow.call.argument(operand).geometry;
  if (geometry.format != Format::kKvPacked && geometry.format != Format::kIndexFp8) return blow.miss();
  return with_input(blow, operand, [&](const TensorView& cache) { rewrite_scales(geometry, cache.data); });
}

// A reader that has the scales in another order than the writer.
KernelResult read_scales_of_the_next_quarter(Blow& blow) {
  const int operand = cache_read_by(blow.op);
  if (operand < 0) return blow.miss();
  const CacheGeometry& geometry = *blow.call.argument(operand).geometry;
  if (geometry.format != Format::kKvPacked) return blow.miss();
  return with_input(blow, operand, [&](const TensorView& cache) {
    for (int64_t slot = 0; slot < geometry.slots; ++slot) {
      std::byte* scales = cache.data + slot_bytes(geometry, slot)[0].begin + geometry.latent;
      std::rotate(scales, scales + sizeof(float), scales + sizeof(FourScales));
    }
  });
}

// The writer divides by the largest magnitude of each quarter of the latent, without a floor.
KernelResult zero_a_latent_quarter(Blow& blow) {
  using W = ops::CacheWrite;
  if (!blow.is<W>() || blow.call.argument(W::kCache).format != Format::kKvPacked) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(W::kX);
  if (!row) return blow.miss();
  const int64_t quarter = blow.call.argument(W::kCache).geometry->latent / kPackedScales;
  return with_input(blow, W::kX, [&](const TensorView& x) {
    for (int64_t c = 0; c < quarter; ++c) x.store(x.offset(*row, c), 0.0f);
  });
}

// A value past 448 becomes the NaN code where the conversion does not saturate.
KernelResult overflow_a_code(Blow& blow) {
  using W = ops::CacheWrite;
  constexpr std::byte kNanCode{0x7F};
  if (!blow.is<W>()) return blow.miss();
  const Format format = blow.call.argument(W::kCache).geometry->format;
  if (format != Format::kKvPacked && format != Format::kKvPlainFp8) return blow.miss();
  return change_slot(blow, [&](std::byte* cache, const auto& ranges) { cache[ranges[0].begin] = kNanCode; });
}

KernelResult divide_index_key_by_zero(Blow& blow) {
  using W = ops::CacheWrite;
  if (!blow.is<W>() || blow.call.argument(W::kCache).geometry->format != Format::kIndexFp8) return blow.miss();
  return change_slot(blow, [](std::byte* cache, const auto& ranges) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(cache + ranges[1].begin, &nan, sizeof nan);
  });
}

KernelResult leave_a_slot_unwritten(Blow& blow) {
  using W = ops::CacheWrite;
  const std::optional<int64_t> slot = slot_of_row(blow);
  if (!slot) return blow.miss();
  const TensorView& cache = blow.call.view(W::kCache);
  std::vector<RowBlock> before;
  for (const ByteRange& range : slot_bytes(*blow.call.argument(W::kCache).geometry, *slot))
    if (range.end > range.begin) before.emplace_back(blow.gpu(), cache, range.begin, range.end);
  KernelResult result = blow.kernel();
  for (const RowBlock& bytes : before) bytes.restore(cache);
  return result;
}

// A stray store: the slot behind the one that the row may write, or the one before it.
KernelResult write_into_a_neighbour_slot(Blow& blow) {
  using W = ops::CacheWrite;
  const std::optional<int64_t> slot = slot_of_row(blow);
  if (!slot) return blow.miss();
  const CacheGeometry& geometry = *blow.call.argument(W::kCache).geometry;
  const HostTensor slots(blow.gpu(), blow.call.view(W::kSlots));
  std::vector<int64_t> written;
  for (int64_t i = 0; i < slots.view().dim(0); ++i) written.push_back(slots.view().load_index(i));
  const int64_t page = *slot / geometry.page_size * geometry.page_size;
  for (int64_t other = page; other < page + geometry.page_size; ++other) {
    if (std::find(written.begin(), written.end(), other) != written.end()) continue;
    return with_output(blow, W::kCache, [&](const TensorView& cache) {
      // Another value each time: a write that is made twice, or replayed, must change it again.
      std::byte& first = cache.data[slot_bytes(geometry, other)[0].begin];
      first = static_cast<std::byte>(std::to_integer<unsigned>(first) + 1);
    });
  }
  return blow.miss();
}

// An offset in 32 bits is past its end in the pool's last pages; taken modulo the pool, it lies at its beginning.
KernelResult write_high_slots_elsewhere(Blow& blow) {
  using W = ops::CacheWrite;
  if (!blow.is<W>()) return blow.miss();
  return wrap_high_slots(blow, W::kSlots, *blow.call.argument(W::kCache).geometry);
}

KernelResult read_high_slots_elsewhere(Blow& blow) {
  using A = ops::Attention;
  if (!blow.is<A>()) return blow.miss();
  const bool sparse = blow.call.argument(A::kIndices).present();
  return wrap_high_slots(blow, sparse ? int{A::kIndices} : int{A::kPageTable}, *blow.call.argument(A::kCache).geometry);
}

KernelResult gather_a_wrong_row(Blow& blow) {
  using G = ops::CacheGather;
  if (!blow.is<G>()) return blow.miss();
  const int64_t rows = blow.live_rows_of(G::kOut);
  if (rows < 2) return blow.miss();
  return with_input(blow, G::kSlots, [&](const TensorView& slots) {
    slots.store_index(slots.offset(rows - 1), slots.load_index(slots.offset(0)));
  });
}

// A prefix came back from the host's memory; its index keys did not, and the slots hold what an earlier request left.
KernelResult read_keys_that_were_not_restored(Blow& blow) {
  using S = ops::IndexScores;
  if (!blow.is<S>()) return blow.miss();
  const CacheGeometry& geometry = *blow.call.argument(S::kCache).geometry;
  const HostCall host(blow, {S::kPageTable, S::kLengths});
  const int64_t restored = std::min(host.view(S::kLengths).load_index(0), geometry.page_size) / 2;
  if (restored < 1) return blow.miss();
  return with_input(blow, S::kCache, [&](const TensorView& cache) {
    for (int64_t c = 0; c < restored; ++c) {
      const TensorView& table = host.view(S::kPageTable);
      const ByteRange codes = slot_bytes(geometry, table.load_index(table.offset(0, c)))[0];
      std::fill(cache.data + codes.begin, cache.data + codes.end, std::byte{0});
    }
  });
}

}  // namespace faultline::plants
