// The references of every op kind on the GPU: plain kernels that do what the functions in ops/<kind>.cpp do, on
// operands that lie in a GPU's memory. They share nothing with the own kernels but the number codecs, since they judge
// them.
//
// Sums are taken in the precision of the host's references (double for norms, attention, index scores and probability
// masses; float for products, whose terms are added in another order there too), so the two agree to a few last bits.
// An index that points nowhere is never followed: what would be read there is NaN, and nothing is written.
#pragma once

#include "ops/op.h"

namespace faultline {

enum class ReferenceOf : uint8_t { kModel, kSpec };

// Whether run_cuda_reference has this one. A kernel without a spec of its own has the model's.
bool has_cuda_reference(const OpKind& kind, const Kernel* kernel, ReferenceOf which);

// Enqueues the reference of `kernel`'s kind on call.launch.stream; every operand is a device address. `kernel` matters
// for kSpec alone, and may be null for kModel. False, and nothing was enqueued: there is none on the device. A launch
// that CUDA refuses is kept for kernels::take_launch_error. Lists of weights become tables in device memory, made once
// for each list and kept as long as the process lives; so the first call of an op cannot be captured into a graph.
bool run_cuda_reference(const OpKind& kind, const Kernel* kernel, ReferenceOf which, const OpCall& call);

// How far apart an output and its reference are, for tensors too large to be compared on the host.
struct Closeness {
  int64_t count = 0;   // elements that are apart
  int64_t first = -1;  // the first of them in row order, as a flat offset of both views (TensorView::offset); -1: none
  float out = 0;       // what stands there
  float ref = 0;
};

// Enqueues on `stream` the comparison of rows [0, live_rows) of two tensors of one shape and stride in device memory.
// `lengths`, where it has data, is an integer a row: only columns [0, min(length, columns)) are live then. An element
// is apart when !(abs(out - ref) <= atol + rtol * abs(ref)), unless both are NaN or equal infinities: a NaN beside a
// number is apart. `result` is the device address of 24 bytes, best in mapped host memory (Device::allocate_host).
void compare_on_cuda(const TensorView& out, const TensorView& ref, int64_t live_rows, const TensorView& lengths,
                     Tolerance tolerance, Closeness* result, void* stream);

}  // namespace faultline
