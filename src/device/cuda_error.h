// CUDA's errors as values, and what a sticky one means.
#pragma once

#include <cuda_runtime.h>

#include "base/error.h"
#include "device/device.h"

namespace faultline {

// FAULTLINE_CUDA_TRY(call, "name"): returns an error that names the call and CUDA's reason.
#define FAULTLINE_CUDA_TRY(expression, call)                                                          \
  do {                                                                                                \
    const cudaError_t cuda_status = (expression);                                                     \
    if (cuda_status != cudaSuccess)                                                                   \
      return ::faultline::internal_error("{} failed: {} ({})", call, cudaGetErrorString(cuda_status), \
                                         cudaGetErrorName(cuda_status));                              \
  } while (false)

// The verdict of an error that a kernel caused.
DeviceFault cuda_fault(cudaError_t error);

}  // namespace faultline
