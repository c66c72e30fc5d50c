// mqa_logits: scores of the DSA indexer over a paged cache of index keys.
//
//   out[t][c] = sum over heads of w[t][h] * heads^-0.5 * relu(q[t][h] . k[c] * dim^-0.5),  c < lengths[t]
//
// Queries in FP8 (`query_fp8`): each head's query becomes e4m3 codes with a scale of its own, as an index key does, and
// the scale goes into the head's weight (SGLang, layers/attention/nsa/nsa_indexer.py).
//
// One block scores 64 keys (one page: DeepGEMM's fp8_paged_mqa_logits has block_kv 64) of one token; thread j owns key
// j. Columns from lengths[t] on are left as they are (the server passes clean_logits=False). q: [tokens, heads, dim];
// head_weights: [tokens, heads] F32; page_table: [requests, columns] slots; row_to_request and lengths: [tokens]; out:
// [tokens, columns] F32. Row strides in elements.
#pragma once

#include <cmath>

#include "kernels/cache_rows.h"
#include "kernels/dot.h"

namespace faultline::kernels {

inline constexpr int kIndexKeys = 64;

template <class T>
struct IndexScoresOperands {
  Operand<T> q;
  Operand<float> head_weights;
  Operand<uint8_t> pool;
  Operand<int32_t> page_table;
  Operand<int32_t> row_to_request;
  Operand<int32_t> lengths;
  Operand<float> out;
  CacheLayout layout;  // latent is the head dim
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t columns = 0;  // of out
  int64_t q_token_stride = 0;
  int64_t q_head_stride = 0;
  int64_t weight_stride = 0;
  int64_t page_table_stride = 0;
  int64_t out_stride = 0;
  bool query_fp8 = false;
  bool query_ue8m0 = false;  // with scales that are powers of two
};

template <class T, bool kChecked>
struct IndexScoresBody {
  IndexScoresOperands<T> operands;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto q = open<kChecked>(operands.q, log, block);
    const auto head_weights = open<kChecked>(operands.head_weights, log, block);
    const auto pool = open<kChecked>(operands.pool, log, block);
    const auto page_table = open<kChecked>(operands.page_table, log, block);
    const auto row_to_request = open<kChecked>(operands.row_to_request, log, block);
    const auto lengths = open<kChecked>(operands.lengths, log, block);
    const auto out = open<kChecked>(operands.out, log, block);
    const int64_t token = block.index(1);
    const int64_t first = block.index(0) * kIndexKeys;
    const int64_t dim = operands.layout.latent;
    const int64_t heads = operands.heads;
    const int64_t length = lengths.load(token);
    const int64_t end = length < operands.columns ? length : operands.columns;
    if (first >= end) return;
    const int64_t count = end - first < kIndexKeys ? end - first : kIndexKeys;

    float* queries = block.template shared<float>(heads * dim);
    float* weights = block.template shared<float>(heads);
    float* keys = block.template shared<float>(kIndexKeys * dim);
    int64_t* slots = block.template shared<int64_t>(kIndexKeys);
    const float head_scale = 1.0f / sqrtf(static_cast<float>(heads));
    const float dim_scale = 1.0f / sqrtf(static_cast<float>(dim));

    block.for_each_thread([&](int t) {
      const int64_t request = row_to_request.load(token);
      if (t < count) slots[t] = page_table.load(request * operands.page_table_stride + first + t);
      for (int64_t h = t; h < heads; h += block.threads()) {
        weights[h] = head_weights.load(token * operands.weight_stride + h) * head_scale;
        const int64_t row = token * operands.q_token_stride + h * operands.q_head_stride;
        float amax = 0;  // NaN is passed over
        for (int64_t d = 0; d < dim; ++d) {
          queries[h * dim + d] = to_float(q.load(row + d));
          if (fabsf(queries[h * dim + d]) > amax) amax = fabsf(queries[h * dim + d]);
        }
        if (!operands.query_fp8) continue;
        const float scale = index_scale_of(amax, operands.query_ue8m0);
        const float inverse = 1.0f / scale;
        for (int64_t d = 0; d < dim; ++d) queries[h * dim + d] = to_float(to_e4m3(queries[h * dim + d] * inverse));
        weights[h] *= scale;
      }
    });
    stage_rows<kChecked>(block, pool, operands.layout, slots, count, keys);
    block.for_each_thread([&](int t) {
      if (t >= count) return;
      float sum = 0;
      for (int64_t h = 0; h < heads; ++h) {
        const float score = dot(queries + h * dim, keys + t * dim, dim) * dim_scale;
        sum += weights[h] * (score < 0 ? 0.0f : score);  // a NaN is not below 0 and stays one
      }
      out.store(token * operands.out_stride + first + t, sum);
    });
  }
};

#ifdef FAULTLINE_HAVE_CUDA
// cuda_index_scores.cu
bool cuda_faster(const LaunchContext& context, Grid grid, const IndexScoresBody<Bf16, false>& body);
#endif

template <class T, bool kChecked>
void launch_index_scores(const LaunchContext& context, const IndexScoresOperands<T>& operands) {
  const int64_t dim = operands.layout.latent;
  const int64_t floats = operands.heads * dim + operands.heads + kIndexKeys * dim;
  const size_t shared_bytes = static_cast<size_t>(floats) * sizeof(float) + (kIndexKeys + 1) * sizeof(int64_t);
  const Grid grid{(operands.columns + kIndexKeys - 1) / kIndexKeys, operands.tokens};
  launch(context, grid, kIndexKeys, shared_bytes, IndexScoresBody<T, kChecked>{operands, context.log});
}

}  // namespace faultline::kernels
