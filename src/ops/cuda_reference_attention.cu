// References of index_scores and attention: every sum in double.
#include "ops/cuda_reference_device.cuh"

namespace faultline::cuda_reference {
namespace {

// One warp a score.
__global__ void index_scores_kernel(const IndexScoresOperands o) {
  const int64_t t = warp_index() / o.out.shape[1];
  const int64_t c = warp_index() % o.out.shape[1];
  if (t >= o.q.shape[0]) return;
  const int64_t request = o.row_to_request.load_index(o.row_to_request.offset(t));
  if (request < 0 || request >= o.page_table.shape[0]) return;
  if (c >= o.lengths.load_index(o.lengths.offset(t))) return;
  const int64_t heads = o.q.shape[1];
  const int64_t dim = o.q.shape[2];
  const double head_scale = 1.0 / sqrt(static_cast<double>(heads));
  const double dim_scale = 1.0 / sqrt(static_cast<double>(dim));
  const int64_t slot = o.page_table.load_index(o.page_table.offset(request, c));
  const bool exists = slot >= 0 && slot < o.cache.slots;
  double sum = 0;
  for (int64_t h = 0; h < heads; ++h) {
    const auto query = [&](int64_t d) { return o.q.load(o.q.offset(t, h, d)); };
    const float scale = o.query_fp8 ? index_scale_value(warp_amax(query, 0, dim), o.query_ue8m0) : 1.0f;
    const float inverse = 1.0f / scale;
    double score = 0;
    for (int64_t d = lane(); d < dim; d += kWarp) {
      const float key = exists ? slot_value(o.cache, slot, d) : nan_value();
      const float value = o.query_fp8 ? e4m3_to_float(saturated_code(query(d) * inverse)) : query(d);
      score += static_cast<double>(value) * key;
    }
    score = warp_sum(score) * dim_scale;
    if (score < 0) score = 0;
    sum += o.head_weights.load(o.head_weights.offset(t, h)) * head_scale * scale * score;
  }
  if (lane() == 0) o.out.store(o.out.offset(t, c), static_cast<float>(sum));
}

// The keys of one token: candidate j is a slot (or a row of a contiguous buffer), or nothing where it points nowhere.
struct Keys {
  const AttentionOperands& o;
  int64_t token;
  int64_t request = 0;
  int64_t first = 0;
  int64_t candidates = 0;

  __device__ Keys(const AttentionOperands& operands, int64_t token_) : o(operands), token(token_) {
    if (o.keys == KeysOf::kIndices) {
      candidates = o.indices.shape[1];
      return;
    }
    candidates = o.lengths.load_index(o.lengths.offset(token));
    if (o.keys == KeysOf::kRagged) {
      first = o.ragged_offsets.load_index(o.ragged_offsets.offset(token));
      candidates = smaller(candidates, o.cache.slots - first);
      return;
    }
    request = o.row_to_request.load_index(o.row_to_request.offset(token));
    const bool known = request >= 0 && request < o.page_table.shape[0];
    candidates = known ? smaller(candidates, o.page_table.shape[1]) : 0;
  }
  // -1 where there is none.
  __device__ int64_t slot(int64_t j) const {
    int64_t result = first + j;
    if (o.keys == KeysOf::kIndices) result = o.indices.load_index(o.indices.offset(token, j));
    if (o.keys == KeysOf::kPageTable) result = o.page_table.load_index(o.page_table.offset(request, j));
    return result >= 0 && result < o.cache.slots ? result : -1;
  }
};

// The same for every lane.
__device__ double warp_score(const AttentionOperands& o, int64_t token, int64_t head, int64_t slot) {
  double score = 0;
  for (int64_t d = lane(); d < o.cache.width(); d += kWarp)
    score += static_cast<double>(o.q.load(o.q.offset(token, head, d))) * slot_value(o.cache, slot, d);
  return warp_sum(score) * o.scale;
}

// One block a token and head. The scores are computed twice rather than kept: first for their maximum, then, kThreads
// at a time, for the weights.
__global__ void attention_kernel(const AttentionOperands o) {
  constexpr int64_t kChunk = kThreads;
  constexpr int64_t kColumnsPerThread = 2;  // of out, at a time: all 512 of GLM-5 at once
  __shared__ double weight[kChunk];
  __shared__ int64_t slot_of[kChunk];
  const int64_t heads = o.q.shape[1];
  const int64_t token = blockIdx.x / heads;
  const int64_t head = blockIdx.x % heads;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const Keys keys(o, token);

  double largest = -INFINITY;
  double found = 0;
  for (int64_t j = warp; j < keys.candidates; j += kWarpsPerBlock) {
    const int64_t slot = keys.slot(j);
    if (slot < 0) continue;
    if (lane() == 0) ++found;
    const double score = warp_score(o, token, head, slot);
    if (largest < score) largest = score;  // NaN is no maximum; its weight becomes NaN all the same
  }
  largest = block_reduce(largest, [](double a, double b) { return a < b ? b : a; });
  found = block_sum(found);

  for (int64_t columns = 0; columns < o.cache.latent; columns += kColumnsPerThread * kThreads) {
    double sums[kColumnsPerThread] = {};
    double total = 0;
    for (int64_t begin = 0; begin < keys.candidates; begin += kChunk) {
      const int64_t count = smaller(kChunk, keys.candidates - begin);
      for (int64_t j = warp; j < count; j += kWarpsPerBlock) {
        const int64_t slot = keys.slot(begin + j);
        const double score = slot < 0 ? 0.0 : warp_score(o, token, head, slot);
        if (lane() != 0) continue;
        slot_of[j] = slot;
        weight[j] = slot < 0 ? 0.0 : exp(score - largest);
      }
      __syncthreads();
      for (int64_t j = 0; j < count; ++j) {
        if (slot_of[j] < 0) continue;
        total += weight[j];
        for (int64_t i = 0; i < kColumnsPerThread; ++i) {
          const int64_t c = columns + i * kThreads + threadIdx.x;
          if (c < o.cache.latent) sums[i] += weight[j] * slot_value(o.cache, slot_of[j], c);
        }
      }
      __syncthreads();
    }
    for (int64_t i = 0; i < kColumnsPerThread; ++i) {
      const int64_t c = columns + i * kThreads + threadIdx.x;
      if (c < o.cache.latent)
        o.out.store(o.out.offset(token, head, c), found > 0 ? static_cast<float>(sums[i] / total) : 0.0f);
    }
  }
}

}  // namespace

void index_scores(void* stream, const IndexScoresOperands& operands) {
  start(stream, blocks_for(operands.q.shape[0] * operands.out.shape[1], kWarpsPerBlock), kThreads, 0,
        index_scores_kernel, operands);
}
void attention(void* stream, const AttentionOperands& operands) {
  start(stream, operands.q.shape[0] * operands.q.shape[1], kThreads, 0, attention_kernel, operands);
}

}  // namespace faultline::cuda_reference
