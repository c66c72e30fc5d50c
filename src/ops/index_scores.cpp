#include "kernels/index_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using ops::IndexScores;

void index_scores_model(const OpCall& call) {
  const TensorView& q = call.view(IndexScores::kQ);
  const TensorView& weights = call.view(IndexScores::kHeadWeights);
  const TensorView& page_table = call.view(IndexScores::kPageTable);
  const TensorView& row_to_request = call.view(IndexScores::kRowToRequest);
  const TensorView& lengths = call.view(IndexScores::kLengths);
  const TensorView& out = call.view(IndexScores::kOut);
  const CacheGeometry& geometry = *call.argument(IndexScores::kCache).geometry;
  const int64_t heads = q.dim(1);
  const int64_t dim = q.dim(2);
  const double head_scale = 1.0 / std::sqrt(static_cast<double>(heads));
  const double dim_scale = 1.0 / std::sqrt(static_cast<double>(dim));
  std::vector<float> key(static_cast<size_t>(geometry.width()));
  std::vector<float> query(static_cast<size_t>(heads * dim));
  std::vector<double> query_scale(static_cast<size_t>(heads), 1.0);
  const bool query_fp8 = call.attr().integer_or("query_fp8", 0) != 0;
  const bool ue8m0 = call.attr().integer_or("query_ue8m0", 0) != 0;
  for (int64_t t = 0; t < q.dim(0); ++t) {
    const int64_t request = row_to_request.load_index(row_to_request.offset(t));
    const int64_t length = std::min(lengths.load_index(lengths.offset(t)), out.dim(1));
    if (request < 0 || request >= page_table.dim(0)) continue;
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t d = 0; d < dim; ++d) query[static_cast<size_t>(h * dim + d)] = q.load(q.offset(t, h, d));
    for (int64_t h = 0; h < heads && query_fp8; ++h)
      query_scale[static_cast<size_t>(h)] = quantize_index_values(query.data() + h * dim, dim, ue8m0);
    for (int64_t c = 0; c < length; ++c) {
      const int64_t slot = page_table.load_index(page_table.offset(request, c));
      if (slot >= 0 && slot < geometry.slots)
        decode_slot(geometry, call.view(IndexScores::kCache).data, slot, key.data());
      else
        std::fill(key.begin(), key.end(), std::numeric_limits<float>::quiet_NaN());
      double sum = 0;
      for (int64_t h = 0; h < heads; ++h) {
        double score = 0;
        for (int64_t d = 0; d < dim; ++d)
          score += static_cast<double>(query[static_cast<size_t>(h * dim + d)]) * key[static_cast<size_t>(d)];
        score *= dim_scale;
        if (score < 0) score = 0;
        sum += weights.load(weights.offset(t, h)) * head_scale * query_scale[static_cast<size_t>(h)] * score;
      }
      out.store(out.offset(t, c), static_cast<float>(sum));
    }
  }
}

KernelResult run_index_scores(const OpCall& call) {
  const TensorView& q = call.view(IndexScores::kQ);
  with_build(call, q.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::IndexScoresOperands<T> operands;
    operands.q = kernel_operand<T>(call, IndexScores::kQ);
    operands.head_weights = kernel_operand<float>(call, IndexScores::kHeadWeights);
    operands.pool = kernel_pool(call, IndexScores::kCache);
    operands.page_table = kernel_operand<int32_t>(call, IndexScores::kPageTable);
    operands.row_to_request = kernel_operand<int32_t>(call, IndexScores::kRowToRequest);
    operands.lengths = kernel_operand<int32_t>(call, IndexScores::kLengths);
    operands.out = kernel_operand<float>(call, IndexScores::kOut);
    operands.layout = kernel_layout(*call.argument(IndexScores::kCache).geometry);
    operands.tokens = q.dim(0);
    operands.heads = q.dim(1);
    operands.columns = call.view(IndexScores::kOut).dim(1);
    operands.q_token_stride = q.stride[0];
    operands.q_head_stride = q.stride[1];
    operands.weight_stride = call.view(IndexScores::kHeadWeights).stride[0];
    operands.page_table_stride = call.view(IndexScores::kPageTable).stride[0];
    operands.out_stride = call.view(IndexScores::kOut).stride[0];
    operands.query_fp8 = call.attr().integer_or("query_fp8", 0) != 0;
    operands.query_ue8m0 = call.attr().integer_or("query_ue8m0", 0) != 0;
    kernels::launch_index_scores<T, decltype(build)::kChecked>(call.launch, operands);
  });
  return std::nullopt;
}

const RegisterKind kIndexScores{
    OpKind{.name = IndexScores::kName,
           .operands = {input("q"), input("head_weights"), input("index_cache", kTokenRows, Content::kCache),
                        input("page_table", kRequestRows, Content::kMetadata),
                        input("row_to_request", kTokenRows, Content::kMetadata),
                        input("lengths", kTokenRows, Content::kMetadata),
                        output("scores", Region{.lengths_operand = IndexScores::kLengths})},
           .model = index_scores_model}};

const RegisterKernel kMqaLogits{Kernel{.name = "mqa_logits",
                                       .kind = IndexScores::kName,
                                       .follows = "DeepGEMM fp8_paged_mqa_logits, as sglang's nsa_indexer.py calls it",
                                       .run = run_index_scores,
                                       .tolerance = tolerance_for(IndexScores::kName, Dtype::kF32),
                                       .cache_formats = {Format::kIndexFp8, Format::kIndexF32}}};

}  // namespace
}  // namespace faultline
