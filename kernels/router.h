// The experts of each token, as SGLang's moe_fused_gate chooses them.
//
// One block a token. Scores, choices and group scores lie in shared memory; k rounds each take the best choice left,
// ties to the lower expert. A NaN loses against every number, yet ids stay valid and unique: rows of NaN take the
// lowest ids.
//   score = sigmoid(logit); choice = score + bias; a group's score = the sum of its two best choices
//   weight = score, divided by (sum + 1e-20) when norm_topk, times scaling: all in float
// With fused_shared a token has k + 1 experts, the last of which is the shared one (SGLang, layers/moe/topk.py).
// logits [T, E] with a row stride, bias [E]; ids int32 and weights float [T, k] with row strides.
#pragma once

#include <cmath>

#include "kernels/operand.h"

namespace faultline::kernels {

inline constexpr int kRouterThreads = 32;
inline constexpr float kRouterSumFloor = 1e-20f;  // sglang PR 31017: an all-zero selection must not divide 0 by 0

template <class T, bool kChecked>
struct RouterBody {
  Operand<T> logits;
  ScalarOperand bias;
  Operand<int32_t> ids;
  Operand<float> weights;
  int64_t experts = 0;
  int64_t k = 0;
  int64_t groups = 1;
  int64_t topk_group = 1;
  bool norm_topk = true;
  float scaling = 1;
  bool bias_bf16 = false;     // the bias is rounded to bf16 first (the server's trtllm-gen experts take it so)
  bool fused_shared = false;  // one more column: the shared expert, id `experts`, weight 1 / scaling before scaling
  int64_t logits_stride = 0;
  int64_t ids_stride = 0;
  int64_t weights_stride = 0;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto logits_view = open<kChecked>(logits, log, block);
    const ScalarView<kChecked> bias_view(bias, log, block);
    const auto ids_view = open<kChecked>(ids, log, block);
    const auto weights_view = open<kChecked>(weights, log, block);
    const int64_t token = block.index(0);
    float* score = block.template shared<float>(experts);
    float* choice = block.template shared<float>(experts);
    int32_t* open_expert = block.template shared<int32_t>(experts);  // still to be had
    float* group_score = block.template shared<float>(groups);
    int32_t* chosen = block.template shared<int32_t>(k);
    int32_t* candidate = block.template shared<int32_t>(block.threads());  // each thread's best, or -1

    block.for_each_thread([&](int t) {
      for (int64_t e = t; e < experts; e += block.threads()) {
        score[e] = 1.0f / (1.0f + expf(-to_float(logits_view.load(token * logits_stride + e))));
        const float bias_value = bias_view.load(e);
        const float value = score[e] + (bias_bf16 ? to_float(to_bf16(bias_value)) : bias_value);
        choice[e] = value == value ? value : -INFINITY;
      }
    });
    block.for_each_thread([&](int t) {
      for (int64_t g = t; g < groups; g += block.threads()) group_score[g] = two_best(choice, g);
    });
    block.for_each_thread([&](int t) {
      for (int64_t e = t; e < experts; e += block.threads()) open_expert[e] = kept(group_score, e / (experts / groups));
    });
    for (int64_t j = 0; j < k; ++j) {
      block.for_each_thread([&](int t) {
        int64_t best = -1;
        for (int64_t e = t; e < experts; e += block.threads())
          if (open_expert[e] != 0 && (best < 0 || choice[e] > choice[best])) best = e;
        candidate[t] = static_cast<int32_t>(best);
      });
      block.for_each_thread([&](int t) {
        if (t != 0) return;
        int32_t best = -1;
        for (int i = 0; i < block.threads(); ++i) {
          const int32_t other = candidate[i];
          if (other < 0) continue;
          if (best < 0 || choice[other] > choice[best] || (choice[other] == choice[best] && other < best)) best = other;
        }
        chosen[j] = best;
        open_expert[best] = 0;
      });
    }
    block.for_each_thread([&](int t) {
      float sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += score[chosen[j]];
      for (int64_t j = t; j < k; j += block.threads()) {
        const float value = norm_topk ? score[chosen[j]] / (sum + kRouterSumFloor) : score[chosen[j]];
        ids_view.store(token * ids_stride + j, chosen[j]);
        weights_view.store(token * weights_stride + j, value * scaling);
      }
      if (fused_shared && t == 0) {
        ids_view.store(token * ids_stride + k, static_cast<int32_t>(experts));
        weights_view.store(token * weights_stride + k, 1.0f / scaling * scaling);
      }
    });
  }

 private:
  FAULTLINE_HD float two_best(const float* choice, int64_t group) const {
    const int64_t size = experts / groups;
    float best = -INFINITY;
    float second = -INFINITY;
    for (int64_t e = group * size; e < (group + 1) * size; ++e) {
      if (choice[e] > best) {
        second = best;
        best = choice[e];
      } else if (choice[e] > second) {
        second = choice[e];
      }
    }
    return second == -INFINITY ? best : best + second;
  }

  // Fewer than topk_group groups are better, or as good and earlier.
  FAULTLINE_HD int32_t kept(const float* group_score, int64_t group) const {
    int64_t better = 0;
    for (int64_t g = 0; g < groups; ++g)
      if (group_score[g] > group_score[group] || (group_score[g] == group_score[group] && g < group)) ++better;
    return better < topk_group ? 1 : 0;
  }
};

#ifdef FAULTLINE_HAVE_CUDA
bool cuda_faster(const LaunchContext& context, Grid grid, const RouterBody<Bf16, false>& body);   // cuda_routing.cu
bool cuda_faster(const LaunchContext& context, Grid grid, const RouterBody<float, false>& body);  // cuda_routing.cu
#endif

template <class T, bool kChecked>
void launch_router(const LaunchContext& context, int64_t tokens, const RouterBody<T, kChecked>& body) {
  const auto words = static_cast<size_t>(3 * body.experts + body.groups + body.k + kRouterThreads);
  launch(context, Grid{tokens}, kRouterThreads, words * sizeof(float), body);
}

}  // namespace faultline::kernels
