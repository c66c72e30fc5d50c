// The op kinds of GLM-5 and the order of their operands. Shapes: T token rows of a pass (padded rows included), R
// requests, C columns of the page table (longest context), h heads, H hidden size, V vocabulary, E experts, k experts a
// token. W is kv_lora_rank + qk_rope_head_dim. `[]` marks a list of tensors.
//
// Activations are BF16 with own kernels and F32 with `kernels: reference`; a reference reads and writes any dtype.
// Each kind is defined in the file of its name.
#pragma once

namespace faultline::ops {

// batch.cpp — what each token row of a pass is. Inputs come from the scheduler (engine/batch); padded requests have
// seq_len 1, query length 1 and slot 0.
//   positions[t] = seq_len - query_len + i for the i-th token of its request; lengths[t] = positions[t] + 1 (keys it
//   sees) page_table[r][c] = req_to_token[req_pool[r]][c] for c < seq_lens[r] (slots, page size 1); other columns keep
//   old values ragged_offsets[t] = sum of seq_lens of the requests before its own (first row in a gathered, contiguous
//   buffer) flat_slots: page_table rows concatenated, [sum seq_lens] live entries; row capacity R*C
struct Prepare {
  enum {
    kReqToToken,
    kReqPool,
    kSeqLens,
    kCuSeqlensQ,
    kPositions,
    kRowToRequest,
    kLengths,
    kPageTable,
    kRaggedOffsets,
    kFlatSlots,
    kLive
  };  // [P,C] [R] [R] [R+1] | [T] [T] [T] [R,C] [T] [R*C] | [1]; all I32. Requests from live[0] on pad a graph's batch,
      // and positions of theirs are left as they were.
  static constexpr const char* kName = "prepare";
};

// embed.cpp — out[t] = table[ids[t]].
struct Embed {
  enum { kIds, kTable, kOut };  // [T] I32, [V,H] | [T,H]
  static constexpr const char* kName = "embed";
};

// norm.cpp — RMSNorm: float, x * rsqrt(mean(x^2) + eps), rounded to the output dtype, then times weight, rounded again.
// attributes: eps (real)
struct RmsNorm {
  enum { kX, kWeight, kOut };  // [T,D] [D] | [T,D]
  static constexpr const char* kName = "rmsnorm";
};
// norm.cpp — LayerNorm with weight and bias in float, rounded once. attributes: eps (real)
struct LayerNorm {
  enum { kX, kWeight, kBias, kOut };  // [T,D] [D] [D] | [T,D]
  static constexpr const char* kName = "layernorm";
};

// linear.cpp — out = x W^T with weights stacked along N (fused projections are lists). The weight argument's format and
// dtype say its precision: BF16/F16/F32 [N,K]; F8_E4M3 [N,K] with scale either one F32 scalar or [ceil(N/128),
// ceil(K/128)] F32; kNvfp4: U8 [N,K/2], block_scale E4M3 [N,K/16], global_scale (weight_scale_2) F32 scalar: w = code *
// block * global. block_scale/global_scale are absent (null view) where the precision has none; the FP8 scale sits in
// kBlockScale.
struct Linear {
  enum { kX, kWeight, kBlockScale, kGlobalScale, kOut };  // [T,K] [][N_i,K] [] [] | [T, sum N_i]
  static constexpr const char* kName = "linear";
};
// linear.cpp — the W4A4 product: x = code * scale * input_scale, on codes that quantize_fp4 made.
struct LinearW4A4 {
  enum { kCodes, kScales, kWeight, kBlockScale, kGlobalScale, kInputScale, kOut };  // [T,K/2] U8, [T,K/16] E4M3 …
  static constexpr const char* kName = "linear_w4a4";
};
// quantize.cpp — NVFP4 activations. input_scale = max over the list; global = 1 / input_scale;
// scale = e4m3(clamp(global * amax / 6)); code = e2m1(x * (scale == 0 ? 0 : global / scale)). An input_scale of 0 is
// not guarded: 1/0 = inf, as in the server.
struct QuantizeFp4 {
  enum { kX, kInputScale, kCodes, kScales };  // [T,K] [] | [T,K/2] U8, [T,K/16] E4M3
  static constexpr const char* kName = "quantize_fp4";
};
// quantize.cpp — the same for rows that go to experts of their own input scales (sglang's cutlass_moe_fp4): row t*k+j
// of the output is x's row with the largest input scale of expert ids[t,j]. attributes: k, stacked (input scales an
// expert), x_per_token (as ExpertLinear's).
struct QuantizeFp4Experts {
  enum { kX, kIds, kInputScale, kCodes, kScales };  // [T or T*k,K] [T,k] I32 [] | [T*k,K/2] U8, [T*k,K/16] E4M3
  static constexpr const char* kName = "quantize_fp4_experts";
};
// quantize.cpp — out = x as e4m3 without a scale, saturated at 448: a query as trtllm's FP8 kernels take it
// (mla_quantize_and_rope_for_fp8). Kept in the activations' dtype, which holds every e4m3 value.
struct RoundFp8 {
  enum { kX, kOut };  // [T,h,D] | [T,h,D]
  static constexpr const char* kName = "round_fp8";
};
// batched_linear.cpp — one matrix a head. attributes: weight_kn (flag): out[t,h,n] = sum_k x[t,h,k] w[h,k,n] when set,
// else w[h,n,k]. The weight is a strided view into kv_b_proj.
struct BatchedLinear {
  enum { kX, kWeight, kOut };  // [T,h,K] [h,..,..] | [T,h,N]
  static constexpr const char* kName = "batched_linear";
};

// rope.cpp — rotates dims [0, rope_dim) of each head and copies the rest. attributes: theta (real), rope_dim,
// interleaved (pairs (0,1),(2,3)… and results left in that order; otherwise pairs (i, i + rope_dim/2)), enabled (flag).
// angle = position * theta^(-2i/rope_dim), cos and sin in float.
struct Rope {
  enum { kX, kPositions, kOut };  // [T,h,D] [T] I32 | [T,h,D]
  static constexpr const char* kName = "rope";
};

// hadamard.cpp — out[t,h] = D^-0.5 * H x[t,h] with Sylvester's matrix, H[i][j] = (-1)^popcount(i & j); D a power of
// two. Float sums, one rounding. It is orthogonal: of queries and keys alike, it leaves every product as it is.
struct Hadamard {
  enum { kX, kOut };  // [T,h,D] | [T,h,D]
  static constexpr const char* kName = "hadamard";
};

// cache_write.cpp — stores row t into slot slots[t] in the cache's format (ops/formats.h). attributes: floorless
// (flag): packed rows divide by an amax of 0, as the server's writer does; ue8m0 (flag): the scales of index keys are
// powers of two.
struct CacheWrite {
  enum { kX, kSlots, kCache };  // [T,W] [T] I32 | cache
  static constexpr const char* kName = "cache_write";
};
// cache_gather.cpp — rows of the given slots, decoded into a contiguous buffer (the server's dequantize_k_cache_paged).
// attributes: none. Row i of out = decoded slot slots[i]; live rows: row_count[0].
struct CacheGather {
  enum { kCache, kSlots, kSeqLens, kOut };  // cache, [N] I32, [R] I32 (live rows = their sum) | [N,W]
  static constexpr const char* kName = "cache_gather";
};
// cache_requantize.cpp — a bf16 pool packed anew (flashmla_kv on a bf16 pool; the server packs the whole pool each
// call).
struct CacheRequantize {
  enum { kCache, kSlots, kSeqLens, kPacked };  // cache, [N] I32 live slots, [R] I32 | cache
  static constexpr const char* kName = "cache_requantize";
};

// index_scores.cpp — out[t,c] = sum_h w[t,h] * heads^-0.5 * relu(q[t,h].k[c] * dim^-0.5) over the index cache, c <
// lengths[t]. Columns past the length are not written (the server's clean_logits=False). attributes: query_fp8 (flag):
// each q[t,h] is quantized as an index key is, its scale applied to the head's weight; query_ue8m0 (flag): with powers
// of two.
struct IndexScores {
  enum {
    kQ,
    kHeadWeights,
    kCache,
    kPageTable,
    kRowToRequest,
    kLengths,
    kOut
  };  // [T,n,D] [T,n] F32 cache … | [T,C] F32
  static constexpr const char* kName = "index_scores";
};
// topk.cpp — the min(length, topk) best columns of each row, then the index transform; -1 fills the tail. Up to topk
// keys the scores are not looked at: entry i = i. Order within a row means nothing. attributes: topk, transform (0
// positions, 1 paged: page_table[row][c], 2 ragged: c + ragged_offsets[t]).
struct TopK {
  enum {
    kScores,
    kLengths,
    kPageTable,
    kRowToRequest,
    kRaggedOffsets,
    kOut
  };  // [T,C] [T] [R,C] [T] [T] | [T,topk] I32
  static constexpr const char* kName = "topk";
};

// attention.cpp — MLA in absorbed form: score = q . k * scale over W dims, out = sum p * k[0:latent]. The cache
// argument is the pool, or a contiguous buffer of rows (geometry with page_size 1). attributes: scale (real), dense
// (flag: all keys c < lengths[t], through page_table (index_form 1) or ragged_offsets (index_form 2); else the entries
// of indices), index_form, topk, splits (flashmla_kv: partial results a row; scratch holds T * splits * h * (latent +
// 2) floats).
struct Attention {
  enum { kQ, kCache, kIndices, kPageTable, kRowToRequest, kLengths, kRaggedOffsets, kScratch, kOut };
  // [T,h,W] cache [T,topk] [R,C] [T] [T] [T] F32[] | [T,h,latent]
  static constexpr const char* kName = "attention";
};

// elementwise.cpp
struct SiluMul {      // out = silu(x[:, :I]) * x[:, I:]
  enum { kX, kOut };  // [T',2I] | [T',I]
  static constexpr const char* kName = "silu_mul";
};
struct Add {
  enum { kA, kB, kOut };
  static constexpr const char* kName = "add";
};
struct GatherRows {          // out[r] = x[rows[r]]
  enum { kX, kRows, kOut };  // [T,H] [R] I32 | [R,H]
  static constexpr const char* kName = "gather_rows";
};

// router.cpp — s = sigmoid(logits); choice = s + bias; groups (sum of each group's two best, topk_group groups kept);
// ids = the k best of choice; weights = s[ids], divided by (sum + 1e-20) when norm_topk, times scaling. attributes: k,
// n_group, topk_group, norm_topk (flag), scaling (real), router_bias (flag: the bias is rounded to bf16 first),
// fused_shared (flag: ids and weights have k + 1 columns, the last one the shared expert E with weight 1 / scaling
// times scaling).
struct Router {
  enum { kLogits, kBias, kIds, kWeights };  // [T,E] F32 [E] F32 | [T,k] I32, [T,k] F32
  static constexpr const char* kName = "router";
};
// moe.cpp — order: flat indices t*k+j sorted by expert (stable); offsets: [E+1] starts. Padded rows take part, as in
// the server.
struct MoePermute {
  enum { kIds, kOrder, kOffsets };  // [T,k] I32 | [T*k] I32, [E+1] I32
  static constexpr const char* kName = "moe_permute";
};
// moe.cpp — one product an expert over its rows; results go to row t*k+j. Weights are lists, expert-major: for
// `stacked` = 2, [e0.gate, e0.up, e1.gate, …]. attributes: k, stacked, x_per_token (flag: x has T rows, row = flat / k;
// else T*k rows), gate_up_scale (flag): the global scale of an expert's first matrix stands in the list for the others
// too, as runners with one alpha take w1's weight_scale_2 for w3 (modelopt_quant.py).
struct ExpertLinear {
  enum { kX, kOrder, kOffsets, kWeight, kBlockScale, kGlobalScale, kOut };  // … | [T*k, stacked*N]
  static constexpr const char* kName = "expert_linear";
};
// moe.cpp — the same on NVFP4 activations. One input scale for all experts: the maximum of the list
// (flashinfer_cutlass), or with the attribute "per_expert" that of each expert's own (cutlass).
struct ExpertLinearW4A4 {
  enum { kCodes, kScales, kOrder, kOffsets, kWeight, kBlockScale, kGlobalScale, kInputScale, kOut };
  static constexpr const char* kName = "expert_linear_w4a4";
};
// moe.cpp — out[t] = sum_j weights[t,j] * x[t*k+j], accumulated in float, rounded once.
struct MoeCombine {
  enum { kX, kWeights, kOut };  // [T*k,H] [T,k] F32 | [T,H]
  static constexpr const char* kName = "moe_combine";
};

// sampling.cpp
struct Softmax {  // probabilities of logits / temperature, cut to the smallest set with mass >= top_p and renormalised
  enum { kLogits, kProbs };  // [R,V] | [R,V] F32. attributes: temperature, top_p (real)
  static constexpr const char* kName = "softmax";
};
// Kernels: pytorch (multinomial: NaN, inf or negative is a device-side assert), flashinfer (no assert: the token is
// undefined).
struct Sample {                        // inverse transform: first token whose cumulative probability exceeds uniform[r]
  enum { kProbs, kUniform, kTokens };  // [R,V] [R] F32 | [R] I32
  static constexpr const char* kName = "sample";
};
struct Argmax {  // lowest index among the largest; a NaN never wins (greedy decoding hides NaN), all-NaN rows give 0
  enum { kLogits, kTokens };  // [R,V] | [R] I32
  static constexpr const char* kName = "argmax";
};

}  // namespace faultline::ops
