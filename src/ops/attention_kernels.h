// What the registrations of attention kernels share: from an OpCall to a body's operands, what a launcher refuses, and
// the fields that are alike.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention_tile.h"
#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

namespace faultline::attention {

// `index_form` of dense attention: what leads from key c of a token to its row.
enum class IndexForm : int64_t { kPageTable = 1, kRagged = 2 };

inline IndexForm index_form(const OpCall& call) {
  return static_cast<IndexForm>(call.attr().integer("index_form"));
}

template <class T>
kernels::AttentionOperands<T> operands_of(const OpCall& call) {
  const TensorView& q = call.view(ops::Attention::kQ);
  const TensorView& out = call.view(ops::Attention::kOut);
  const auto row_stride = [&](int operand) {
    return call.argument(operand).present() ? call.view(operand).stride[0] : int64_t{0};
  };
  kernels::AttentionOperands<T> operands;
  operands.q = kernel_operand<T>(call, ops::Attention::kQ);
  operands.pool = kernel_pool(call, ops::Attention::kCache);
  operands.indices = optional_operand<int32_t>(call, ops::Attention::kIndices);
  operands.page_table = optional_operand<int32_t>(call, ops::Attention::kPageTable);
  operands.row_to_request = optional_operand<int32_t>(call, ops::Attention::kRowToRequest);
  operands.lengths = optional_operand<int32_t>(call, ops::Attention::kLengths);
  operands.ragged_offsets = optional_operand<int32_t>(call, ops::Attention::kRaggedOffsets);
  operands.scratch = optional_operand<float>(call, ops::Attention::kScratch);
  operands.out = kernel_operand<T>(call, ops::Attention::kOut);
  operands.layout = kernel_layout(*call.argument(ops::Attention::kCache).geometry);
  operands.tokens = q.dim(0);
  operands.heads = q.dim(1);
  operands.topk = call.attr().integer_or("topk", 0);
  operands.splits = std::max<int64_t>(call.attr().integer_or("splits", 1), 1);
  operands.q_token_stride = q.stride[0];
  operands.q_head_stride = q.stride[1];
  operands.index_stride = row_stride(ops::Attention::kIndices);
  operands.page_table_stride = row_stride(ops::Attention::kPageTable);
  operands.out_token_stride = out.stride[0];
  operands.out_head_stride = out.stride[1];
  operands.scale = static_cast<float>(call.attr().real("scale"));
  return operands;
}

// What a followed backend's launcher refuses: the dtype check of its cache.
inline KernelResult refused(const OpCall& call, std::string_view kernel_name) {
  const Format format = call.argument(ops::Attention::kCache).geometry->format;
  const std::vector<Format>& accepted = find_kernel(ops::Attention::kName, kernel_name)->cache_formats;
  if (std::find(accepted.begin(), accepted.end(), format) != accepted.end()) return std::nullopt;
  return KernelFault{"launch-failure", fmt::format("{} does not take a {} cache", kernel_name, format_name(format))};
}

// Runs `launch(build, operands)` on the build and element type of the call, unless the format is refused.
template <class Launch>
KernelResult launched(const OpCall& call, std::string_view kernel_name, const Launch& launch) {
  if (KernelResult fault = refused(call, kernel_name)) return fault;
  with_build(call, call.view(ops::Attention::kQ).dtype,
             [&](auto build) { launch(build, operands_of<typename decltype(build)::Element>(call)); });
  return std::nullopt;
}

// Records of partial results for a combine step (kernels/split_attention.h) fit the scratch.
template <class T>
void require_scratch(const kernels::AttentionOperands<T>& operands) {
  const int64_t partial = operands.tokens * operands.splits * operands.heads * (operands.layout.latent + 2);
  FAULTLINE_CHECK(operands.splits == 1 || operands.scratch.extent >= partial);
}

// Kernel::own_shared_bytes of a body over such a tile.
template <int kKeys, int kHeads, kernels::MaskedKeys kMasked = kernels::MaskedKeys::kSkipped>
size_t tile_bytes(const CacheGeometry& cache) {
  using Tile = kernels::AttentionTile<Bf16, kKeys, kHeads, false, kernels::HostBlock, kMasked>;
  return Tile::shared_bytes(kernel_layout(cache));
}

inline Kernel own_attention(std::string name, std::string follows, KernelFn run, std::vector<Format> formats) {
  return Kernel{.name = std::move(name),
                .kind = ops::Attention::kName,
                .follows = std::move(follows),
                .run = run,
                .tolerance = tolerance_for(ops::Attention::kName, Dtype::kBF16),
                .cache_formats = std::move(formats)};
}

}  // namespace faultline::attention
