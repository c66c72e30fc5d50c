// CUDA-only bodies of norms, rotary embedding, sums and activations on bf16: 16-byte accesses, a row read once. Each
// computes what its single-source body (norm.h, rope.h, elementwise.h, moe.h) computes, in the same roundings.
#include "kernels/cuda_vector.cuh"
#include "kernels/elementwise.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace faultline::kernels {
namespace {

constexpr int64_t kElement = sizeof(Bf16);
constexpr int kWarp = 32;
constexpr int64_t kLargestBlock = 1024;

// --- norms: one block a row, eight columns a thread

template <class W, bool kLayerNorm>
__global__ void __launch_bounds__(kLargestBlock) norm_rows(const __grid_constant__ NormOperands<Bf16> o) {
  admit_next();
  __shared__ float partial[kWarp];
  const int64_t row = blockIdx.x;
  const int column = static_cast<int>(threadIdx.x) * kVector;
  const auto columns = static_cast<int>(o.columns);
  const bool present = column < columns;
  Eight x{};
  Eight weight{};
  Eight bias{};
  if (present) {  // weights, which no kernel writes
    weight = load_eight(static_cast<const W*>(o.weight.data) + column);
    if constexpr (kLayerNorm) bias = load_eight(static_cast<const W*>(o.bias.data) + column);
  }
  await_earlier();
  if (present) x = load_eight(o.x.data + row * o.x_stride + column);
  if constexpr (kLayerNorm) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += x.v[i];
    const float mean = block_sum(sum, partial) / static_cast<float>(columns);
#pragma unroll
    for (int i = 0; i < kVector; ++i) x.v[i] = present ? x.v[i] - mean : 0.0f;
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) squares += x.v[i] * x.v[i];
  const float scale = 1.0f / sqrtf(block_sum(squares, partial) / static_cast<float>(columns) + o.eps);
  if (!present) return;
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    x.v[i] = kLayerNorm ? x.v[i] * scale * weight.v[i] + bias.v[i] : rounded_to_bf16(x.v[i] * scale) * weight.v[i];
  store_eight(o.out.data + row * o.out_stride + column, x);
}

template <bool kLayerNorm>
bool launch_norm(const LaunchContext& context, const NormOperands<Bf16>& o) {
  const bool floats = o.weight.scalar == Scalar::kF32;
  if (o.rows <= 0 || o.columns % kVector != 0 || o.columns > kLargestBlock * kVector) return false;
  if (!floats && o.weight.scalar != Scalar::kBf16) return false;
  if (kLayerNorm && o.bias.scalar != o.weight.scalar) return false;
  if (!aligned_for_vectors(o.x.data, o.x_stride * kElement) ||
      !aligned_for_vectors(o.out.data, o.out_stride * kElement) || !aligned_for_vectors(o.weight.data) ||
      (kLayerNorm && !aligned_for_vectors(o.bias.data)))
    return false;
  const auto blocks = static_cast<unsigned>(o.rows);
  const auto threads = static_cast<unsigned>((o.columns / kVector + kWarp - 1) / kWarp * kWarp);
  if (floats)
    start(context, "norm", norm_rows<float, kLayerNorm>, blocks, threads, 0, o);
  else
    start(context, "norm", norm_rows<Bf16, kLayerNorm>, blocks, threads, 0, o);
  return true;
}

// --- rotary embedding: one block a token; a piece is eight dims, or twice eight of both halves of the pairs

constexpr int kRopeBlock = 512;

__global__ void __launch_bounds__(kRopeBlock) rotate_rows(const __grid_constant__ RopeOperands<Bf16> o) {
  begin_dependent();
  __shared__ float cosine[kMaxRopePairs];
  __shared__ float sine[kMaxRopePairs];
  const int64_t token = blockIdx.x;
  const auto pairs = static_cast<int>(o.rope_dim / 2);
  const int rotated = (o.interleaved ? 2 * pairs : pairs) / kVector;  // pieces a head
  const int pieces = rotated + static_cast<int>(o.dim - o.rope_dim) / kVector;
  const int count = static_cast<int>(o.heads) * pieces;
  const Bf16* x = o.x.data + token * o.x_token_stride;
  Bf16* out = o.out.data + token * o.out_token_stride;
  // A piece is fetched before the angles are there.
  uint4 first_bits{};
  uint4 second_bits{};
  const auto fetch = [&](int item) {
    const int piece = item % pieces;
    const Bf16* from = x + item / pieces * o.x_head_stride;
    first_bits = load_bits(from + (piece >= rotated ? o.rope_dim + (piece - rotated) * kVector : piece * kVector));
    if (!o.interleaved && piece < rotated) second_bits = load_bits(from + pairs + piece * kVector);
  };
  int item = static_cast<int>(threadIdx.x);
  if (item < count) fetch(item);
  if (pairs > 0) {
    const auto position = static_cast<float>(o.positions.data[token * o.position_stride]);
    for (int i = static_cast<int>(threadIdx.x); i < pairs; i += static_cast<int>(blockDim.x)) {
      const float angle = position * o.inv_freq[i];
      cosine[i] = cosf(angle);
      sine[i] = sinf(angle);
    }
  }
  __syncthreads();
  while (item < count) {
    const int piece = item % pieces;
    Bf16* to = out + item / pieces * o.out_head_stride;
    const uint4 bits = first_bits;
    const uint4 other = second_bits;
    item += static_cast<int>(blockDim.x);
    if (item < count) fetch(item);
    if (piece >= rotated) {
      *reinterpret_cast<uint4*>(to + o.rope_dim + (piece - rotated) * kVector) = bits;
    } else if (o.interleaved) {
      Eight e = unpack(bits);
#pragma unroll
      for (int i = 0; i < kVector; i += 2) {
        const float c = cosine[piece * (kVector / 2) + i / 2];
        const float s = sine[piece * (kVector / 2) + i / 2];
        const float a = e.v[i];
        const float b = e.v[i + 1];
        e.v[i] = a * c - b * s;
        e.v[i + 1] = b * c + a * s;
      }
      store_eight(to + piece * kVector, e);
    } else {
      Eight first = unpack(bits);
      Eight second = unpack(other);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float c = cosine[piece * kVector + i];
        const float s = sine[piece * kVector + i];
        const float a = first.v[i];
        const float b = second.v[i];
        first.v[i] = a * c - b * s;
        second.v[i] = b * c + a * s;
      }
      store_eight(to + piece * kVector, first);
      store_eight(to + pairs + piece * kVector, second);
    }
  }
}

// --- sums and activations: a thread a piece of eight columns

__global__ void __launch_bounds__(kPieceThreads)
    silu_mul_pieces(const Bf16* x, Bf16* out, int pieces, int columns, int64_t x_stride, int64_t out_stride) {
  begin_dependent();
  const int piece = static_cast<int>(blockIdx.x * kPieceThreads + threadIdx.x);
  if (piece >= pieces) return;
  const int64_t row = piece / (columns / kVector);
  const int column = piece % (columns / kVector) * kVector;
  const Eight gate = load_eight(x + row * x_stride + column);
  const Eight up = load_eight(x + row * x_stride + columns + column);
  Eight result;
#pragma unroll
  for (int i = 0; i < kVector; ++i) result.v[i] = gate.v[i] / (1.0f + expf(-gate.v[i])) * up.v[i];
  store_eight(out + row * out_stride + column, result);
}

__global__ void __launch_bounds__(kPieceThreads)
    add_pieces(const Bf16* a, const Bf16* b, Bf16* out, int pieces, int columns, int64_t a_stride, int64_t b_stride,
               int64_t out_stride) {
  begin_dependent();
  const int piece = static_cast<int>(blockIdx.x * kPieceThreads + threadIdx.x);
  if (piece >= pieces) return;
  const int64_t row = piece / (columns / kVector);
  const int column = piece % (columns / kVector) * kVector;
  const Eight left = load_eight(a + row * a_stride + column);
  Eight sum = load_eight(b + row * b_stride + column);
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum.v[i] = left.v[i] + sum.v[i];
  store_eight(out + row * out_stride + column, sum);
}

template <int kExperts>  // 0: any number
__global__ void __launch_bounds__(kPieceThreads)
    combine_pieces(const Bf16* x, const float* weights, Bf16* out, int pieces, int columns, int experts,
                   int64_t x_stride, int64_t weights_stride, int64_t out_stride) {
  begin_dependent();
  const int piece = static_cast<int>(blockIdx.x * kPieceThreads + threadIdx.x);
  if (piece >= pieces) return;
  const int64_t token = piece / (columns / kVector);
  const int column = piece % (columns / kVector) * kVector;
  const int k = kExperts > 0 ? kExperts : experts;
  Eight sum{};
  const auto add = [&](int j) {
    const float weight = weights[token * weights_stride + j];
    const Eight value = load_eight(x + (token * k + j) * x_stride + column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum.v[i] += weight * value.v[i];
  };
  if constexpr (kExperts > 0) {
#pragma unroll
    for (int j = 0; j < kExperts; ++j) add(j);
  } else {
    for (int j = 0; j < k; ++j) add(j);
  }
  store_eight(out + token * out_stride + column, sum);
}

}  // namespace

bool cuda_faster(const LaunchContext& context, Grid, const RmsNormBody<Bf16, false>& body) {
  return launch_norm<false>(context, body.operands);
}

bool cuda_faster(const LaunchContext& context, Grid, const LayerNormBody<Bf16, false>& body) {
  return launch_norm<true>(context, body.operands);
}

bool cuda_faster(const LaunchContext& context, Grid, const RopeBody<Bf16, false>& body) {
  const RopeOperands<Bf16>& o = body.operands;
  constexpr int64_t kLargestCount = 1 << 30;
  const int64_t pairs = o.rope_dim / 2;
  if (o.tokens <= 0 || o.tokens > kLargestCount || o.heads * o.dim > kLargestCount) return false;
  if (o.rope_dim % kVector != 0 || o.dim % kVector != 0 || (!o.interleaved && pairs % kVector != 0)) return false;
  if (!aligned_for_vectors(o.x.data, o.x_token_stride * kElement, o.x_head_stride * kElement) ||
      !aligned_for_vectors(o.out.data, o.out_token_stride * kElement, o.out_head_stride * kElement))
    return false;
  const int64_t items = o.heads * o.dim / kVector;
  const int64_t threads = items < kRopeBlock ? (items + kWarp - 1) / kWarp * kWarp : kRopeBlock;
  start(context, "rope", rotate_rows, static_cast<unsigned>(o.tokens), static_cast<unsigned>(threads), 0, o);
  return true;
}

bool cuda_faster(const LaunchContext& context, Grid grid, const SiluMulBody<Bf16, false>& body) {
  const unsigned blocks = piece_blocks(grid.x * body.columns / kVector);
  if (blocks == 0 || body.columns % kVector != 0 || !aligned_for_vectors(body.x.data, body.x_stride * kElement) ||
      !aligned_for_vectors(body.out.data, body.out_stride * kElement))
    return false;
  start(context, "silu_mul", silu_mul_pieces, blocks, kPieceThreads, 0, body.x.data, body.out.data,
        static_cast<int>(grid.x * body.columns / kVector), static_cast<int>(body.columns), body.x_stride,
        body.out_stride);
  return true;
}

bool cuda_faster(const LaunchContext& context, Grid grid, const AddBody<Bf16, false>& body) {
  const unsigned blocks = piece_blocks(grid.x * body.columns / kVector);
  if (blocks == 0 || body.columns % kVector != 0 || !aligned_for_vectors(body.a.data, body.a_stride * kElement) ||
      !aligned_for_vectors(body.b.data, body.b_stride * kElement) ||
      !aligned_for_vectors(body.out.data, body.out_stride * kElement))
    return false;
  start(context, "add", add_pieces, blocks, kPieceThreads, 0, body.a.data, body.b.data, body.out.data,
        static_cast<int>(grid.x * body.columns / kVector), static_cast<int>(body.columns), body.a_stride, body.b_stride,
        body.out_stride);
  return true;
}

bool cuda_faster(const LaunchContext& context, Grid grid, const MoeCombineBody<Bf16, false>& body) {
  constexpr int kUsual = 8;  // GLM-5's experts a token
  const unsigned blocks = piece_blocks(grid.x * body.columns / kVector);
  if (blocks == 0 || body.columns % kVector != 0 || !aligned_for_vectors(body.x.data, body.x_stride * kElement) ||
      !aligned_for_vectors(body.out.data, body.out_stride * kElement))
    return false;
  const auto kernel = body.k == kUsual ? combine_pieces<kUsual> : combine_pieces<0>;
  start(context, "moe_combine", kernel, blocks, kPieceThreads, 0, body.x.data, body.weights.data, body.out.data,
        static_cast<int>(grid.x * body.columns / kVector), static_cast<int>(body.columns), static_cast<int>(body.k),
        body.x_stride, body.weights_stride, body.out_stride);
  return true;
}

}  // namespace faultline::kernels
