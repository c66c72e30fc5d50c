// References of quantize_fp4 and of every product. A warp computes one element of the output, its lanes along K.
#include "ops/cuda_reference_device.cuh"

namespace faultline::cuda_reference {
namespace {

constexpr int64_t kFp4Block = 16;    // values that share an e4m3 scale
constexpr int64_t kFp8Block = 128;   // rows and columns that share a float scale
constexpr float kFp4Largest = 6.0f;  // largest e2m1 magnitude

__device__ float code_value(const Tensor& codes, const Tensor& scales, int64_t row, int64_t c) {
  const uint8_t byte = codes.as<uint8_t>()[codes.offset(row, c / 2)];
  const uint8_t code = c % 2 == 0 ? byte & 15u : byte >> 4;
  return e2m1_to_float(code) * e4m3_to_float(scales.as<uint8_t>()[scales.offset(row, c / kFp4Block)]);
}

// One matrix of a list. A scale that it does not have is a tensor without data.
struct Matrix {
  Tensor values;
  Tensor block_scale;
  Tensor global_scale;
  bool fp4;

  __device__ float value(int64_t row, int64_t c, bool with_global_scale) const {
    if (fp4) {
      const float value = code_value(values, block_scale, row, c);
      return with_global_scale && global_scale.data != nullptr ? value * global_scale.load(0) : value;
    }
    const float value = values.load(values.offset(row, c));
    if (values.dtype != Dtype::kF8E4M3 || block_scale.data == nullptr) return value;
    const bool blocks = block_scale.shape[0] > 1 || block_scale.shape[1] > 1;
    return value * block_scale.load(blocks ? block_scale.offset(row / kFp8Block, c / kFp8Block) : 0);
  }
};

__device__ Tensor tensor_at(const List& list, int64_t at) {
  return at < list.count ? list.at[at] : Tensor{};
}
__device__ Matrix matrix_at(const Weights& weights, int64_t at) {
  return Matrix{tensor_at(weights.values, at), tensor_at(weights.block_scale, at), tensor_at(weights.global_scale, at),
                weights.fp4};
}

// The maximum of a list of scalars. NaN wins, as in torch.max.
__device__ float warp_largest(const List& list) {
  const auto larger = [](float a, float b) { return b > a || b != b ? b : a; };
  float largest = list.at[0].load(0);
  for (int64_t i = lane(); i < list.count; i += kWarp) largest = larger(largest, list.at[i].load(0));
  for (int step = kWarp / 2; step > 0; step /= 2)
    largest = larger(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
  return largest;
}

// Row `row` of x times row `n` of the matrix.
__device__ float warp_product(const Activations& x, int64_t row, const Matrix& w, int64_t n) {
  const float input_scale = x.fp4 ? warp_largest(x.input_scale) : 1.0f;
  float sum = 0;
  if (x.fp4) {
    const float factor = x.factor_last ? 1.0f : input_scale;
    for (int64_t c = lane(); c < x.columns; c += kWarp)
      sum += code_value(x.x, x.scales, row, c) * factor * w.value(n, c, !x.factor_last);
  } else {
    for (int64_t c = lane(); c < x.columns; c += kWarp) sum += x.x.load(x.x.offset(row, c)) * w.value(n, c, true);
  }
  sum = warp_sum(sum);
  return x.factor_last ? sum * (input_scale * w.global_scale.load(0)) : sum;
}

// Block b of row `from` of x, as block b of row r.
__device__ void quantize_block(const Tensor& x, int64_t from, float global, const Tensor& codes, const Tensor& scales,
                               int64_t r, int64_t b) {
  const int64_t begin = b * kFp4Block;
  float amax = fabsf(x.load(x.offset(from, begin)));
  // The hardware's maximum drops a NaN beside a number; only a block of nothing else keeps it.
  for (int64_t c = 1; c < kFp4Block; ++c) amax = fmaxf(amax, fabsf(x.load(x.offset(from, begin + c))));
  const float unrounded = global * amax / kFp4Largest;
  // NaN has one code here, as in hardware: the positive one, whatever the sign of the float's.
  const uint8_t code = unrounded != unrounded ? uint8_t{0x7F} : float_to_e4m3(clamp_e4m3(unrounded));
  scales.as<uint8_t>()[scales.offset(r, b)] = code;
  const float scale = e4m3_to_float(code);
  const float factor = scale == 0.0f ? 0.0f : global / scale;
  for (int64_t c = 0; c < kFp4Block; c += 2) {
    const uint8_t low = float_to_e2m1(x.load(x.offset(from, begin + c)) * factor);
    const uint8_t high = float_to_e2m1(x.load(x.offset(from, begin + c + 1)) * factor);
    codes.as<uint8_t>()[codes.offset(r, (begin + c) / 2)] = static_cast<uint8_t>(low | (high << 4));
  }
}

// One warp a block of 16 values.
__global__ void quantize_fp4_kernel(const Tensor x, const List input_scale, const Tensor codes, const Tensor scales) {
  const int64_t r = warp_index() / scales.shape[1];
  if (r >= x.shape[0]) return;
  const float global = 1.0f / warp_largest(input_scale);
  if (lane() == 0) quantize_block(x, r, global, codes, scales, r, warp_index() % scales.shape[1]);
}

// The input scales of one expert.
__device__ List own_scales(const List& all, int64_t expert, int64_t each) {
  return List{all.at + expert * each, each};
}

__global__ void quantize_fp4_experts_kernel(const Tensor x, const Tensor ids, const List input_scale,
                                            const Tensor codes, const Tensor scales, int64_t rows_per_x, int64_t each) {
  const int64_t r = warp_index() / scales.shape[1];
  const int64_t k = ids.shape[1];
  if (r >= ids.shape[0] * k) return;
  const int64_t expert = ids.load_index(ids.offset(r / k, r % k));
  if (expert < 0 || expert >= input_scale.count / each) return;
  const float global = 1.0f / warp_largest(own_scales(input_scale, expert, each));
  if (lane() == 0) quantize_block(x, r / rows_per_x, global, codes, scales, r, warp_index() % scales.shape[1]);
}

__global__ void linear_kernel(const Activations x, const Weights weights, const Tensor out) {
  const int64_t t = warp_index() / out.shape[1];
  const int64_t column = warp_index() % out.shape[1];
  if (t >= out.shape[0]) return;
  int64_t n = column;  // the row of the matrix that makes this column
  int64_t at = 0;
  while (at < weights.values.count && n >= weights.values.at[at].shape[0]) n -= weights.values.at[at++].shape[0];
  if (at == weights.values.count) return;
  const float result = warp_product(x, t, matrix_at(weights, at), n);
  if (lane() == 0) out.store(out.offset(t, column), result);
}

__global__ void batched_linear_kernel(const Tensor x, const Tensor w, const Tensor out, bool weight_kn) {
  const int64_t n = warp_index() % out.shape[2];
  const int64_t h = warp_index() / out.shape[2] % x.shape[1];
  const int64_t t = warp_index() / out.shape[2] / x.shape[1];
  if (t >= x.shape[0]) return;
  float sum = 0;
  for (int64_t k = lane(); k < x.shape[2]; k += kWarp)
    sum += x.load(x.offset(t, h, k)) * w.load(weight_kn ? w.offset(h, k, n) : w.offset(h, n, k));
  sum = warp_sum(sum);
  if (lane() == 0) out.store(out.offset(t, h, n), sum);
}

// Position p of `order` belongs to the expert e with offsets[e] <= p < offsets[e + 1].
__global__ void expert_linear_kernel(const ExpertOperands o) {
  const int64_t p = warp_index() / o.out.shape[1];
  const int64_t column = warp_index() % o.out.shape[1];
  if (p >= o.order.shape[0]) return;
  const int64_t experts = o.offsets.shape[0] - 1;
  int ended = 0;  // experts whose rows end at p or before
  for (int64_t e = lane(); e < experts; e += kWarp) ended += o.offsets.load_index(e + 1) <= p ? 1 : 0;
  const int64_t expert = warp_sum(ended);
  if (expert >= experts || p < o.offsets.load_index(0)) return;
  const int64_t flat = o.order.load_index(p);
  const int64_t row = o.x_per_token ? flat / o.k : flat;
  if (flat < 0 || flat >= o.out.shape[0] || row >= o.x.x.shape[0]) return;
  const int64_t width = o.out.shape[1] / o.stacked;
  const Matrix matrix = matrix_at(o.weights, expert * o.stacked + column / width);
  Activations x = o.x;
  if (x.fp4 && x.each > 0) x.input_scale = own_scales(x.input_scale, expert, x.each);
  const float result = warp_product(x, row, matrix, column % width);
  if (lane() == 0) o.out.store(o.out.offset(flat, column), result);
}

// One thread an element of out.
__global__ void moe_combine_kernel(const Tensor x, const Tensor weights, const Tensor out) {
  const int64_t t = thread_index() / out.shape[1];
  const int64_t c = thread_index() % out.shape[1];
  if (t >= out.shape[0]) return;
  const int64_t k = weights.shape[1];
  float sum = 0;
  for (int64_t j = 0; j < k; ++j) sum += weights.load(weights.offset(t, j)) * x.load(x.offset(t * k + j, c));
  out.store(out.offset(t, c), sum);
}

}  // namespace

void quantize_fp4(void* stream, const Tensor& x, const List& input_scale, const Tensor& codes, const Tensor& scales) {
  start(stream, blocks_for(x.shape[0] * scales.shape[1], kWarpsPerBlock), kThreads, 0, quantize_fp4_kernel, x,
        input_scale, codes, scales);
}
void quantize_fp4_experts(void* stream, const Tensor& x, const Tensor& ids, const List& input_scale,
                          const Tensor& codes, const Tensor& scales, int64_t rows_per_x, int64_t each) {
  start(stream, blocks_for(codes.shape[0] * scales.shape[1], kWarpsPerBlock), kThreads, 0, quantize_fp4_experts_kernel,
        x, ids, input_scale, codes, scales, rows_per_x, each);
}
void linear(void* stream, const Activations& x, const Weights& weights, const Tensor& out) {
  start(stream, blocks_for(out.shape[0] * out.shape[1], kWarpsPerBlock), kThreads, 0, linear_kernel, x, weights, out);
}
void batched_linear(void* stream, const Tensor& x, const Tensor& weight, const Tensor& out, bool weight_kn) {
  start(stream, blocks_for(x.shape[0] * x.shape[1] * out.shape[2], kWarpsPerBlock), kThreads, 0, batched_linear_kernel,
        x, weight, out, weight_kn);
}
void expert_linear(void* stream, const ExpertOperands& operands) {
  start(stream, blocks_for(operands.order.shape[0] * operands.out.shape[1], kWarpsPerBlock), kThreads, 0,
        expert_linear_kernel, operands);
}
void moe_combine(void* stream, const Tensor& x, const Tensor& weights, const Tensor& out) {
  start(stream, blocks_for(out.shape[0] * out.shape[1], kThreads), kThreads, 0, moe_combine_kernel, x, weights, out);
}

}  // namespace faultline::cuda_reference
