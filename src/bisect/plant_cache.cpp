// Faults of the quantized caches.
#include <array>
#include <cstring>

#include "bisect/plant_fault.h"
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

}  // namespace

KernelResult read_scales_as_powers_of_two(Blow& blow) {
  const int operand = cache_read_by(blow.op);
  if (operand < 0) return blow.miss();
  const Argument& cache = blow.call.argument(operand);
  const Format format = cache.geometry->format;
  if (format != Format::kKvPacked && format != Format::kIndexFp8) return blow.miss();
  TensorCopy copy(blow.gpu(), cache.view());
  rewrite_scales(*cache.geometry, copy.host().data);
  ArgumentList arguments = copy_arguments(blow.call);
  arguments.replace(operand, {copy.publish()});
  return blow.kernel(arguments);
}

// The writer divides by the largest magnitude of each quarter of the latent, without a floor.
KernelResult zero_a_latent_quarter(Blow& blow) {
  using W = ops::CacheWrite;
  if (blow.op.kind->name != W::kName || blow.call.argument(W::kCache).format != Format::kKvPacked) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(W::kX);
  if (!row) return blow.miss();
  TensorCopy copy(blow.gpu(), blow.call.view(W::kX));
  const TensorView& x = copy.host();
  const int64_t quarter = blow.call.argument(W::kCache).geometry->latent / kPackedScales;
  for (int64_t c = 0; c < quarter; ++c) x.store(x.offset(*row, c), 0.0f);
  ArgumentList arguments = copy_arguments(blow.call);
  arguments.replace(W::kX, {copy.publish()});
  return blow.kernel(arguments);
}

}  // namespace faultline::plants
