// index_scores.h on tensor cores: bf16 queries against fp8 keys of 128 dims.
//
// One block of 4 warps scores 64 keys (of one request) for a run of tokens. The keys are decoded once, to bf16 without
// their scales (exact), and stay in registers as operands: warp w holds keys [16 w, 16 w + 16). Per token the heads are
// the rows of the product; scale, rectifier and head weight are applied to its float results, and the heads summed up
// with shuffles. Tokens of another request in the run make the block decode that request's keys.
#include <cmath>

#include "kernels/cuda_vector.cuh"
#include "kernels/index_scores.h"

namespace faultline::kernels {
namespace {

constexpr int kDim = 128;
constexpr int kThreads = 128;
constexpr int kKeys = 64;
constexpr int kWarpKeys = 16;
constexpr int kRowBytes = kDim * 2;
constexpr int kRowChunks = kRowBytes / 16;
constexpr int kSteps = kDim / 16;
constexpr int kMostTokens = 16;  // a block's run
constexpr unsigned kEveryLane = 0xFFFFFFFFu;

__device__ __forceinline__ uint32_t place(int row, int chunk) {
  return static_cast<uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
}

// Shared memory: keys, then, in bytes from its start, two tokens' queries and weights, and the keys' scales.
template <int kHeadTiles>
struct Memory {
  static constexpr int kHeads = 16 * kHeadTiles;
  static constexpr int kQueries = kKeys * kRowBytes;
  static constexpr int kWeights = kQueries + 2 * kHeads * kRowBytes;
  static constexpr int kScales = kWeights + 2 * kHeads * 4;
  static constexpr int kBytes = kScales + kKeys * 4;
};

template <int kHeadTiles>
__global__ void __launch_bounds__(kThreads) score_keys(const __grid_constant__ IndexScoresOperands<Bf16> o,
                                                       int tokens_each, float head_scale, float dim_scale) {
  begin_dependent();
  using M = Memory<kHeadTiles>;
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ int ends[kMostTokens];
  __shared__ int requests[kMostTokens];
  const uint32_t base = shared_address(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int first = static_cast<int>(blockIdx.x) * kKeys;
  const int64_t first_token = static_cast<int64_t>(blockIdx.y) * tokens_each;
  const auto tokens = static_cast<int>(o.tokens - first_token < tokens_each ? o.tokens - first_token : tokens_each);
  if (thread < tokens) {
    const int64_t length = o.lengths.data[first_token + thread];
    ends[thread] = static_cast<int>(length < o.columns ? length : o.columns);
    requests[thread] = o.row_to_request.data[first_token + thread];
  }
  __syncthreads();
  const auto next_token = [&](int t) {
    while (t < tokens && ends[t] <= first) ++t;
    return t;
  };
  const auto fetch_queries = [&](int t, int buffer) {
    if (t < tokens) {
      const Bf16* q = o.q.data + (first_token + t) * o.q_token_stride;
      const uint32_t to = base + M::kQueries + static_cast<uint32_t>(buffer * M::kHeads * kRowBytes);
#pragma unroll
      for (int i = 0; i < M::kHeads * kRowChunks / kThreads; ++i) {
        const int item = thread + i * kThreads;
        const int head = item / kRowChunks;
        const int chunk = item % kRowChunks;
        copy_async(to + place(head, chunk), q + head * o.q_head_stride + chunk * kVector, true);
      }
      if (thread < M::kHeads)
        reinterpret_cast<float*>(memory + M::kWeights)[buffer * M::kHeads + thread] =
            o.head_weights.data[(first_token + t) * o.weight_stride + thread] * head_scale;
    }
    commit_copies();
  };

  uint32_t keys[kSteps][2][2];  // [16 dims][8 keys]
  float factors[2][2];          // what each column's sum is multiplied by
  int held = -1;                // the token for whose request `keys` was decoded
  int token = next_token(0);
  fetch_queries(token, 0);
  for (int buffer = 0; token < tokens; buffer ^= 1) {
    if (held < 0 || requests[held] != requests[token]) {
      held = token;
      int end = 0;  // the longest row of the request here: no slot past it is looked at
      for (int t = token; t < tokens && requests[t] == requests[token]; ++t) end = max(end, ends[t]);
      __syncthreads();  // the last keys are in registers everywhere
      const int row = thread / 2;
      const int half = thread % 2;
      uint4 codes[4] = {};
      float scale = 0;
      if (first + row < end) {
        const int64_t slot = o.page_table.data[requests[token] * o.page_table_stride + first + row];
        const auto* from = reinterpret_cast<const uint4*>(o.pool.data + o.layout.index_codes(slot)) + half * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) codes[i] = from[i];
        scale = *reinterpret_cast<const float*>(o.pool.data + o.layout.index_scale(slot));
      }
      if (half == 0) reinterpret_cast<float*>(memory + M::kScales)[row] = scale * dim_scale;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 a = decode_e4m3_to_bf16(codes[i].x);
        const uint2 b = decode_e4m3_to_bf16(codes[i].y);
        const uint2 c = decode_e4m3_to_bf16(codes[i].z);
        const uint2 d = decode_e4m3_to_bf16(codes[i].w);
        *reinterpret_cast<uint4*>(memory + place(row, half * 8 + 2 * i)) = uint4{a.x, a.y, b.x, b.y};
        *reinterpret_cast<uint4*>(memory + place(row, half * 8 + 2 * i + 1)) = uint4{c.x, c.y, d.x, d.y};
      }
      __syncthreads();
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        uint32_t four[4];
        load_matrices(four,
                      base + place(warp * kWarpKeys + (lane & 7) + ((lane >> 4) << 3), 2 * s + ((lane >> 3) & 1)));
        keys[s][0][0] = four[0];
        keys[s][0][1] = four[1];
        keys[s][1][0] = four[2];
        keys[s][1][1] = four[3];
      }
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          factors[n][c] =
              reinterpret_cast<const float*>(memory + M::kScales)[warp * kWarpKeys + n * 8 + 2 * (lane & 3) + c];
    }
    wait_for_copies();
    __syncthreads();  // the token's queries have arrived, and the other buffer is done with
    const int following = next_token(token + 1);
    fetch_queries(following, buffer ^ 1);
    float sums[kHeadTiles][2][4] = {};
    const uint32_t queries = base + M::kQueries + static_cast<uint32_t>(buffer * M::kHeads * kRowBytes);
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        uint32_t a[4];
        load_matrices(a, queries + place(h * 16 + (lane & 15), 2 * s + (lane >> 4)));
        multiply_add(sums[h][0], a, keys[s][0][0], keys[s][0][1]);
        multiply_add(sums[h][1], a, keys[s][1][0], keys[s][1][1]);
      }
    const float* weights = reinterpret_cast<const float*>(memory + M::kWeights) + buffer * M::kHeads + lane / 4;
    float scores[2][2] = {};
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float weight = weights[h * 16 + i * 8];
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const float score = sums[h][n][2 * i + c] * factors[n][c];
            scores[n][c] += weight * (score < 0 ? 0.0f : score);  // a NaN is not below 0 and stays one
          }
      }
    float* out = o.out.data + (first_token + token) * o.out_stride;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float sum = scores[n][c];
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kEveryLane, sum, step);
        const int column = first + warp * kWarpKeys + n * 8 + 2 * (lane & 3) + c;
        if (lane < 4 && column < ends[token]) out[column] = sum;
      }
    token = following;
  }
}

template <int kHeadTiles>
void launch_scores(const LaunchContext& context, const IndexScoresOperands<Bf16>& o, int tokens_each) {
  const dim3 grid(static_cast<unsigned>((o.columns + kKeys - 1) / kKeys),
                  static_cast<unsigned>((o.tokens + tokens_each - 1) / tokens_each));
  const float head_scale = 1.0f / sqrtf(static_cast<float>(o.heads));
  const float dim_scale = 1.0f / sqrtf(static_cast<float>(kDim));
  constexpr int kOptIn = 48 * 1024;
  if constexpr (Memory<kHeadTiles>::kBytes > kOptIn) {
    static const cudaError_t allowed = cudaFuncSetAttribute(
        score_keys<kHeadTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, Memory<kHeadTiles>::kBytes);
    static_cast<void>(allowed);
  }
  start(context, "index_scores", score_keys<kHeadTiles>, grid, kThreads, Memory<kHeadTiles>::kBytes, o, tokens_each,
        head_scale, dim_scale);
}

}  // namespace

bool cuda_faster(const LaunchContext& context, Grid, const IndexScoresBody<Bf16, false>& body) {
  const IndexScoresOperands<Bf16>& o = body.operands;
  constexpr int64_t kElement = sizeof(Bf16);
  constexpr int64_t kFewTokens = 64;  // below, blocks matter more than sharing the decoded keys
  constexpr int64_t kLargestGridY = 65535;
  constexpr int64_t kLargestColumns = 1 << 30;
  const int tokens_each = o.tokens <= kFewTokens ? 1 : kMostTokens;
  if (o.query_fp8) return false;
  if (o.tokens <= 0 || o.columns <= 0 || o.layout.format != RowFormat::kIndexFp8 || o.layout.latent != kDim ||
      o.columns > kLargestColumns || (o.tokens + tokens_each - 1) / tokens_each > kLargestGridY ||
      !aligned_for_vectors(o.q.data, o.q_token_stride * kElement, o.q_head_stride * kElement) ||
      !aligned_for_vectors(o.pool.data, o.layout.page_size * o.layout.row_stride))
    return false;
  if (o.heads == 16)
    launch_scores<1>(context, o, tokens_each);
  else if (o.heads == 32)
    launch_scores<2>(context, o, tokens_each);
  else if (o.heads == 64)
    launch_scores<4>(context, o, tokens_each);
  else
    return false;
  return true;
}

}  // namespace faultline::kernels
