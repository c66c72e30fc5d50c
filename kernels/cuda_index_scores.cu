// index_scores.h on tensor cores: bf16 queries, or their e4m3 codes, against fp8 keys of 128 dims.
//
// One block of 4 warps scores 64 or 128 keys (of one request) for a run of tokens. The keys are decoded once, to bf16
// without their scales (exact), and stay in registers as operands: a warp holds 16 or 32 of them. Per token the heads
// are the rows of the product; scale, rectifier and head weight are applied to its float results, and the heads summed
// up with shuffles. Tokens of another request in the run make the block decode that request's keys.
//
// FP8 queries are codes as bf16, which is exact, and their scales are factors of the head weights. Of few tokens each
// block makes them as it reads them; of many a kernel before makes them once, a run of tokens at a time, in memory that
// is kept.
#include <cmath>

#include "kernels/cuda_vector.cuh"
#include "kernels/index_scores.h"

namespace faultline::kernels {
namespace {

constexpr int kDim = 128;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kRowBytes = kDim * 2;
constexpr int kRowChunks = kRowBytes / 16;
constexpr int kSteps = kDim / 16;
constexpr int kMostTokens = 16;  // a block's run
constexpr unsigned kEveryLane = 0xFFFFFFFFu;

__device__ __forceinline__ uint32_t place(int row, int chunk) {
  return static_cast<uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
}

// Eight values of a head's query, of which 16 lanes side by side hold the others, as e4m3 codes in bf16, and the scale
// of that query.
__device__ __forceinline__ uint4 quantized(const uint4& bits, bool ue8m0, float& scale) {
  const Eight e = unpack(bits);
  float amax = 0;  // NaN is passed over
#pragma unroll
  for (int i = 0; i < kVector; ++i) amax = fmaxf(amax, fabsf(e.v[i]));
#pragma unroll
  for (int step = kRowChunks / 2; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(kEveryLane, amax, step));
  scale = index_scale_of(amax, ue8m0);
  const float inverse = 1.0f / scale;
  const uint2 codes{
      encode_e4m3_pair(e.v[0] * inverse, e.v[1] * inverse) | encode_e4m3_pair(e.v[2] * inverse, e.v[3] * inverse) << 16,
      encode_e4m3_pair(e.v[4] * inverse, e.v[5] * inverse) | encode_e4m3_pair(e.v[6] * inverse, e.v[7] * inverse)
                                                                 << 16};
  const uint2 low = decode_e4m3_to_bf16(codes.x);
  const uint2 high = decode_e4m3_to_bf16(codes.y);
  return uint4{low.x, low.y, high.x, high.y};
}

// Shared memory: keys, then, in bytes from its start, two tokens' queries and weights, and the keys' scales.
template <int kHeadTiles, int kKeyTiles>
struct Memory {
  static constexpr int kWarpKeys = 8 * kKeyTiles;
  static constexpr int kKeys = kWarps * kWarpKeys;
  static constexpr int kHeads = 16 * kHeadTiles;
  static constexpr int kQueries = kKeys * kRowBytes;
  static constexpr int kWeights = kQueries + 2 * kHeads * kRowBytes;
  static constexpr int kScales = kWeights + 2 * kHeads * 4;
  static constexpr int kBytes = kScales + kKeys * 4;
};

// What o.q holds: queries, queries that are to be made codes, or a token's heads as they shall lie in shared memory.
enum class Queries : uint8_t { kPlain, kToQuantize, kPlaced };

template <int kHeadTiles, int kKeyTiles, Queries kQueries>
__global__ void __launch_bounds__(kThreads) score_keys(const __grid_constant__ IndexScoresOperands<Bf16> o,
                                                       int tokens_each, float head_scale, float dim_scale) {
  begin_dependent();
  using M = Memory<kHeadTiles, kKeyTiles>;
  constexpr int kKeys = M::kKeys;
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
      float* const weights = reinterpret_cast<float*>(memory + M::kWeights) + buffer * M::kHeads;
      const float* const head_weights = o.head_weights.data + (first_token + t) * o.weight_stride;
#pragma unroll
      for (int i = 0; i < M::kHeads * kRowChunks / kThreads; ++i) {
        const int item = thread + i * kThreads;
        const int head = item / kRowChunks;
        const int chunk = item % kRowChunks;
        const Bf16* const from = q + head * o.q_head_stride + chunk * kVector;
        if constexpr (kQueries == Queries::kPlaced) {
          copy_async(to + static_cast<uint32_t>(item) * 16, q + item * kVector, true);
        } else if constexpr (kQueries == Queries::kToQuantize) {
          float scale;
          const uint4 codes = quantized(load_bits(from), o.query_ue8m0, scale);
          *reinterpret_cast<uint4*>(memory + (to - base) + place(head, chunk)) = codes;
          if (chunk == 0) weights[head] = head_weights[head] * head_scale * scale;
        } else {
          copy_async(to + place(head, chunk), from, true);
        }
      }
      if (kQueries != Queries::kToQuantize && thread < M::kHeads) weights[thread] = head_weights[thread] * head_scale;
    }
    commit_copies();
  };

  uint32_t keys[kSteps][kKeyTiles][2];  // [16 dims][8 keys]
  float factors[kKeyTiles][2];          // what each column's sum is multiplied by
  int held = -1;                        // the token for whose request `keys` was decoded
  int token = next_token(0);
  fetch_queries(token, 0);
  for (int buffer = 0; token < tokens; buffer ^= 1) {
    if (held < 0 || requests[held] != requests[token]) {
      held = token;
      int end = 0;  // the longest row of the request here: no slot past it is looked at
      for (int t = token; t < tokens && requests[t] == requests[token]; ++t) end = max(end, ends[t]);
      __syncthreads();  // the last keys are in registers everywhere
#pragma unroll
      for (int i = 0; i < kKeys; i += kThreads / 2) {
        const int row = i + thread / 2;
        const int half = thread % 2;
        uint4 codes[4] = {};
        float scale = 0;
        if (first + row < end) {
          const int64_t slot = o.page_table.data[requests[token] * o.page_table_stride + first + row];
          const auto* from = reinterpret_cast<const uint4*>(o.pool.data + o.layout.index_codes(slot)) + half * 4;
#pragma unroll
          for (int c = 0; c < 4; ++c) codes[c] = from[c];
          scale = *reinterpret_cast<const float*>(o.pool.data + o.layout.index_scale(slot));
        }
        if (half == 0) reinterpret_cast<float*>(memory + M::kScales)[row] = scale * dim_scale;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const uint2 pairs[4] = {decode_e4m3_to_bf16(codes[c].x), decode_e4m3_to_bf16(codes[c].y),
                                  decode_e4m3_to_bf16(codes[c].z), decode_e4m3_to_bf16(codes[c].w)};
#pragma unroll
          for (int j = 0; j < 2; ++j)
            *reinterpret_cast<uint4*>(memory + place(row, half * 8 + 2 * c + j)) =
                uint4{pairs[2 * j].x, pairs[2 * j].y, pairs[2 * j + 1].x, pairs[2 * j + 1].y};
        }
      }
      __syncthreads();
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int n = 0; n < kKeyTiles; n += 2) {
          uint32_t four[4];
          load_matrices(four, base + place(warp * M::kWarpKeys + n * 8 + (lane & 7) + ((lane >> 4) << 3),
                                           2 * s + ((lane >> 3) & 1)));
          keys[s][n][0] = four[0];
          keys[s][n][1] = four[1];
          keys[s][n + 1][0] = four[2];
          keys[s][n + 1][1] = four[3];
        }
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          factors[n][c] =
              reinterpret_cast<const float*>(memory + M::kScales)[warp * M::kWarpKeys + n * 8 + 2 * (lane & 3) + c];
    }
    wait_for_copies();
    __syncthreads();  // the token's queries have arrived, and the other buffer is done with
    const int following = next_token(token + 1);
    fetch_queries(following, buffer ^ 1);
    float sums[kHeadTiles][kKeyTiles][4] = {};
    const uint32_t queries = base + M::kQueries + static_cast<uint32_t>(buffer * M::kHeads * kRowBytes);
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        uint32_t a[4];
        load_matrices(a, queries + place(h * 16 + (lane & 15), 2 * s + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) multiply_add(sums[h][n], a, keys[s][n][0], keys[s][n][1]);
      }
    const float* weights = reinterpret_cast<const float*>(memory + M::kWeights) + buffer * M::kHeads + lane / 4;
    float scores[kKeyTiles][2] = {};
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float weight = weights[h * 16 + i * 8];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const float score = sums[h][n][2 * i + c] * factors[n][c];
            scores[n][c] += weight * (score < 0 ? 0.0f : score);  // a NaN is not below 0 and stays one
          }
      }
    float* out = o.out.data + (first_token + token) * o.out_stride;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float sum = scores[n][c];
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kEveryLane, sum, step);
        const int column = first + warp * M::kWarpKeys + n * 8 + 2 * (lane & 3) + c;
        if (lane < 4 && column < ends[token]) out[column] = sum;
      }
    token = following;
  }
}

// Half a warp a query. Codes go where copies of a token's bytes in a row put them in place.
__global__ void __launch_bounds__(kThreads) quantize_queries(const __grid_constant__ IndexScoresOperands<Bf16> o,
                                                             Bf16* codes, float* weights, float head_scale) {
  begin_dependent();
  const int64_t query = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kRowChunks;
  const bool inside = query < o.tokens * o.heads;  // lanes that share a query agree, but a warp's halves may not
  const int64_t token = inside ? query / o.heads : 0;
  const int64_t head = inside ? query % o.heads : 0;
  const int at = static_cast<int>(threadIdx.x) % kRowChunks * kVector;
  float scale;
  const uint4 result =
      quantized(load_bits(o.q.data + token * o.q_token_stride + head * o.q_head_stride + at), o.query_ue8m0, scale);
  if (!inside) return;
  const uint32_t to = place(static_cast<int>(head), at / kVector) / static_cast<uint32_t>(sizeof(Bf16));
  *reinterpret_cast<uint4*>(codes + token * o.heads * kDim + to) = result;
  if (at == 0) weights[query] = o.head_weights.data[token * o.weight_stride + head] * head_scale * scale;
}

// Codes and weights of a run of tokens, allocated once a process (its launches share a stream).
class QuantizedQueries {
 public:
  static constexpr int64_t kMostQueries = 128 * 1024;  // 34 MB: 4096 tokens of 32 heads
  // Null where there is none: in a capture that comes first, or without memory.
  static QuantizedQueries* get(const LaunchContext& context) {
    static QuantizedQueries queries;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (queries.codes == nullptr &&
        cudaStreamIsCapturing(static_cast<cudaStream_t>(context.stream), &status) == cudaSuccess &&
        status == cudaStreamCaptureStatusNone &&
        cudaMalloc(&queries.codes, static_cast<size_t>(kMostQueries) * (kRowBytes + sizeof(float))) == cudaSuccess)
      queries.weights = reinterpret_cast<float*>(queries.codes + kMostQueries * kDim);
    if (queries.codes != nullptr) return &queries;
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  Bf16* codes = nullptr;
  float* weights = nullptr;
};

constexpr int64_t kLargestGridY = 65535;

template <int kHeadTiles, int kKeyTiles, Queries kQueries>
void launch_variant(const LaunchContext& context, const IndexScoresOperands<Bf16>& o, int tokens_each,
                    float head_scale) {
  using M = Memory<kHeadTiles, kKeyTiles>;
  const dim3 grid(static_cast<unsigned>((o.columns + M::kKeys - 1) / M::kKeys),
                  static_cast<unsigned>((o.tokens + tokens_each - 1) / tokens_each));
  const float dim_scale = 1.0f / sqrtf(static_cast<float>(kDim));
  const auto kernel = score_keys<kHeadTiles, kKeyTiles, kQueries>;
  constexpr int kOptIn = 48 * 1024;
  if constexpr (M::kBytes > kOptIn) {
    static const cudaError_t allowed =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, M::kBytes);
    static_cast<void>(allowed);
  }
  start(context, "index_scores", kernel, grid, kThreads, M::kBytes, o, tokens_each, head_scale, dim_scale);
}

template <int kHeadTiles>
void launch_scores(const LaunchContext& context, const IndexScoresOperands<Bf16>& o) {
  constexpr int64_t kFewTokens = 64;  // below, blocks matter more than sharing the decoded keys
  constexpr int kFewKeyTiles = 2;
  constexpr int kKeyTiles = 4;
  const float head_scale = 1.0f / sqrtf(static_cast<float>(o.heads));
  if (o.tokens <= kFewTokens) {
    const auto launch = o.query_fp8 ? launch_variant<kHeadTiles, kFewKeyTiles, Queries::kToQuantize>
                                    : launch_variant<kHeadTiles, kFewKeyTiles, Queries::kPlain>;
    return launch(context, o, 1, head_scale);
  }
  if (!o.query_fp8) return launch_variant<kHeadTiles, kKeyTiles, Queries::kPlain>(context, o, kMostTokens, head_scale);
  const QuantizedQueries* const space = QuantizedQueries::get(context);
  if (space == nullptr)
    return launch_variant<kHeadTiles, kFewKeyTiles, Queries::kToQuantize>(context, o, kMostTokens, head_scale);
  const int64_t most = QuantizedQueries::kMostQueries / o.heads;
  for (int64_t first = 0; first < o.tokens; first += most) {
    IndexScoresOperands<Bf16> part = o;
    part.tokens = o.tokens - first < most ? o.tokens - first : most;
    part.q.data += first * o.q_token_stride;
    part.head_weights.data += first * o.weight_stride;
    part.row_to_request.data += first;
    part.lengths.data += first;
    part.out.data += first * o.out_stride;
    const auto blocks = static_cast<unsigned>((part.tokens * o.heads * kRowChunks + kThreads - 1) / kThreads);
    start(context, "index_scores", quantize_queries, blocks, kThreads, 0, part, space->codes, space->weights,
          head_scale);
    part.q.data = space->codes;
    part.q_head_stride = kDim;
    part.q_token_stride = o.heads * kDim;
    part.head_weights.data = space->weights;
    part.weight_stride = o.heads;
    launch_variant<kHeadTiles, kKeyTiles, Queries::kPlaced>(context, part, kMostTokens, 1.0f);
  }
}

}  // namespace

bool cuda_faster(const LaunchContext& context, Grid, const IndexScoresBody<Bf16, false>& body) {
  const IndexScoresOperands<Bf16>& o = body.operands;
  constexpr int64_t kElement = sizeof(Bf16);
  constexpr int64_t kLargestColumns = 1 << 30;
  if (o.tokens <= 0 || o.columns <= 0 || o.layout.format != RowFormat::kIndexFp8 || o.layout.latent != kDim ||
      o.columns > kLargestColumns || (o.tokens + kMostTokens - 1) / kMostTokens > kLargestGridY ||
      !aligned_for_vectors(o.q.data, o.q_token_stride * kElement, o.q_head_stride * kElement) ||
      !aligned_for_vectors(o.pool.data, o.layout.page_size * o.layout.row_stride))
    return false;
  if (o.heads == 16)
    launch_scores<1>(context, o);
  else if (o.heads == 32)
    launch_scores<2>(context, o);
  else if (o.heads == 64)
    launch_scores<4>(context, o);
  else
    return false;
  return true;
}

}  // namespace faultline::kernels
