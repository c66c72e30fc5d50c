// References of what chooses: topk, router, moe_permute, softmax with its top-p cut, sample, argmax. Ranks are counted:
// an element's place in a sorted order is the number of elements that come before it.
#include "ops/cuda_reference_device.cuh"

namespace faultline::cuda_reference {
namespace {

// Best first; a NaN after all numbers, so that it is chosen only where nothing else is left.
__device__ bool better(float a, float b) {
  return b != b ? a == a : a > b;
}

// One thread a key of a row, or an entry of its tail.
__global__ void topk_kernel(const TopKOperands o, int64_t work) {
  const int64_t t = thread_index() / work;
  const int64_t i = thread_index() % work;
  if (t >= o.out.shape[0]) return;
  int64_t length = smaller(o.lengths.load_index(o.lengths.offset(t)), o.scores.shape[1]);
  if (length < 0) length = 0;
  int64_t request = 0;
  if (o.entry == EntryOf::kPaged) {
    request = o.row_to_request.load_index(o.row_to_request.offset(t));
    const bool known = request >= 0 && request < o.page_table.shape[0];
    length = known ? smaller(length, o.page_table.shape[1]) : 0;
  }
  if (i >= length) {
    if (i < o.topk) o.out.store_index(o.out.offset(t, i), -1);
    return;
  }
  int64_t rank = i;  // up to topk keys the scores are not looked at
  if (length > o.topk) {
    const float score = o.scores.load(o.scores.offset(t, i));
    rank = 0;
    for (int64_t j = 0; j < length && rank < o.topk; ++j) {
      const float other = o.scores.load(o.scores.offset(t, j));
      rank += better(other, score) || (j < i && !better(score, other)) ? 1 : 0;
    }
  }
  if (rank >= o.topk) return;
  int64_t entry = i;
  if (o.entry == EntryOf::kPaged) entry = o.page_table.load_index(o.page_table.offset(request, i));
  if (o.entry == EntryOf::kRagged) entry = i + o.ragged_offsets.load_index(o.ragged_offsets.offset(t));
  o.out.store_index(o.out.offset(t, rank), entry);
}

// One block a token. Shared: score and choice of each expert, score of each group, whether it is kept, the k chosen.
__global__ void router_kernel(const RouterOperands o) {
  constexpr float kSumFloor = 1e-20f;  // an all-zero selection must not divide 0 by 0 (ops/kinds.h, Router)
  extern __shared__ float router_shared[];
  const int64_t t = blockIdx.x;
  const int64_t experts = o.logits.shape[1];
  const int64_t group_size = experts / o.groups;
  float* score = router_shared;
  float* choice = score + experts;
  float* group_score = choice + experts;
  int* kept = reinterpret_cast<int*>(group_score + o.groups);
  int* chosen = kept + o.groups;
  for (int64_t e = threadIdx.x; e < experts; e += blockDim.x) {
    score[e] = 1.0f / (1.0f + exp_of(-o.logits.load(o.logits.offset(t, e))));
    const float bias = o.bias.load(o.bias.offset(e));
    const float value = score[e] + (o.bias_bf16 ? to_float(to_bf16(bias)) : bias);
    choice[e] = value == value ? value : -INFINITY;  // NaN loses against everything
  }
  __syncthreads();
  for (int64_t g = threadIdx.x; g < o.groups; g += blockDim.x) {
    float best = -INFINITY;
    float second = -INFINITY;
    for (int64_t e = g * group_size; e < (g + 1) * group_size; ++e) {
      second = fmaxf(second, fminf(best, choice[e]));
      best = fmaxf(best, choice[e]);
    }
    group_score[g] = second == -INFINITY ? best : best + second;  // a group may hold one expert
  }
  __syncthreads();
  for (int64_t g = threadIdx.x; g < o.groups; g += blockDim.x) {
    int64_t rank = 0;
    for (int64_t i = 0; i < o.groups; ++i)
      rank += group_score[i] > group_score[g] || (i < g && group_score[i] == group_score[g]) ? 1 : 0;
    kept[g] = rank < o.topk_group ? 1 : 0;
  }
  __syncthreads();
  for (int64_t e = threadIdx.x; e < experts; e += blockDim.x) {
    if (kept[e / group_size] == 0) continue;
    int64_t rank = 0;
    for (int64_t i = 0; i < experts; ++i) {
      if (kept[i / group_size] == 0) continue;
      rank += choice[i] > choice[e] || (i < e && choice[i] == choice[e]) ? 1 : 0;
    }
    if (rank < o.k) chosen[rank] = static_cast<int>(e);
  }
  __syncthreads();
  float sum = 0;
  for (int64_t j = 0; j < o.k; ++j) sum += score[chosen[j]];
  for (int64_t j = threadIdx.x; j < o.k; j += blockDim.x) {
    o.ids.store_index(o.ids.offset(t, j), chosen[j]);
    o.weights.store(o.weights.offset(t, j),
                    (o.norm_topk ? score[chosen[j]] / (sum + kSumFloor) : score[chosen[j]]) * o.scaling);
  }
  if (o.fused_shared && threadIdx.x == 0) {
    o.ids.store_index(o.ids.offset(t, o.k), experts);
    o.weights.store(o.weights.offset(t, o.k), 1.0f / o.scaling * o.scaling);
  }
}

// One thread a flat index t * k + j, and one a start of an expert. Ids of experts that do not exist have no place.
__global__ void moe_permute_kernel(const Tensor ids, const Tensor order, const Tensor offsets) {
  const int64_t k = ids.shape[1];
  const int64_t flats = ids.shape[0] * k;
  const int64_t experts = offsets.shape[0] - 1;
  const auto expert_of = [&](int64_t flat) { return ids.load_index(ids.offset(flat / k, flat % k)); };
  const int64_t self = thread_index();
  if (self < flats) {
    const int64_t expert = expert_of(self);
    if (expert < 0 || expert >= experts) return;
    int64_t place = 0;
    for (int64_t i = 0; i < flats; ++i) {
      const int64_t other = expert_of(i);
      place += other >= 0 && (other < expert || (other == expert && i < self)) ? 1 : 0;
    }
    order.store_index(place, self);
  } else if (self <= flats + experts) {
    const int64_t expert = self - flats;
    int64_t begin = 0;
    for (int64_t i = 0; i < flats; ++i) {
      const int64_t other = expert_of(i);
      begin += other >= 0 && other < expert ? 1 : 0;
    }
    offsets.store_index(expert, begin);
  }
}

// What lies above a weight, of one row of non-negative weights.
__device__ double mass_above(const float* weights, int64_t count, float weight) {
  double mass = 0;
  for (int64_t c = threadIdx.x; c < count; c += blockDim.x)
    if (weights[c] > weight) mass += weights[c];
  return block_sum(mass);
}

// How many of the first `count` weights are equal to one.
__device__ int64_t count_equal(const float* weights, int64_t count, float weight) {
  int64_t equals = 0;
  for (int64_t c = threadIdx.x; c < count; c += blockDim.x) equals += weights[c] == weight ? 1 : 0;
  return block_reduce(equals, [](int64_t a, int64_t b) { return a + b; });
}

// A token is cut when the tokens before it (larger weights, or equal ones of lower index) already make up `enough`.
__device__ bool is_cut(double before, double enough) {
  return before >= enough && before > 0;
}

// One block a row. The weights exp(x - max) are kept in probs until the last loop.
__global__ void softmax_kernel(const Tensor logits, const Tensor probs, float temperature, double top_p) {
  const int64_t r = blockIdx.x;
  const int64_t vocabulary = logits.shape[1];
  float* weights = probs.as<float>() + probs.offset(r);
  float largest = -INFINITY;
  const auto larger = [](float a, float b) { return b > a || b != b ? b : a; };  // NaN wins
  for (int64_t c = threadIdx.x; c < vocabulary; c += blockDim.x)
    largest = larger(largest, logits.load(logits.offset(r, c)) / temperature);
  largest = block_reduce(largest, larger);
  double total = 0;
  for (int64_t c = threadIdx.x; c < vocabulary; c += blockDim.x) {
    weights[c] = exp_of(logits.load(logits.offset(r, c)) / temperature - largest);
    total += weights[c];
  }
  total = block_sum(total);
  if (top_p < 1.0 && total == total) {
    const double enough = top_p * total;
    // The smallest weight that is not cut, by bisection over the bits of the floats in [0, 1]: what lies above a weight
    // falls as it grows. At 1, the largest, nothing lies above.
    uint32_t low = 0;
    uint32_t high = float_bits(1.0f);
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (is_cut(mass_above(weights, vocabulary, float_from_bits(middle)), enough))
        low = middle + 1;
      else
        high = middle;
    }
    const float least = float_from_bits(low);
    // Of equal weights the first ones stay.
    const int64_t equals = count_equal(weights, vocabulary, least);
    int64_t stay = 0;
    total = mass_above(weights, vocabulary, least);
    while (stay < equals && !is_cut(total, enough)) {
      total += least;
      ++stay;
    }
    int64_t end = 0;  // behind the last one that stays, by bisection too
    for (int64_t beyond = vocabulary; end < beyond;) {
      const int64_t middle = end + (beyond - end) / 2;
      if (count_equal(weights, middle, least) < stay)
        end = middle + 1;
      else
        beyond = middle;
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < vocabulary; c += blockDim.x)
      if (weights[c] < least || (weights[c] == least && c >= end)) weights[c] = 0;
  }
  for (int64_t c = threadIdx.x; c < vocabulary; c += blockDim.x) weights[c] = static_cast<float>(weights[c] / total);
}

// One thread a row, in the order of the tokens: sums in another order could fall on the other side of the draw.
__global__ void sample_kernel(const Tensor probs, const Tensor uniform, const Tensor tokens) {
  const int64_t r = thread_index();
  if (r >= probs.shape[0]) return;
  const double draw = uniform.load(r);
  double cumulative = 0;
  int64_t token = probs.shape[1] - 1;  // rounding can leave the whole row below the draw
  for (int64_t c = 0; c < probs.shape[1]; ++c) {
    cumulative += probs.load(probs.offset(r, c));
    if (cumulative > draw) {
      token = c;
      break;
    }
  }
  tokens.store_index(r, token);
}

struct Candidate {
  float value;
  int64_t index;
};

// One block a row.
__global__ void argmax_kernel(const Tensor logits, const Tensor tokens) {
  const int64_t r = blockIdx.x;
  // The larger one, the lower index of equal ones; a NaN never wins, unless all are.
  const auto merge = [](Candidate a, Candidate b) {
    if (better(a.value, b.value)) return a;
    if (better(b.value, a.value)) return b;
    return a.index < b.index ? a : b;
  };
  Candidate best{nan_value(), logits.shape[1]};
  for (int64_t c = threadIdx.x; c < logits.shape[1]; c += blockDim.x)
    best = merge(best, Candidate{logits.load(logits.offset(r, c)), c});
  best = block_reduce(best, merge);
  if (threadIdx.x == 0) tokens.store_index(r, best.index);
}

}  // namespace

void topk(void* stream, const TopKOperands& operands) {
  const int64_t work = operands.scores.shape[1] > operands.topk ? operands.scores.shape[1] : operands.topk;
  start(stream, blocks_for(operands.out.shape[0] * work, kThreads), kThreads, 0, topk_kernel, operands, work);
}
void router(void* stream, const RouterOperands& operands) {
  const int64_t floats = 2 * operands.logits.shape[1] + 2 * operands.groups + operands.k;
  start(stream, operands.ids.shape[0], kThreads, static_cast<size_t>(floats) * sizeof(float), router_kernel, operands);
}
void moe_permute(void* stream, const Tensor& ids, const Tensor& order, const Tensor& offsets) {
  start(stream, blocks_for(ids.shape[0] * ids.shape[1] + offsets.shape[0], kThreads), kThreads, 0, moe_permute_kernel,
        ids, order, offsets);
}
void softmax(void* stream, const Tensor& logits, const Tensor& probs, float temperature, double top_p) {
  constexpr int kWholeBlock = 1024;
  start(stream, logits.shape[0], kWholeBlock, 0, softmax_kernel, logits, probs, temperature, top_p);
}
void sample(void* stream, const Tensor& probs, const Tensor& uniform, const Tensor& tokens) {
  start(stream, blocks_for(probs.shape[0], kThreads), kThreads, 0, sample_kernel, probs, uniform, tokens);
}
void argmax(void* stream, const Tensor& logits, const Tensor& tokens) {
  start(stream, logits.shape[0], kThreads, 0, argmax_kernel, logits, tokens);
}

}  // namespace faultline::cuda_reference
