// softmax, sample, argmax: from logits to tokens.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/sampling.h"
#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using ops::Argmax;
using ops::Sample;
using ops::Softmax;

void softmax_model(const OpCall& call) {
  const TensorView& logits = call.view(Softmax::kLogits);
  const TensorView& probs = call.view(Softmax::kProbs);
  const float temperature = static_cast<float>(call.attr().real("temperature"));
  const double top_p = call.attr().real("top_p");
  const int64_t vocabulary = logits.dim(1);
  std::vector<float> weight(static_cast<size_t>(vocabulary));
  std::vector<size_t> order(weight.size());
  for (int64_t r = 0; r < logits.dim(0); ++r) {
    float largest = -std::numeric_limits<float>::infinity();
    for (int64_t c = 0; c < vocabulary; ++c) {
      const float scaled = logits.load(logits.offset(r, c)) / temperature;
      weight[static_cast<size_t>(c)] = scaled;
      if (scaled > largest || scaled != scaled) largest = scaled;
    }
    for (float& value : weight) value = std::exp(value - largest);
    // Sums in double, so that which tokens make up top_p does not hang on the order of addition.
    double total = std::accumulate(weight.begin(), weight.end(), 0.0);
    if (top_p < 1.0 && total == total) {
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return weight[a] > weight[b]; });
      double mass = 0;
      for (const size_t token : order) {
        if (mass >= top_p * total && mass > 0)
          weight[token] = 0;
        else
          mass += weight[token];
      }
      total = mass;
    }
    for (int64_t c = 0; c < vocabulary; ++c)
      probs.store(probs.offset(r, c), static_cast<float>(weight[static_cast<size_t>(c)] / total));
  }
}

void sample_model(const OpCall& call) {
  const TensorView& probs = call.view(Sample::kProbs);
  for (int64_t r = 0; r < probs.dim(0); ++r) {
    const double uniform = call.view(Sample::kUniform).load(r);
    double cumulative = 0;
    int64_t token = probs.dim(1) - 1;  // rounding can leave the whole row below the draw
    for (int64_t c = 0; c < probs.dim(1); ++c) {
      cumulative += probs.load(probs.offset(r, c));
      if (cumulative > uniform) {
        token = c;
        break;
      }
    }
    call.view(Sample::kTokens).store_index(r, token);
  }
}

int64_t argmax_row(const TensorView& logits, int64_t row) {
  int64_t best = 0;
  for (int64_t c = 1; c < logits.dim(1); ++c) {
    const float value = logits.load(logits.offset(row, c));
    const float largest = logits.load(logits.offset(row, best));
    if (value > largest || (largest != largest && value == value)) best = c;
  }
  return best;
}

void argmax_model(const OpCall& call) {
  const TensorView& logits = call.view(Argmax::kLogits);
  for (int64_t r = 0; r < logits.dim(0); ++r) call.view(Argmax::kTokens).store_index(r, argmax_row(logits, r));
}

std::optional<OpKind::SelectionProblem> argmax_selection(const OpCall& call, int64_t live_rows) {
  const TensorView& logits = call.view(Argmax::kLogits);
  const TensorView& tokens = call.view(Argmax::kTokens);
  for (int64_t r = 0; r < std::min(live_rows, tokens.dim(0)); ++r) {
    const int64_t token = tokens.load_index(r);
    if (token < 0 || token >= logits.dim(1))
      return OpKind::SelectionProblem{Argmax::kTokens, r, fmt::format("row {}: token {} does not exist", r, token)};
    const float largest = logits.load(logits.offset(r, argmax_row(logits, r)));
    const float chosen = logits.load(logits.offset(r, token));
    const bool all_nan = largest != largest;  // then any token is as good as another
    if (!all_nan && !(chosen >= largest))
      return OpKind::SelectionProblem{
          Argmax::kTokens, r,
          fmt::format("row {}: token {} has a logit of {}, the largest is {}", r, token, chosen, largest)};
  }
  return std::nullopt;
}

KernelResult run_softmax(const OpCall& call) {
  const TensorView& logits = call.view(Softmax::kLogits);
  with_build(call, logits.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::launch_softmax(call.launch, logits.dim(0),
                            kernels::SoftmaxBody<T, decltype(build)::kChecked>{
                                .logits = kernel_operand<T>(call, Softmax::kLogits),
                                .probs = kernel_operand<float>(call, Softmax::kProbs),
                                .vocabulary = logits.dim(1),
                                .logits_stride = logits.stride[0],
                                .probs_stride = call.view(Softmax::kProbs).stride[0],
                                .temperature = static_cast<float>(call.attr().real("temperature")),
                                .top_p = call.attr().real("top_p"),
                                .log = call.launch.log});
  });
  return std::nullopt;
}

// Tokens, and whether some row holds a probability that is NaN, infinite or negative. On a GPU nobody waits for that:
// with `asserts` such a row is a device-side assert, or a record in the checked build's log.
bool launch_sample(const OpCall& call, bool asserts) {
  const TensorView& probs = call.view(Sample::kProbs);
  std::vector<int32_t> flags(call.launch.cuda ? 0 : static_cast<size_t>(probs.dim(0)));
  const auto launch = [&](auto checked) {
    kernels::launch_sample(
        call.launch, probs.dim(0),
        kernels::SampleBody<decltype(checked)::value>{.probs = kernel_operand<float>(call, Sample::kProbs),
                                                      .uniform = kernel_operand<float>(call, Sample::kUniform),
                                                      .tokens = kernel_operand<int32_t>(call, Sample::kTokens),
                                                      .flags = call.launch.cuda ? nullptr : flags.data(),
                                                      .asserts = asserts && call.launch.cuda,
                                                      .vocabulary = probs.dim(1),
                                                      .probs_stride = probs.stride[0],
                                                      .log = call.launch.log});
  };
  if (call.checked)
    launch(std::true_type{});
  else
    launch(std::false_type{});
  return std::any_of(flags.begin(), flags.end(), [](int32_t flag) { return flag != 0; });
}

KernelResult run_pytorch(const OpCall& call) {
  if (launch_sample(call, true)) return KernelFault{"device-assert", FAULTLINE_MULTINOMIAL_MESSAGE};
  return std::nullopt;
}

KernelResult run_flashinfer(const OpCall& call) {
  launch_sample(call, false);
  return std::nullopt;
}

KernelResult run_argmax(const OpCall& call) {
  const TensorView& logits = call.view(Argmax::kLogits);
  with_build(call, logits.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::launch_argmax(
        call.launch, logits.dim(0),
        kernels::ArgmaxBody<T, decltype(build)::kChecked>{.logits = kernel_operand<T>(call, Argmax::kLogits),
                                                          .tokens = kernel_operand<int32_t>(call, Argmax::kTokens),
                                                          .vocabulary = logits.dim(1),
                                                          .logits_stride = logits.stride[0],
                                                          .log = call.launch.log});
  });
  return std::nullopt;
}

const RegisterKind kRegisterSoftmax(OpKind{
    .name = Softmax::kName,
    .operands = {input("logits", kRequestRows), output("probs", kRequestRows, Content::kProbabilities)},
    .model = softmax_model,
    .structure = {"temperature", "top_p"}});
const RegisterKind kRegisterSample(OpKind{
    .name = Sample::kName,
    .operands = {input("probs", kRequestRows, Content::kProbabilities), input("uniform", kRequestRows),
                 index_output("tokens", kRequestRows)},  // end: V
    .model = sample_model});
const RegisterKind kRegisterArgmax(OpKind{
    .name = Argmax::kName,
    .operands = {input("logits", kRequestRows), index_output("tokens", kRequestRows)},  // end: V
    .model = argmax_model,
    .selection = argmax_selection});

const RegisterKernel kSoftmaxKernel(Kernel{.name = "softmax",
                                           .kind = Softmax::kName,
                                           .follows = "sglang v0.5.9, layers/sampler.py; flashinfer's top-p cut",
                                           .run = run_softmax,
                                           .tolerance = tolerance_for(Softmax::kName, Dtype::kF32)});
const RegisterKernel kPytorch(Kernel{
    .name = "pytorch",
    .kind = Sample::kName,
    .follows = "sglang v0.5.9, layers/sampler.py (torch.multinomial, whose device-side assert ends the process)",
    .run = run_pytorch,
    .tolerance = tolerance_for(Sample::kName, Dtype::kI32),
    .serves = {{"sampling_backend", "pytorch"}}});
const RegisterKernel kFlashinfer(Kernel{
    .name = "flashinfer",
    .kind = Sample::kName,
    .follows = "sglang v0.5.9, layers/sampler.py (top_k_top_p_sampling_from_probs: no assert on NaN)",
    .run = run_flashinfer,
    .tolerance = tolerance_for(Sample::kName, Dtype::kI32),
    .serves = {{"sampling_backend", "flashinfer"}}});
const RegisterKernel kArgmaxKernel(Kernel{.name = "argmax",
                                          .kind = Argmax::kName,
                                          .follows = "torch.argmax in sglang's greedy path, but a NaN never wins",
                                          .run = run_argmax,
                                          .tolerance = tolerance_for(Argmax::kName, Dtype::kI32)});

}  // namespace
}  // namespace faultline
