// The planted faults of a GPU: kernels that break the rule that their name says, and launches that CUDA refuses.
//
// Each is a real fault of the device, so that everything behind it is tested as it is: the error, the core dump, the
// source line, the block and the thread. No kernel here runs unless it was asked for by --plant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace faultline::plants {

enum class CudaPlant : uint8_t {
  kAssert,
  kIllegalAccess,
  kMisalignedAccess,
  kIllegalInstruction,
  kWeightOverwrite,  // `target`: memory that may only be read
  kHang,             // `target`: host memory of 4 zero bytes that nobody changes
  kSharedMemory,
  kGrid,
  kNoCode,
};

// Where a kernel with several blocks and threads breaks: the coordinates that a core dump must give.
inline constexpr int kPlantedBlock = 1;
inline constexpr int kPlantedThread = 37;

// Launches it on `stream` (cudaStream_t). `target` is memory of the device's. Returns why CUDA refused the launch;
// empty: it did not.
std::string launch_cuda_plant(CudaPlant plant, std::byte* target, void* stream);

}  // namespace faultline::plants
