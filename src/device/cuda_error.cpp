#include "device/cuda_error.h"

namespace faultline {

DeviceFault cuda_fault(cudaError_t error) {
  const std::string message = fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
  switch (error) {
    case cudaErrorAssert:
      return {"device-assert", message};
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
      return {"illegal-access", message};
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      return {"unsupported", message};
    case cudaErrorMemoryAllocation:
      return {"oom", message};
    case cudaErrorLaunchTimeout:
      return {"hang", message};
    default:  // illegal instruction, invalid pc, stack error, an unspecified launch failure, a lost GPU
      return {"launch-failure", message};
  }
}

}  // namespace faultline
