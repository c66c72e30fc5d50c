// An assertion that fails must fail in every build.
#undef NDEBUG
#include "bisect/cuda_plants.h"

#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>

#include "bisect/foreign_arch/no_code.h"

namespace faultline::plants {
namespace {

constexpr int kBlocks = 2;
constexpr int kThreads = 64;
constexpr int64_t kFarAway = int64_t{1} << 40;         // no allocation reaches that far
constexpr size_t kNoBlockHasSoMuch = size_t{1} << 20;  // bytes of shared memory
constexpr unsigned kNoGridIsSoTall = 70000;            // the limit of y is 65535

constexpr unsigned kArrivals = 5;

__device__ bool struck() {
  return blockIdx.x == kPlantedBlock && threadIdx.x == kPlantedThread;
}

}  // namespace

// Their names are what a debugger shows: without an unnamed namespace in them.
__global__ void planted_assert(int size) {
  const int index = struck() ? size : 0;
  assert(index >= 0 && index < size);
}

// A warp that has ended when the device notices its bad store is gone from the core dump, and with it block and thread.
// So it waits for what it has asked for: a load for its value, a store at a fence.
__global__ void planted_illegal_access(std::byte* target) {
  if (struck()) {
    auto* far = reinterpret_cast<volatile float*>(target + kFarAway);
    *far = *far + 1.0f;
  }
}

__global__ void planted_misaligned_access(std::byte* target) {
  constexpr int64_t kOdd = 2;
  if (struck()) *reinterpret_cast<volatile float*>(target + kOdd) = 1.0f;
}

// An mbarrier that expects nobody, and to which more come than it can count: the hardware refuses the instruction.
__global__ void planted_illegal_instruction(unsigned arrivals) {
  __shared__ __align__(sizeof(uint64_t)) uint64_t barrier;
  if (struck()) {
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 0;" ::"r"(address));
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0], %1; }" ::"r"(address), "r"(arrivals)
                 : "memory");
    __trap();  // where it is let through
  }
}

__global__ void planted_weight_overwrite(std::byte* weight) {
  if (struck()) {
    *reinterpret_cast<volatile unsigned char*>(weight) = 0xFF;
    __threadfence_system();
  }
}

__global__ void planted_hang(const std::byte* flag) {
  constexpr unsigned kNanoseconds = 1000;
  while (*reinterpret_cast<const volatile int*>(flag) == 0) __nanosleep(kNanoseconds);
}

__global__ void planted_launch(std::byte* target) {
  if (target == nullptr) __trap();
}

namespace {

std::string refusal(dim3 grid, int threads, size_t shared_bytes) {
  const cudaError_t error = cudaPeekAtLastError();
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  char text[256];
  static_cast<void>(std::snprintf(text, sizeof text, "grid (%u, %u, %u), %d threads, %zu bytes of shared memory: %s",
                                  grid.x, grid.y, grid.z, threads, shared_bytes, cudaGetErrorString(error)));
  return text;
}

}  // namespace

std::string launch_cuda_plant(CudaPlant plant, std::byte* target, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  dim3 grid(kBlocks);
  size_t shared_bytes = 0;
  switch (plant) {
    case CudaPlant::kAssert:
      planted_assert<<<grid, kThreads, 0, on>>>(kThreads);
      break;
    case CudaPlant::kIllegalAccess:
      planted_illegal_access<<<grid, kThreads, 0, on>>>(target);
      break;
    case CudaPlant::kMisalignedAccess:
      planted_misaligned_access<<<grid, kThreads, 0, on>>>(target);
      break;
    case CudaPlant::kIllegalInstruction:
      planted_illegal_instruction<<<grid, kThreads, 0, on>>>(kArrivals);
      break;
    case CudaPlant::kWeightOverwrite:
      planted_weight_overwrite<<<grid, kThreads, 0, on>>>(target);
      break;
    case CudaPlant::kHang:
      planted_hang<<<grid, kThreads, 0, on>>>(target);
      break;
    case CudaPlant::kSharedMemory:
      shared_bytes = kNoBlockHasSoMuch;
      planted_launch<<<grid, kThreads, shared_bytes, on>>>(target);
      break;
    case CudaPlant::kGrid:
      grid = dim3(1, kNoGridIsSoTall);
      planted_launch<<<grid, kThreads, 0, on>>>(target);
      break;
    case CudaPlant::kNoCode:
      launch_planted_no_code(target, kBlocks, kThreads, stream);
      break;
  }
  return refusal(grid, kThreads, shared_bytes);
}

}  // namespace faultline::plants
