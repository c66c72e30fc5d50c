// Launches that are brought in while the kernel before them in the stream still runs (programmatic dependent launch,
// sm_90 and later; also inside captured graphs): a decode step is a chain of kernels of a few microseconds, of which
// the gaps between them are a good part.
//
// A kernel launched so begins with begin_dependent(), before anything of an earlier kernel's is read or written, in
// every block: it waits there until all earlier work of the stream is done and visible. In any other launch it does
// nothing. What no kernel of the stream writes (weights) may be read before that: between its two halves.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/launch.h"

namespace faultline::kernels {

// The next kernel may be brought in as soon as all blocks of this one have begun.
__device__ __forceinline__ void admit_next() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ __forceinline__ void await_earlier() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}
__device__ __forceinline__ void begin_dependent() {
  admit_next();
  await_earlier();
}

// Errors of kernels before, which every later call reports: no launch is refused then, and waiting for the device
// tells.
inline bool device_died(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchTimeout:
      return true;
    default:
      return false;
  }
}

// Launches `kernel` on the context's stream. `cluster` blocks along x form a cluster. The result is the launch's own
// error, taken in.
template <class... Parameters>
cudaError_t launch_dependent(const LaunchContext& context, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                             size_t shared_bytes, unsigned cluster, const std::type_identity_t<Parameters>&... values) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(context.stream);
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  const cudaError_t launched = cudaLaunchKernelEx(&config, kernel, values...);
  if (launched != cudaSuccess) static_cast<void>(cudaGetLastError());
  return launched;
}

}  // namespace faultline::kernels
