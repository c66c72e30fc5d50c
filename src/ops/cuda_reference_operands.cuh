// What the CUDA references take: tensors, caches and lists of weights as plain data, and one function a reference.
// Read by the host compiler and by nvcc; nothing heavy is included.
#pragma once

#include <cstdint>

#include "base/codec.h"
#include "base/dtype.h"

namespace faultline::cuda_reference {

// A view of device memory: TensorView (base/tensor.h) as a kernel's argument, with the same loads and stores.
struct Tensor {
  static constexpr int kMaxRank = 4;

  void* data;
  Dtype dtype;
  uint8_t unused[7];  // nothing is left for the compiler to pad: tables of tensors are compared by their bytes
  int64_t shape[kMaxRank];
  int64_t stride[kMaxRank];

  template <class T>
  FAULTLINE_HD T* as() const {
    return static_cast<T*>(data);
  }
  FAULTLINE_HD int64_t offset(int64_t i) const { return i * stride[0]; }
  FAULTLINE_HD int64_t offset(int64_t i, int64_t j) const { return i * stride[0] + j * stride[1]; }
  FAULTLINE_HD int64_t offset(int64_t i, int64_t j, int64_t k) const {
    return i * stride[0] + j * stride[1] + k * stride[2];
  }

  FAULTLINE_HD float load(int64_t at) const {
    switch (dtype) {
      case Dtype::kF32:
        return as<float>()[at];
      case Dtype::kBF16:
        return to_float(as<Bf16>()[at]);
      case Dtype::kF16:
        return to_float(as<F16>()[at]);
      case Dtype::kF8E4M3:
        return e4m3_to_float(as<uint8_t>()[at]);
      case Dtype::kU8:
        return static_cast<float>(as<uint8_t>()[at]);
      case Dtype::kI32:
        return static_cast<float>(as<int32_t>()[at]);
      case Dtype::kI64:
        return static_cast<float>(as<int64_t>()[at]);
    }
    return 0;
  }
  FAULTLINE_HD void store(int64_t at, float value) const {
    switch (dtype) {
      case Dtype::kF32:
        as<float>()[at] = value;
        return;
      case Dtype::kBF16:
        as<Bf16>()[at] = to_bf16(value);
        return;
      case Dtype::kF8E4M3:
        as<uint8_t>()[at] = float_to_e4m3(value);
        return;
      case Dtype::kI32:
        as<int32_t>()[at] = static_cast<int32_t>(value);
        return;
      case Dtype::kI64:
        as<int64_t>()[at] = static_cast<int64_t>(value);
        return;
      case Dtype::kU8:
        as<uint8_t>()[at] = static_cast<uint8_t>(value);
        return;
      case Dtype::kF16:
        return;  // no output is F16: the host has refused it before the launch
    }
  }
  // I32 and I64 only.
  FAULTLINE_HD int64_t load_index(int64_t at) const {
    return dtype == Dtype::kI64 ? as<int64_t>()[at] : static_cast<int64_t>(as<int32_t>()[at]);
  }
  FAULTLINE_HD void store_index(int64_t at, int64_t value) const {
    if (dtype == Dtype::kI64)
      as<int64_t>()[at] = value;
    else
      as<int32_t>()[at] = static_cast<int32_t>(value);
  }
};

// A table of tensors in device memory; an absent operand has none.
struct List {
  const Tensor* at;
  int64_t count;
};

// Weights of a product (ops/kinds.h, Linear). A scale that a precision does not have is a tensor without data.
struct Weights {
  List values;
  List block_scale;
  List global_scale;
  bool fp4;
};

// The rows that a product takes: plain ones, or NVFP4 codes (then x is [rows, K / 2] U8, scales [rows, K / 16] e4m3).
struct Activations {
  Tensor x;
  Tensor scales;
  List input_scale;
  bool fp4;
  // Products of codes only: global scales stay out of the sum, and one factor multiplies the result (the spec).
  bool factor_last;
  int64_t columns;  // K
  int64_t each;     // input scales of one expert, where each has its own; 0: the largest of all counts
};

// The storage formats of caches (ops/formats.h).
enum class RowFormat : uint8_t { kFloats, kBf16, kPacked, kPlainFp8, kIndexFp8 };

struct Cache {
  uint8_t* bytes;
  RowFormat format;
  int64_t slots;
  int64_t page_size;
  int64_t latent;
  int64_t rope;
  int64_t stride;  // bytes from one slot to the next; index pages: bytes of a slot's share of its page

  FAULTLINE_HD int64_t width() const { return latent + rope; }
};

// One launch (or a few) on `stream`, a cudaStream_t. Operands as in ops/kinds.h.

// cuda_reference_rows.cu
struct PrepareOperands {
  Tensor req_to_token, req_pool, seq_lens, cu_seqlens_q;
  Tensor positions, row_to_request, lengths, page_table, ragged_offsets, flat_slots;
  Tensor live;
};
void prepare(void* stream, const PrepareOperands& operands);
// out[r] = table[rows[r]]: embed and gather_rows.
void take_rows(void* stream, const Tensor& table, const Tensor& rows, const Tensor& out);
void add(void* stream, const Tensor& a, const Tensor& b, const Tensor& out);
void silu_mul(void* stream, const Tensor& x, const Tensor& out);
void rmsnorm(void* stream, const Tensor& x, const Tensor& weight, const Tensor& out, double eps);
void layernorm(void* stream, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out, double eps);
// `inverse_frequency`: rope_dim / 2 floats in device memory; rope_dim 0 copies.
void rope(void* stream, const Tensor& x, const Tensor& positions, const Tensor& out, const float* inverse_frequency,
          int64_t rope_dim, bool interleaved);

void hadamard(void* stream, const Tensor& x, const Tensor& out);
void round_fp8(void* stream, const Tensor& x, const Tensor& out);

// cuda_reference_product.cu
void quantize_fp4(void* stream, const Tensor& x, const List& input_scale, const Tensor& codes, const Tensor& scales);
// Row t * k + j of the codes is row (t * k + j) / rows_per_x of x, for expert ids[t, j], which has `each` input scales.
void quantize_fp4_experts(void* stream, const Tensor& x, const Tensor& ids, const List& input_scale,
                          const Tensor& codes, const Tensor& scales, int64_t rows_per_x, int64_t each);
void linear(void* stream, const Activations& x, const Weights& weights, const Tensor& out);
void batched_linear(void* stream, const Tensor& x, const Tensor& weight, const Tensor& out, bool weight_kn);
struct ExpertOperands {
  Activations x;
  Tensor order;
  Tensor offsets;
  Weights weights;
  Tensor out;
  int64_t k;
  int64_t stacked;
  bool x_per_token;
};
void expert_linear(void* stream, const ExpertOperands& operands);
void moe_combine(void* stream, const Tensor& x, const Tensor& weights, const Tensor& out);

// cuda_reference_cache.cu
void cache_write(void* stream, const Tensor& x, const Tensor& slots, const Cache& cache, bool floorless, bool ue8m0);
void cache_gather(void* stream, const Cache& cache, const Tensor& slots, const Tensor& seq_lens, const Tensor& out);
void cache_requantize(void* stream, const Cache& from, const Cache& to, bool floorless);

// cuda_reference_attention.cu
struct IndexScoresOperands {
  Tensor q, head_weights;
  Cache cache;
  Tensor page_table, row_to_request, lengths, out;
  bool query_fp8, query_ue8m0;
};
void index_scores(void* stream, const IndexScoresOperands& operands);
enum class KeysOf : uint8_t { kIndices, kPageTable, kRagged };
struct AttentionOperands {
  Tensor q;
  Cache cache;
  Tensor indices, page_table, row_to_request, lengths, ragged_offsets, out;
  KeysOf keys;
  double scale;
};
void attention(void* stream, const AttentionOperands& operands);

// cuda_reference_choice.cu
enum class EntryOf : uint8_t { kPosition, kPaged, kRagged };
struct TopKOperands {
  Tensor scores, lengths, page_table, row_to_request, ragged_offsets, out;
  int64_t topk;
  EntryOf entry;
};
void topk(void* stream, const TopKOperands& operands);
struct RouterOperands {
  Tensor logits, bias, ids, weights;
  int64_t k, groups, topk_group;
  bool norm_topk;
  float scaling;
  bool bias_bf16, fused_shared;
};
void router(void* stream, const RouterOperands& operands);
void moe_permute(void* stream, const Tensor& ids, const Tensor& order, const Tensor& offsets);
// probs is F32: the unnormalised weights are kept there on the way.
void softmax(void* stream, const Tensor& logits, const Tensor& probs, float temperature, double top_p);
void sample(void* stream, const Tensor& probs, const Tensor& uniform, const Tensor& tokens);
void argmax(void* stream, const Tensor& logits, const Tensor& tokens);

// cuda_reference_compare.cu; the fields of Closeness, and what compare_on_cuda says (ops/cuda_reference.h).
struct Comparison {
  Tensor out, ref, lengths;
  int64_t rows;
  int64_t columns;       // of a row, all its dimensions flattened
  int64_t inner;         // columns of the last dimension, which is contiguous
  int64_t outer_stride;  // from one index of a middle dimension to the next
  double atol, rtol;
  int64_t* count;
  int64_t* first;
  float* out_there;
  float* ref_there;
};
void compare(void* stream, const Comparison& comparison);

}  // namespace faultline::cuda_reference
