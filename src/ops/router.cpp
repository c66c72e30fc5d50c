// router: the experts of each token, by sigmoid scores, a correction bias and groups.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/router.h"
#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using ops::Router;

constexpr float kLost = -std::numeric_limits<float>::infinity();

// The arithmetic of one row: what it chooses by, and which groups stay.
struct RouterRow {
  std::vector<float> score;
  std::vector<float> choice;       // NaN loses against everything
  std::vector<float> group_score;  // one a group
  std::vector<int> group_order;    // best first, ties by index

  RouterRow(const OpCall& call, int64_t row) {
    const TensorView& logits = call.view(Router::kLogits);
    const TensorView& bias = call.view(Router::kBias);
    const int64_t experts = logits.dim(1);
    const int64_t groups = call.attr().integer("n_group");
    const bool bias_bf16 = call.attr().integer_or("router_bias", 0) != 0;
    for (int64_t e = 0; e < experts; ++e) {
      score.push_back(1.0f / (1.0f + std::exp(-logits.load(logits.offset(row, e)))));
      const float added = bias.load(bias.offset(e));
      const float value = score.back() + (bias_bf16 ? to_float(to_bf16(added)) : added);
      choice.push_back(value == value ? value : kLost);
    }
    for (int64_t g = 0; g < groups; ++g) {
      float best = kLost;
      float second = kLost;
      for (int64_t e = g * (experts / groups); e < (g + 1) * (experts / groups); ++e) {
        const float value = choice[static_cast<size_t>(e)];
        second = std::max(second, std::min(best, value));
        best = std::max(best, value);
      }
      group_score.push_back(second == kLost ? best : best + second);  // a group may hold one expert
    }
    group_order.resize(static_cast<size_t>(groups));
    std::iota(group_order.begin(), group_order.end(), 0);
    std::stable_sort(group_order.begin(), group_order.end(), [&](int a, int b) {
      return group_score[static_cast<size_t>(a)] > group_score[static_cast<size_t>(b)];
    });
  }

  size_t group_of(int64_t expert) const {
    return static_cast<size_t>(expert / (static_cast<int64_t>(choice.size() / group_score.size())));
  }

  // Every expert of the kept groups, best choice first, ties by index.
  std::vector<int64_t> ranking(int64_t topk_group) const {
    std::vector<int64_t> order;
    for (int64_t e = 0; e < static_cast<int64_t>(choice.size()); ++e)
      for (int64_t g = 0; g < topk_group; ++g)
        if (static_cast<size_t>(group_order[static_cast<size_t>(g)]) == group_of(e)) order.push_back(e);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return choice[static_cast<size_t>(a)] > choice[static_cast<size_t>(b)];
    });
    return order;
  }
};

// The shared expert is one more choice of every token, after the k routed ones.
bool fuses_shared(const OpCall& call) {
  return call.attr().integer_or("fused_shared", 0) != 0;
}

void model(const OpCall& call) {
  const TensorView& ids = call.view(Router::kIds);
  const TensorView& weights = call.view(Router::kWeights);
  const int64_t k = call.attr().integer("k");
  const float scaling = static_cast<float>(call.attr().real("scaling"));
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    const RouterRow row(call, t);
    const std::vector<int64_t> order = row.ranking(call.attr().integer("topk_group"));
    float sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += row.score[static_cast<size_t>(order[static_cast<size_t>(j)])];
    for (int64_t j = 0; j < k; ++j) {
      const int64_t expert = order[static_cast<size_t>(j)];
      const float score = row.score[static_cast<size_t>(expert)];
      ids.store_index(ids.offset(t, j), expert);
      weights.store(weights.offset(t, j),
                    (call.attr().flag("norm_topk") ? score / (sum + kernels::kRouterSumFloor) : score) * scaling);
    }
    if (!fuses_shared(call)) continue;
    ids.store_index(ids.offset(t, k), static_cast<int64_t>(row.choice.size()));
    weights.store(weights.offset(t, k), 1.0f / scaling * scaling);
  }
}

bool reaches(float value, float threshold) {
  static const Tolerance kSlack = tolerance_for("router_choice", Dtype::kF32);
  return value == threshold || value >= threshold - (kSlack.atol + kSlack.rtol * std::fabs(threshold));
}

// Whatever was chosen, its weights are those of these experts.
std::optional<OpKind::SelectionProblem> wrong_weight(const OpCall& call, const RouterRow& row, int64_t token) {
  static const Tolerance kTolerance = tolerance_for(Router::kName, Dtype::kF32);
  const TensorView& ids = call.view(Router::kIds);
  const TensorView& weights = call.view(Router::kWeights);
  const int64_t k = call.attr().integer("k");
  const float scaling = static_cast<float>(call.attr().real("scaling"));
  const auto score = [&](int64_t j) { return row.score[static_cast<size_t>(ids.load_index(ids.offset(token, j)))]; };
  float sum = 0;
  for (int64_t j = 0; j < k; ++j) sum += score(j);
  for (int64_t j = 0; j < ids.dim(1); ++j) {
    const float own = j < k ? (call.attr().flag("norm_topk") ? score(j) / (sum + kernels::kRouterSumFloor) : score(j))
                            : 1.0f / scaling;
    const float expected = own * scaling;
    const int64_t at = weights.offset(token, j);
    const float weight = weights.load(at);
    if (std::isnan(expected) && std::isnan(weight)) continue;  // the finite check's business
    if (!(std::abs(weight - expected) <= kTolerance.atol + kTolerance.rtol * std::abs(expected)))
      return OpKind::SelectionProblem{Router::kWeights, at,
                                      fmt::format("row {}: the weight of expert {} is {}, its scores make it {}", token,
                                                  ids.load_index(ids.offset(token, j)), weight, expected)};
  }
  return std::nullopt;
}

std::optional<OpKind::SelectionProblem> selection(const OpCall& call, int64_t live_rows) {
  const TensorView& ids = call.view(Router::kIds);
  const int64_t k = call.attr().integer("k");
  const int64_t topk_group = call.attr().integer("topk_group");
  for (int64_t t = 0; t < std::min(live_rows, ids.dim(0)); ++t) {
    const RouterRow row(call, t);
    const auto last_group = static_cast<size_t>(row.group_order[static_cast<size_t>(topk_group - 1)]);
    const int64_t last = row.ranking(topk_group)[static_cast<size_t>(k - 1)];
    const float threshold = row.choice[static_cast<size_t>(last)];
    for (int64_t j = 0; j < k; ++j) {
      const int64_t at = ids.offset(t, j);
      const int64_t expert = ids.load_index(at);
      if (expert < 0 || expert >= static_cast<int64_t>(row.choice.size()))
        return OpKind::SelectionProblem{Router::kIds, at, fmt::format("row {}: expert {} does not exist", t, expert)};
      if (!reaches(row.group_score[row.group_of(expert)], row.group_score[last_group]))
        return OpKind::SelectionProblem{Router::kIds, at,
                                        fmt::format("row {}: expert {} is in a group that is not kept", t, expert)};
      const float choice = row.choice[static_cast<size_t>(expert)];
      if (!reaches(choice, threshold))
        return OpKind::SelectionProblem{Router::kIds, at,
                                        fmt::format("row {}: expert {} has a choice score of {}, the {}-th best is {}",
                                                    t, expert, choice, k, threshold)};
    }
    if (auto problem = wrong_weight(call, row, t)) return problem;
    if (!fuses_shared(call)) continue;
    const int64_t at = ids.offset(t, k);
    if (ids.load_index(at) != static_cast<int64_t>(row.choice.size()))
      return OpKind::SelectionProblem{Router::kIds, at,
                                      fmt::format("row {}: expert {} stands where the shared expert, {}, belongs", t,
                                                  ids.load_index(at), row.choice.size())};
  }
  return std::nullopt;
}

KernelResult run(const OpCall& call) {
  const TensorView& logits = call.view(Router::kLogits);
  const Attributes& attributes = call.attr();
  with_build(call, logits.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::launch_router(
        call.launch, logits.dim(0),
        kernels::RouterBody<T, decltype(build)::kChecked>{.logits = kernel_operand<T>(call, Router::kLogits),
                                                          .bias = kernel_scalar(call, Router::kBias),
                                                          .ids = kernel_operand<int32_t>(call, Router::kIds),
                                                          .weights = kernel_operand<float>(call, Router::kWeights),
                                                          .experts = logits.dim(1),
                                                          .k = attributes.integer("k"),
                                                          .groups = attributes.integer("n_group"),
                                                          .topk_group = attributes.integer("topk_group"),
                                                          .norm_topk = attributes.flag("norm_topk"),
                                                          .scaling = static_cast<float>(attributes.real("scaling")),
                                                          .bias_bf16 = attributes.integer_or("router_bias", 0) != 0,
                                                          .fused_shared = fuses_shared(call),
                                                          .logits_stride = logits.stride[0],
                                                          .ids_stride = call.view(Router::kIds).stride[0],
                                                          .weights_stride = call.view(Router::kWeights).stride[0],
                                                          .log = call.launch.log});
  });
  return std::nullopt;
}

const RegisterKind kRegisterKind(OpKind{
    .name = Router::kName,
    .operands = {input("logits"), weight("bias"), index_output("ids", kTokenRows, IndexRule{.unique = true}),  // end: E
                 output("weights")},
    .model = model,
    .selection = selection,
    .structure = {"k", "n_group", "topk_group", "norm_topk", "scaling", "router_bias"}});

const RegisterKernel kKernel(Kernel{.name = "moe_fused_gate",
                                    .kind = Router::kName,
                                    .follows = "sglang v0.5.9, layers/moe/topk.py (biased_grouped_topk)",
                                    .run = run,
                                    .tolerance = tolerance_for(Router::kName, Dtype::kF32)});

}  // namespace
}  // namespace faultline
