// Softmax with a top-p cut, sampling by inverse transform, argmax. One block a row of the vocabulary; in softmax and
// sampling thread t owns a run of consecutive tokens, so that sums by run follow the order of the tokens.
//
//   softmax  e = exp(logit / temperature - max); sums in double. Below top_p = 1 the smallest set of tokens with mass
//   >=
//            top_p stays: the cut is found by bisection over the bits of e (floats >= 0 sort as their bits do); of the
//            tokens equal to the cut the lower ids stay. A NaN or an infinite logit makes the whole row NaN, as in
//            PyTorch.
//   sample   the first token whose cumulative probability exceeds the row's draw; the last token when none does. A row
//   with
//            a NaN, an infinite or a negative probability sets its flag, and its token is whatever the sums give. On a
//            GPU, where nobody reads flags, `asserts` makes it a device-side assert (torch.multinomial); the checked
//            build records the element instead (AccessKind::kFailedAssertion), so that the run goes on.
//   argmax   lowest index among the largest; a NaN never wins; a row of NaN gives 0.
// logits [R, V] and probs [R, V] float with row strides; uniform float, tokens and flags int32 [R].
#pragma once

#include <cassert>
#include <cmath>

#include "kernels/operand.h"

namespace faultline::kernels {

inline constexpr int kSamplingThreads = 128;

// PyTorch's words (aten/src/ATen/native/cuda/TensorCompare.cu), by which people find the fault.
#define FAULTLINE_MULTINOMIAL_MESSAGE "probability tensor contains either `inf`, `nan` or element < 0"

// Ends every kernel of the process with cudaErrorAssert; nothing on the host.
FAULTLINE_HD inline void device_assert_multinomial() {
#ifdef __CUDA_ARCH__
  __assert_fail(FAULTLINE_MULTINOMIAL_MESSAGE, __FILE__, __LINE__, "multinomial");
#endif
}

struct TokenRun {
  int64_t begin = 0;
  int64_t end = 0;
};
FAULTLINE_HD inline TokenRun token_run(int thread, int threads, int64_t vocabulary) {
  const int64_t run = (vocabulary + threads - 1) / threads;
  const int64_t begin = thread * run < vocabulary ? thread * run : vocabulary;
  const int64_t end = begin + run < vocabulary ? begin + run : vocabulary;
  return TokenRun{begin, end};
}

template <class T, bool kChecked>
struct SoftmaxBody {
  Operand<T> logits;
  Operand<float> probs;
  int64_t vocabulary = 0;
  int64_t logits_stride = 0;
  int64_t probs_stride = 0;
  float temperature = 1;
  double top_p = 1;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto logits_view = open<kChecked>(logits, log, block);
    const auto out = open<kChecked>(probs, log, block);
    const int64_t logits_row = block.index(0) * logits_stride;
    const int64_t row = block.index(0) * probs_stride;
    double* partial = block.template shared<double>(block.threads());
    double* result = block.template shared<double>(1);

    PerThread<float, Block> largest(block);
    block.for_each_thread([&](int t) {
      const TokenRun run = token_run(t, block.threads(), vocabulary);
      float best = -INFINITY;
      for (int64_t c = run.begin; c < run.end; ++c) {
        const float value = to_float(logits_view.load(logits_row + c)) / temperature;
        if (value > best || value != value) best = value;
      }
      largest[t] = best;
    });
    const float offset = block.max(largest);
    block.for_each_thread([&](int t) {
      const TokenRun run = token_run(t, block.threads(), vocabulary);
      for (int64_t c = run.begin; c < run.end; ++c)
        out.store(row + c, expf(to_float(logits_view.load(logits_row + c)) / temperature - offset));
    });
    double total = mass_from(block, out, row, 0u, partial, result);
    if (top_p < 1.0 && total == total) {
      const double target = top_p * total;
      // The largest cut whose tokens hold the target: mass(low) >= target > mass(high).
      uint32_t low = 0;
      uint32_t high = float_bits(1.0f) + 1;
      while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (mass_from(block, out, row, middle, partial, result) >= target)
          low = middle;
        else
          high = middle;
      }
      total = cut(block, out, row, low, target, partial, result);
    }
    block.for_each_thread([&](int t) {
      const TokenRun run = token_run(t, block.threads(), vocabulary);
      for (int64_t c = run.begin; c < run.end; ++c) out.store(row + c, static_cast<float>(out.load(row + c) / total));
    });
  }

 private:
  // The mass of the tokens whose weight has bits >= `bits`; NaN when a weight is.
  template <class Block>
  FAULTLINE_HD double mass_from(Block& block, const View<float, kChecked>& out, int64_t row, uint32_t bits,
                                double* partial, double* result) const {
    block.for_each_thread([&](int t) {
      const TokenRun run = token_run(t, block.threads(), vocabulary);
      double sum = 0;
      for (int64_t c = run.begin; c < run.end; ++c) {
        const float weight = out.load(row + c);
        if (float_bits(weight) >= bits) sum += weight;
      }
      partial[t] = sum;
    });
    block.for_each_thread([&](int t) {
      if (t != 0) return;
      double sum = 0;
      for (int i = 0; i < block.threads(); ++i) sum += partial[i];
      *result = sum;
    });
    return *result;
  }

  // Zeroes what lies below the cut, and of the tokens at it those that the target does not need. Returns the mass left.
  template <class Block>
  FAULTLINE_HD double cut(Block& block, const View<float, kChecked>& out, int64_t row, uint32_t bits, double target,
                          double* partial, double* result) const {
    double mass = mass_from(block, out, row, bits + 1, partial, result);
    const float weight = float_from_bits(bits);
    int64_t* before = block.template shared<int64_t>(block.threads());  // tokens at the cut in earlier runs
    int64_t needed = 0;
    for (; mass < target || mass == 0; ++needed) mass += weight;  // one token at least
    block.for_each_thread([&](int t) {
      const TokenRun run = token_run(t, block.threads(), vocabulary);
      int64_t count = 0;
      for (int64_t c = run.begin; c < run.end; ++c) count += float_bits(out.load(row + c)) == bits ? 1 : 0;
      before[t] = count;
    });
    block.for_each_thread([&](int t) {
      if (t != 0) return;
      int64_t sum = 0;
      for (int i = 0; i < block.threads(); ++i) {
        const int64_t count = before[i];
        before[i] = sum;
        sum += count;
      }
    });
    block.for_each_thread([&](int t) {
      const TokenRun run = token_run(t, block.threads(), vocabulary);
      int64_t rank = before[t];
      for (int64_t c = run.begin; c < run.end; ++c) {
        const uint32_t own = float_bits(out.load(row + c));
        if (own < bits || (own == bits && rank++ >= needed)) out.store(row + c, 0.0f);
      }
    });
    return mass;
  }
};

#ifdef FAULTLINE_HAVE_CUDA
bool cuda_faster(const LaunchContext& context, Grid grid, const SoftmaxBody<Bf16, false>& body);   // cuda_vocabulary.cu
bool cuda_faster(const LaunchContext& context, Grid grid, const SoftmaxBody<float, false>& body);  // cuda_vocabulary.cu
#endif

template <class T, bool kChecked>
void launch_softmax(const LaunchContext& context, int64_t rows, const SoftmaxBody<T, kChecked>& body) {
  const size_t shared = (kSamplingThreads + 1) * sizeof(double) + kSamplingThreads * sizeof(int64_t);
  launch(context, Grid{rows}, kSamplingThreads, shared, body);
}

template <bool kChecked>
struct SampleBody {
  Operand<float> probs;
  Operand<float> uniform;
  Operand<int32_t> tokens;
  int32_t* flags = nullptr;  // one a row, or none: 0, or 1 where a probability is NaN, infinite or negative
  bool asserts = false;      // on a GPU: such a row is a device-side assert, in the checked build a record
  int64_t vocabulary = 0;
  int64_t probs_stride = 0;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto probs_view = open<kChecked>(probs, log, block);
    const auto uniform_view = open<kChecked>(uniform, log, block);
    const auto tokens_view = open<kChecked>(tokens, log, block);
    const int64_t row = block.index(0) * probs_stride;
    double* partial = block.template shared<double>(block.threads());
    int32_t* invalid = block.template shared<int32_t>(block.threads());  // a run's first invalid token, or -1

    block.for_each_thread([&](int t) {
      const TokenRun run = token_run(t, block.threads(), vocabulary);
      double sum = 0;
      invalid[t] = -1;
      for (int64_t c = run.begin; c < run.end; ++c) {
        const float probability = probs_view.load(row + c);
        if ((!(probability >= 0.0f) || probability == INFINITY) && invalid[t] < 0) invalid[t] = static_cast<int32_t>(c);
        sum += probability;
      }
      partial[t] = sum;
    });
    block.for_each_thread([&](int t) {
      if (t != 0) return;
      const double draw = uniform_view.load(block.index(0));
      int32_t first_invalid = -1;
      for (int i = block.threads() - 1; i >= 0; --i) first_invalid = invalid[i] >= 0 ? invalid[i] : first_invalid;
      if (flags != nullptr) flags[block.index(0)] = first_invalid >= 0 ? 1 : 0;
      if (asserts && first_invalid >= 0) {
        probs_view.failed_assertion(row + first_invalid);
        if constexpr (!kChecked) device_assert_multinomial();
      }
      double cumulative = 0;
      int thread = 0;
      while (thread < block.threads() && !(cumulative + partial[thread] > draw)) cumulative += partial[thread++];
      int64_t token = vocabulary - 1;
      if (thread < block.threads()) {
        const TokenRun run = token_run(thread, block.threads(), vocabulary);
        for (int64_t c = run.begin; c < run.end; ++c) {
          cumulative += probs_view.load(row + c);
          if (cumulative > draw) {
            token = c;
            break;
          }
        }
      }
      tokens_view.store(block.index(0), static_cast<int32_t>(token));
    });
  }
};

#ifdef FAULTLINE_HAVE_CUDA
bool cuda_faster(const LaunchContext& context, Grid grid, const SampleBody<false>& body);  // cuda_vocabulary.cu
#endif

template <bool kChecked>
void launch_sample(const LaunchContext& context, int64_t rows, const SampleBody<kChecked>& body) {
  launch(context, Grid{rows}, kSamplingThreads, kSamplingThreads * (sizeof(double) + sizeof(int32_t)), body);
}

template <class T, bool kChecked>
struct ArgmaxBody {
  Operand<T> logits;
  Operand<int32_t> tokens;
  int64_t vocabulary = 0;
  int64_t logits_stride = 0;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto logits_view = open<kChecked>(logits, log, block);
    const auto tokens_view = open<kChecked>(tokens, log, block);
    const int64_t row = block.index(0) * logits_stride;
    float* value = block.template shared<float>(block.threads());
    int32_t* index = block.template shared<int32_t>(block.threads());  // -1: nothing but NaN
    block.for_each_thread([&](int t) {
      const TokenRun run = token_run(t, block.threads(), vocabulary);
      index[t] = -1;
      for (int64_t c = run.begin; c < run.end; ++c) {
        const float logit = to_float(logits_view.load(row + c));
        if (logit == logit && (index[t] < 0 || logit > value[t])) {
          value[t] = logit;
          index[t] = static_cast<int32_t>(c);
        }
      }
    });
    block.for_each_thread([&](int t) {
      if (t != 0) return;
      int best = -1;
      for (int i = 0; i < block.threads(); ++i)
        if (index[i] >= 0 && (best < 0 || value[i] > value[best])) best = i;
      tokens_view.store(block.index(0), best < 0 ? 0 : index[best]);
    });
  }
};

#ifdef FAULTLINE_HAVE_CUDA
bool cuda_faster(const LaunchContext& context, Grid grid, const ArgmaxBody<Bf16, false>& body);   // cuda_vocabulary.cu
bool cuda_faster(const LaunchContext& context, Grid grid, const ArgmaxBody<float, false>& body);  // cuda_vocabulary.cu
#endif

template <class T, bool kChecked>
void launch_argmax(const LaunchContext& context, int64_t rows, const ArgmaxBody<T, kChecked>& body) {
  launch(context, Grid{rows}, kSamplingThreads, kSamplingThreads * (sizeof(float) + sizeof(int32_t)), body);
}

}  // namespace faultline::kernels
