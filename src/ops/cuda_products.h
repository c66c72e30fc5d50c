// The products of linear.cpp, moe.cpp and batched_linear.cpp on a GPU: the operands of a call as
// kernels/cuda_products.h takes them, and the device memory that those bodies need beside them. That memory (tables of
// the experts' weights, plans, prepared activations) is made on first use, never in a capture, and kept: captured
// graphs hold its addresses. A launch that CUDA refuses, or one in a capture for which nothing was made before, is kept
// for kernels::take_launch_error. Memory that runs out throws std::bad_alloc, as Device::allocate does.
#pragma once

#include "ops/op.h"

namespace faultline {

KernelResult cuda_linear(const OpCall& call);
KernelResult cuda_linear_w4a4(const OpCall& call);
KernelResult cuda_experts(const OpCall& call);
KernelResult cuda_experts_w4a4(const OpCall& call);
KernelResult cuda_batched_linear(const OpCall& call);

}  // namespace faultline
