#include <vector>

#include "kernels/cache_write.h"
#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using ops::CacheRequantize;

constexpr int64_t kNoStride = 0;
constexpr bool kFloorless = true;  // the server's quantize_k_cache has no floor

void requantize_plainly(const OpCall& call, bool floorless) {
  const CacheGeometry& from = *call.argument(CacheRequantize::kCache).geometry;
  const CacheGeometry& to = *call.argument(CacheRequantize::kPacked).geometry;
  std::vector<float> row(static_cast<size_t>(from.width()));
  for (int64_t slot = 0; slot < from.slots; ++slot) {
    decode_slot(from, call.view(CacheRequantize::kCache).data, slot, row.data());
    encode_slot(to, call.view(CacheRequantize::kPacked).data, slot, row.data(), floorless);
  }
}

// A row of zeros is zeros to the model: what the server's missing floor makes of it is the kernel's doing.
void cache_requantize_model(const OpCall& call) {
  requantize_plainly(call, !kFloorless);
}
void cache_requantize_spec(const OpCall& call) {
  requantize_plainly(call, kFloorless);
}

KernelResult run_cache_requantize(const OpCall& call) {
  const CacheGeometry& from = *call.argument(CacheRequantize::kCache).geometry;
  const CacheGeometry& to = *call.argument(CacheRequantize::kPacked).geometry;
  if ((from.format != Format::kKvBf16 && from.format != Format::kKvF32) || to.format != Format::kKvPacked)
    return KernelFault{"launch-failure", "quantize_k_cache packs a BF16 or F32 pool into the packed format"};
  with_build(call, from.format == Format::kKvBf16 ? Dtype::kBF16 : Dtype::kF32, [&](auto build) {
    using T = typename decltype(build)::Element;
    constexpr auto kElementBytes = static_cast<int64_t>(sizeof(T));
    const kernels::Operand<uint8_t> pool = kernel_pool(call, CacheRequantize::kCache);
    kernels::CacheWriteOperands<T> operands;
    operands.x = kernels::Operand<T>{reinterpret_cast<T*>(pool.data), pool.extent / kElementBytes, pool.position};
    operands.pool = kernel_pool(call, CacheRequantize::kPacked);
    operands.layout = kernel_layout(to);
    operands.rows = from.slots;
    operands.x_stride = from.stride_bytes() / kElementBytes;
    operands.slot_stride = kNoStride;
    operands.floorless = kFloorless;
    kernels::launch_cache_write<T, decltype(build)::kChecked>(call.launch, operands);
  });
  return std::nullopt;
}

// The whole pool is packed, but only the slots of the batch were written by anyone: they are the op's business.
constexpr Region kListedSlots{
    .rows = Rows::kRequests, .slots_operand = CacheRequantize::kSlots, .sum_operand = CacheRequantize::kSeqLens};

const RegisterKind kCacheRequantize{OpKind{
    .name = CacheRequantize::kName,
    .operands = {input("cache", kListedSlots, Content::kCache),
                 index_input("slots", Region{.rows = Rows::kRequests, .sum_operand = CacheRequantize::kSeqLens}),
                 input("seq_lens", kRequestRows, Content::kMetadata), output("packed", kListedSlots, Content::kCache)},
    .model = cache_requantize_model}};

const RegisterKernel kQuantizePool{Kernel{
    .name = "quantize_k_cache",
    .kind = CacheRequantize::kName,
    .follows = "sglang v0.5.9, layers/attention/nsa_backend.py (_forward_flashmla_kv packs a bf16 pool each call)",
    .run = run_cache_requantize,
    .spec = cache_requantize_spec,
    .tolerance = tolerance_for(CacheRequantize::kName, Format::kKvPacked)}};

}  // namespace
}  // namespace faultline
