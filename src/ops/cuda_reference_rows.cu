// References of what works on rows and single elements: prepare, embed, gather_rows, add, silu_mul, norms, rope.
#include "ops/cuda_reference_device.cuh"

namespace faultline::cuda_reference {
namespace {

// One block a request.
__global__ void prepare_kernel(const PrepareOperands p) {
  const int64_t r = blockIdx.x;
  const int64_t tokens = p.positions.shape[0];
  const int64_t columns = smaller(p.page_table.shape[1], p.req_to_token.shape[1]);
  int64_t before = 0;  // keys of the requests so far
  for (int64_t i = 0; i < r; ++i) before += p.seq_lens.load_index(i);
  const int64_t seq_len = p.seq_lens.load_index(r);
  const int64_t begin = p.cu_seqlens_q.load_index(r);
  const int64_t query_len = p.cu_seqlens_q.load_index(r + 1) - begin;
  for (int64_t i = threadIdx.x; i < query_len; i += blockDim.x) {
    if (begin + i < 0 || begin + i >= tokens) continue;
    const int64_t position = seq_len - query_len + i;
    if (r < p.live.load_index(0)) p.positions.store_index(begin + i, position);
    p.row_to_request.store_index(begin + i, r);
    p.lengths.store_index(begin + i, position + 1);
    p.ragged_offsets.store_index(begin + i, before);
  }
  const int64_t row = p.req_pool.load_index(r);
  if (row < 0 || row >= p.req_to_token.shape[0]) return;
  for (int64_t c = threadIdx.x; c < smaller(seq_len, columns); c += blockDim.x) {
    const int64_t slot = p.req_to_token.load_index(p.req_to_token.offset(row, c));
    p.page_table.store_index(p.page_table.offset(r, c), slot);
    if (before + c < p.flat_slots.shape[0]) p.flat_slots.store_index(before + c, slot);
  }
}

// One thread an element of out, here and below.
__global__ void take_rows_kernel(const Tensor table, const Tensor rows, const Tensor out) {
  const int64_t r = thread_index() / out.shape[1];
  const int64_t c = thread_index() % out.shape[1];
  if (r >= out.shape[0]) return;
  const int64_t row = rows.load_index(r);
  const bool exists = row >= 0 && row < table.shape[0];
  out.store(out.offset(r, c), exists ? table.load(table.offset(row, c)) : nan_value());
}

__global__ void add_kernel(const Tensor a, const Tensor b, const Tensor out) {
  const int64_t t = thread_index() / out.shape[1];
  const int64_t c = thread_index() % out.shape[1];
  if (t < out.shape[0]) out.store(out.offset(t, c), a.load(a.offset(t, c)) + b.load(b.offset(t, c)));
}

__global__ void silu_mul_kernel(const Tensor x, const Tensor out) {
  const int64_t width = out.shape[1];
  const int64_t t = thread_index() / width;
  const int64_t c = thread_index() % width;
  if (t >= out.shape[0]) return;
  const float gate = x.load(x.offset(t, c));
  const float up = x.load(x.offset(t, width + c));
  out.store(out.offset(t, c), gate / (1.0f + exp_of(-gate)) * up);
}

// One block a row.
__global__ void rmsnorm_kernel(const Tensor x, const Tensor weight, const Tensor out, double eps) {
  const int64_t row = blockIdx.x;
  const int64_t columns = x.shape[1];
  double squares = 0;
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    const double value = x.load(x.offset(row, c));
    squares += value * value;
  }
  squares = block_sum(squares);
  const double scale = 1.0 / sqrt(squares / static_cast<double>(columns) + eps);
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    const int64_t at = out.offset(row, c);
    out.store(at, static_cast<float>(x.load(x.offset(row, c)) * scale));  // the first rounding
    out.store(at, out.load(at) * weight.load(c));
  }
}

__global__ void layernorm_kernel(const Tensor x, const Tensor weight, const Tensor bias, const Tensor out, double eps) {
  const int64_t row = blockIdx.x;
  const int64_t columns = x.shape[1];
  double mean = 0;
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) mean += x.load(x.offset(row, c));
  mean = block_sum(mean) / static_cast<double>(columns);
  double variance = 0;
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    const double difference = x.load(x.offset(row, c)) - mean;
    variance += difference * difference;
  }
  variance = block_sum(variance) / static_cast<double>(columns);
  const double scale = 1.0 / sqrt(variance + eps);
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    const double normalized = (x.load(x.offset(row, c)) - mean) * scale;
    out.store(out.offset(row, c), static_cast<float>(normalized * weight.load(c) + bias.load(c)));
  }
}

// One thread a pair of dims, or a dim that is copied.
__global__ void rope_kernel(const Tensor x, const Tensor positions, const Tensor out, const float* inverse_frequency,
                            int64_t rope_dim, bool interleaved) {
  const int64_t pairs = rope_dim / 2;
  const int64_t work = pairs + x.shape[2] - rope_dim;  // of one head
  const int64_t i = thread_index() % work;
  const int64_t head = thread_index() / work % x.shape[1];
  const int64_t token = thread_index() / work / x.shape[1];
  if (token >= x.shape[0]) return;
  if (i >= pairs) {
    const int64_t d = rope_dim + i - pairs;
    out.store(out.offset(token, head, d), x.load(x.offset(token, head, d)));
    return;
  }
  const auto position = static_cast<float>(positions.load_index(positions.offset(token)));
  const float angle = position * inverse_frequency[i];
  const auto cosine = static_cast<float>(cos(static_cast<double>(angle)));
  const auto sine = static_cast<float>(sin(static_cast<double>(angle)));
  const int64_t first = interleaved ? 2 * i : i;
  const int64_t second = interleaved ? 2 * i + 1 : i + pairs;
  const float a = x.load(x.offset(token, head, first));
  const float b = x.load(x.offset(token, head, second));
  out.store(out.offset(token, head, first), a * cosine - b * sine);
  out.store(out.offset(token, head, second), b * cosine + a * sine);
}

// One warp an element of out.
__global__ void hadamard_kernel(const Tensor x, const Tensor out) {
  const int64_t dim = x.shape[2];
  const int64_t i = warp_index() % dim;
  const int64_t head = warp_index() / dim % x.shape[1];
  const int64_t token = warp_index() / dim / x.shape[1];
  if (token >= x.shape[0]) return;
  double sum = 0;
  for (int64_t j = lane(); j < dim; j += kWarp) {
    const double value = x.load(x.offset(token, head, j));
    sum += __popcll(static_cast<unsigned long long>(i & j)) % 2 != 0 ? -value : value;
  }
  sum = warp_sum(sum) / sqrt(static_cast<double>(dim));
  if (lane() == 0) out.store(out.offset(token, head, i), static_cast<float>(sum));
}

__global__ void round_fp8_kernel(const Tensor x, const Tensor out) {
  const int64_t d = thread_index() % x.shape[2];
  const int64_t head = thread_index() / x.shape[2] % x.shape[1];
  const int64_t token = thread_index() / x.shape[2] / x.shape[1];
  if (token >= x.shape[0]) return;
  out.store(out.offset(token, head, d), e4m3_to_float(saturated_code(x.load(x.offset(token, head, d)))));
}

}  // namespace

void prepare(void* stream, const PrepareOperands& operands) {
  start(stream, operands.seq_lens.shape[0], kThreads, 0, prepare_kernel, operands);
}
void take_rows(void* stream, const Tensor& table, const Tensor& rows, const Tensor& out) {
  start(stream, blocks_for(out.shape[0] * out.shape[1], kThreads), kThreads, 0, take_rows_kernel, table, rows, out);
}
void add(void* stream, const Tensor& a, const Tensor& b, const Tensor& out) {
  start(stream, blocks_for(out.shape[0] * out.shape[1], kThreads), kThreads, 0, add_kernel, a, b, out);
}
void silu_mul(void* stream, const Tensor& x, const Tensor& out) {
  start(stream, blocks_for(out.shape[0] * out.shape[1], kThreads), kThreads, 0, silu_mul_kernel, x, out);
}
void rmsnorm(void* stream, const Tensor& x, const Tensor& weight, const Tensor& out, double eps) {
  start(stream, x.shape[0], kThreads, 0, rmsnorm_kernel, x, weight, out, eps);
}
void layernorm(void* stream, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out, double eps) {
  start(stream, x.shape[0], kThreads, 0, layernorm_kernel, x, weight, bias, out, eps);
}
void rope(void* stream, const Tensor& x, const Tensor& positions, const Tensor& out, const float* inverse_frequency,
          int64_t rope_dim, bool interleaved) {
  const int64_t work = x.shape[0] * x.shape[1] * (rope_dim / 2 + x.shape[2] - rope_dim);
  start(stream, blocks_for(work, kThreads), kThreads, 0, rope_kernel, x, positions, out, inverse_frequency, rope_dim,
        interleaved);
}

void hadamard(void* stream, const Tensor& x, const Tensor& out) {
  start(stream, blocks_for(x.shape[0] * x.shape[1] * x.shape[2], kWarpsPerBlock), kThreads, 0, hadamard_kernel, x, out);
}
void round_fp8(void* stream, const Tensor& x, const Tensor& out) {
  start(stream, blocks_for(x.shape[0] * x.shape[1] * x.shape[2], kThreads), kThreads, 0, round_fp8_kernel, x, out);
}

}  // namespace faultline::cuda_reference
