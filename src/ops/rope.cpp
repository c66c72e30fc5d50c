#include "kernels/rope.h"

#include <cmath>

#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using ops::Rope;

// Rounded to float here, like the float cos/sin caches of the servers and of transformers: at position 200,000 the last
// bit of a frequency moves the angle by 0.01, so both sides must round at the same place.
float inverse_frequency(double theta, int64_t pair, int64_t rope_dim) {
  return static_cast<float>(std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(rope_dim)));
}

void rope_model(const OpCall& call) {
  const TensorView& x = call.view(Rope::kX);
  const TensorView& positions = call.view(Rope::kPositions);
  const TensorView& out = call.view(Rope::kOut);
  const int64_t rope_dim = call.attr().flag("enabled") ? call.attr().integer("rope_dim") : 0;
  const bool interleaved = call.attr().flag("interleaved");
  const double theta = call.attr().real("theta");
  for (int64_t token = 0; token < x.dim(0); ++token) {
    const auto position = static_cast<float>(positions.load_index(positions.offset(token)));
    for (int64_t head = 0; head < x.dim(1); ++head) {
      for (int64_t i = 0; i < rope_dim / 2; ++i) {
        const float angle = position * inverse_frequency(theta, i, rope_dim);
        const float cosine = std::cos(angle);
        const float sine = std::sin(angle);
        const int64_t first = interleaved ? 2 * i : i;
        const int64_t second = interleaved ? 2 * i + 1 : i + rope_dim / 2;
        const float a = x.load(x.offset(token, head, first));
        const float b = x.load(x.offset(token, head, second));
        out.store(out.offset(token, head, first), a * cosine - b * sine);
        out.store(out.offset(token, head, second), b * cosine + a * sine);
      }
      for (int64_t d = rope_dim; d < x.dim(2); ++d)
        out.store(out.offset(token, head, d), x.load(x.offset(token, head, d)));
    }
  }
}

KernelResult run_rope(const OpCall& call) {
  const TensorView& x = call.view(Rope::kX);
  const TensorView& out = call.view(Rope::kOut);
  with_build(call, x.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::RopeOperands<T> operands;
    operands.x = kernel_operand<T>(call, Rope::kX);
    operands.positions = kernel_operand<int32_t>(call, Rope::kPositions);
    operands.out = kernel_operand<T>(call, Rope::kOut);
    operands.tokens = x.dim(0);
    operands.heads = x.dim(1);
    operands.dim = x.dim(2);
    operands.rope_dim = call.attr().flag("enabled") ? call.attr().integer("rope_dim") : 0;
    operands.x_token_stride = x.stride[0];
    operands.x_head_stride = x.stride[1];
    operands.out_token_stride = out.stride[0];
    operands.out_head_stride = out.stride[1];
    operands.position_stride = call.view(Rope::kPositions).stride[0];
    operands.interleaved = call.attr().flag("interleaved");
    const int64_t pairs = operands.rope_dim / 2;
    FAULTLINE_CHECK(pairs <= kernels::kMaxRopePairs);
    for (int64_t i = 0; i < pairs; ++i)
      operands.inv_freq[i] = inverse_frequency(call.attr().real("theta"), i, operands.rope_dim);
    kernels::launch_rope<T, decltype(build)::kChecked>(call.launch, operands);
  });
  return std::nullopt;
}

const RegisterKind kRope{
    OpKind{.name = Rope::kName,
           .operands = {input("x"), input("positions", kTokenRows, Content::kMetadata), output("out")},
           .model = rope_model,
           .structure = {"theta", "interleaved", "enabled"}}};

const RegisterKernel kRopeKernel{Kernel{.name = "rope",
                                        .kind = Rope::kName,
                                        .follows = "sglang v0.5.9, layers/rotary_embedding (float cos/sin cache)",
                                        .run = run_rope,
                                        .tolerance = tolerance_for(Rope::kName, Dtype::kBF16)}};

}  // namespace
}  // namespace faultline
