// An op against its references, on this run's inputs.
//
// The spec reference (same formats and rounding points as the kernel) convicts a kernel; the model reference shows a
// setting. Every comparison is written so that NaN fails it: !(abs(out - ref) <= atol + rtol * abs(ref)).
#pragma once

#include <optional>

#include "check/violation.h"
#include "device/device.h"

namespace faultline {

// Runs the spec reference of `op.kernel` into scratch outputs and compares the live regions. Selections (top-k, router,
// argmax) are compared by score. Nothing when they agree.
std::optional<OpViolation> compare_to_spec(const Op& op, const LiveCounts& live);

// Where the resolved row's structure differs from the model's: the model reference with the model's attributes (and
// shadow inputs) against the kernel's output, within what the formats allow. Nothing when the structure is the model's,
// or the numbers agree.
std::optional<OpViolation> compare_to_model(const Op& op, const LiveCounts& live);

// Whether the op's attributes differ from the model's in a structural one; then which ("theta").
std::optional<std::string> structural_difference(const Op& op);

// An op's call with scratch memory in place of its outputs. Caches get a scratch cache of the same size.
class ScratchOutputs {
 public:
  explicit ScratchOutputs(const Op& op, const ArgumentList* inputs = nullptr);
  OpCall call(const Attributes& attributes) const;
  const Argument& argument(int operand) const { return arguments_[operand]; }

 private:
  ArgumentList arguments_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

// The function that defines the kernel's arithmetic.
ReferenceFn spec_of(const Op& op);

}  // namespace faultline
