#include "kernels/cache_write.h"

#include <vector>

#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using ops::CacheWrite;

// A slot past the pool is a broken index, reported as such; the reference has nothing to say about it.
void cache_write_model(const OpCall& call) {
  const TensorView& x = call.view(CacheWrite::kX);
  const TensorView& slots = call.view(CacheWrite::kSlots);
  const CacheGeometry& geometry = *call.argument(CacheWrite::kCache).geometry;
  const bool floorless = call.attr().integer_or("floorless", 0) != 0;
  const bool ue8m0 = call.attr().integer_or("ue8m0", 0) != 0;
  std::vector<float> row(static_cast<size_t>(geometry.width()));
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const int64_t slot = slots.load_index(slots.offset(t));
    if (slot < 0 || slot >= geometry.slots) continue;
    for (int64_t c = 0; c < geometry.width(); ++c) row[static_cast<size_t>(c)] = x.load(x.offset(t, c));
    encode_slot(geometry, call.view(CacheWrite::kCache).data, slot, row.data(), floorless, ue8m0);
  }
}

KernelResult run_cache_write(const OpCall& call) {
  const TensorView& x = call.view(CacheWrite::kX);
  with_build(call, x.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::CacheWriteOperands<T> operands;
    operands.x = kernel_operand<T>(call, CacheWrite::kX);
    operands.slots = kernel_operand<int32_t>(call, CacheWrite::kSlots);
    operands.pool = kernel_pool(call, CacheWrite::kCache);
    operands.layout = kernel_layout(*call.argument(CacheWrite::kCache).geometry);
    operands.rows = x.dim(0);
    operands.x_stride = x.stride[0];
    operands.slot_stride = call.view(CacheWrite::kSlots).stride[0];
    operands.floorless = call.attr().integer_or("floorless", 0) != 0;
    operands.ue8m0 = call.attr().integer_or("ue8m0", 0) != 0;
    kernels::launch_cache_write<T, decltype(build)::kChecked>(call.launch, operands);
  });
  return std::nullopt;
}

// One function serves all writers, which differ in the format of the pool; each registration names the formats it is
// for.
Kernel writer(std::string name, std::string follows, std::vector<Format> formats) {
  const Tolerance tolerance = tolerance_for(CacheWrite::kName, formats.front());
  return Kernel{.name = std::move(name),
                .kind = CacheWrite::kName,
                .follows = std::move(follows),
                .run = run_cache_write,
                .tolerance = tolerance,
                .cache_formats = std::move(formats)};
}

const RegisterKind kCacheWrite{
    OpKind{.name = CacheWrite::kName,
           .operands = {input("x"), index_input("slots", kTokenRows),
                        output("cache", Region{.slots_operand = CacheWrite::kSlots}, Content::kCache)},
           .model = cache_write_model}};

const RegisterKernel kStoreKv{writer("store_kv", "sglang v0.5.9, mem_cache/memory_pool.py (set_mla_kv_buffer)",
                                     {Format::kKvBf16, Format::kKvF32})};
const RegisterKernel kQuantizeKCache{
    writer("quantize_k_cache", "sglang v0.5.9, layers/attention/nsa/quant_k_cache.py", {Format::kKvPacked})};
const RegisterKernel kStoreKvFp8{writer(
    "store_kv_fp8", "sglang v0.5.9, mem_cache/memory_pool.py (plain e4m3 cast, clamped)", {Format::kKvPlainFp8})};
const RegisterKernel kStoreIndexK{writer("store_index_k", "sglang, jit_kernel/csrc/nsa/fused_store_index_cache.cuh",
                                         {Format::kIndexFp8, Format::kIndexF32})};

}  // namespace
}  // namespace faultline
