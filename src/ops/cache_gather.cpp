#include "kernels/cache_gather.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using ops::CacheGather;

constexpr Region kGatheredRows{.rows = Rows::kRequests, .sum_operand = CacheGather::kSeqLens};

void cache_gather_model(const OpCall& call) {
  const TensorView& slots = call.view(CacheGather::kSlots);
  const TensorView& seq_lens = call.view(CacheGather::kSeqLens);
  const TensorView& out = call.view(CacheGather::kOut);
  const CacheGeometry& geometry = *call.argument(CacheGather::kCache).geometry;
  int64_t live = 0;
  for (int64_t r = 0; r < seq_lens.dim(0); ++r) live += seq_lens.load_index(r);
  std::vector<float> row(static_cast<size_t>(geometry.width()));
  for (int64_t i = 0; i < std::min({live, slots.dim(0), out.dim(0)}); ++i) {
    const int64_t slot = slots.load_index(i);
    if (slot >= 0 && slot < geometry.slots)
      decode_slot(geometry, call.view(CacheGather::kCache).data, slot, row.data());
    else
      std::fill(row.begin(), row.end(), std::numeric_limits<float>::quiet_NaN());
    for (int64_t c = 0; c < geometry.width(); ++c) out.store(out.offset(i, c), row[static_cast<size_t>(c)]);
  }
}

KernelResult run_cache_gather(const OpCall& call) {
  const TensorView& out = call.view(CacheGather::kOut);
  with_build(call, out.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::CacheGatherOperands<T> operands;
    operands.pool = kernel_pool(call, CacheGather::kCache);
    operands.slots = kernel_operand<int32_t>(call, CacheGather::kSlots);
    operands.seq_lens = kernel_operand<int32_t>(call, CacheGather::kSeqLens);
    operands.out = kernel_operand<T>(call, CacheGather::kOut);
    operands.layout = kernel_layout(*call.argument(CacheGather::kCache).geometry);
    operands.rows = out.dim(0);
    operands.requests = call.view(CacheGather::kSeqLens).dim(0);
    operands.out_stride = out.stride[0];
    kernels::launch_cache_gather<T, decltype(build)::kChecked>(call.launch, operands);
  });
  return std::nullopt;
}

const RegisterKind kCacheGather{
    OpKind{.name = CacheGather::kName,
           .operands = {input("cache",
                              Region{.rows = Rows::kRequests,
                                     .slots_operand = CacheGather::kSlots,
                                     .sum_operand = CacheGather::kSeqLens},
                              Content::kCache),
                        index_input("slots", kGatheredRows), input("seq_lens", kRequestRows, Content::kMetadata),
                        output("out", kGatheredRows)},
           .model = cache_gather_model}};

const RegisterKernel kDequantize{Kernel{.name = "dequantize_k_cache_paged",
                                        .kind = CacheGather::kName,
                                        .follows = "sglang, layers/attention/nsa/dequant_k_cache.py",
                                        .run = run_cache_gather,
                                        .tolerance = tolerance_for(CacheGather::kName, Dtype::kBF16)}};

}  // namespace
}  // namespace faultline
