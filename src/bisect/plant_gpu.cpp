// Faults of the device: an assertion, a bad address, a bad instruction, a launch that cannot be, code that is not
// there, memory that is out, a kernel that never ends.
#include <algorithm>
#include <new>
#include <vector>

#include "bisect/cuda_plants.h"
#include "bisect/plant_fault.h"
#include "device/fault_words.h"

namespace faultline::plants {
namespace {

constexpr uint64_t kMemoryReserve = 8;  // an eighth of the GPU's memory stays free: others work there too
constexpr size_t kMemoryStep = size_t{4} << 30;

// The first tensor of the given direction and kind of content.
std::byte* first_operand(const Blow& blow, Direction direction, bool weight) {
  for (size_t i = 0; i < blow.op.kind->operands.size(); ++i) {
    const OperandSpec& spec = blow.op.kind->operands[i];
    const Argument& argument = blow.call.argument(static_cast<int>(i));
    if (spec.direction == direction && (spec.content == Content::kWeight) == weight && argument.present())
      return argument.view().data;
  }
  return nullptr;
}

// What a refused launch comes to; a fault of a kernel that was launched comes to light when the device is asked next.
KernelResult strike(Blow& blow, CudaPlant plant, std::byte* target) {
#ifdef FAULTLINE_HAVE_CUDA
  const std::string refused = launch_cuda_plant(plant, target, blow.call.launch.stream);
  if (refused.empty()) return std::nullopt;
  return KernelFault{std::string(verdict_of_fault_words(refused)), refused};
#else
  static_cast<void>(plant);
  static_cast<void>(target);
  return blow.miss();
#endif
}

KernelResult strike_output(Blow& blow, CudaPlant plant) {
  std::byte* const target = first_operand(blow, Direction::kOut, false);
  return target == nullptr ? blow.miss() : strike(blow, plant, target);
}

// On the CPU, which has neither assertions of a device nor launches: as the kernel's own report.
KernelResult acted_out(const Blow& blow, const char* verdict, const char* message) {
  return KernelFault{verdict, blow.op.name + ": planted: " + message};
}

}  // namespace

KernelResult assert_on_device(Blow& blow) {
  if (blow.gpu() != nullptr) return strike_output(blow, CudaPlant::kAssert);
  return KernelFault{"device-assert", blow.op.name + ": planted assertion: `index >= 0 && index < size` failed"};
}

// The metadata was planned for the live rows, the kernel got the padded ones.
KernelResult assert_on_padding(Blow& blow) {
  const int operand = value_output(blow.op, blow.call);
  if (operand < 0 || blow.call.view(operand).dim(0) <= blow.live_rows_of(operand)) return blow.miss();
  if (blow.gpu() != nullptr) return strike_output(blow, CudaPlant::kAssert);
  return KernelFault{"device-assert", blow.op.name + ": planted assertion: `batch_size == batch_size_` failed"};
}

KernelResult ask_for_too_much_shared_memory(Blow& blow) {
  if (blow.gpu() != nullptr) return strike_output(blow, CudaPlant::kSharedMemory);
  return acted_out(blow, "launch-failure", "1048576 bytes of shared memory, more than any block can have");
}

KernelResult ask_for_too_large_a_grid(Blow& blow) {
  if (blow.gpu() != nullptr) return strike_output(blow, CudaPlant::kGrid);
  return acted_out(blow, "launch-failure", "grid (1, 70000, 1), past the limit of 65535");
}

KernelResult launch_code_for_another_gpu(Blow& blow) {
  if (blow.gpu() != nullptr) return strike_output(blow, CudaPlant::kNoCode);
  return acted_out(blow, "unsupported", "no code for this device");
}

KernelResult access_an_illegal_address(Blow& blow) {
  return blow.gpu() != nullptr ? strike_output(blow, CudaPlant::kIllegalAccess) : blow.miss();
}

KernelResult access_a_misaligned_address(Blow& blow) {
  return blow.gpu() != nullptr ? strike_output(blow, CudaPlant::kMisalignedAccess) : blow.miss();
}

KernelResult execute_an_illegal_instruction(Blow& blow) {
  return blow.gpu() != nullptr ? strike_output(blow, CudaPlant::kIllegalInstruction) : blow.miss();
}

KernelResult overwrite_a_weight(Blow& blow) {
  std::byte* const weight = first_operand(blow, Direction::kIn, true);
  if (blow.gpu() == nullptr || weight == nullptr) return blow.miss();
  const KernelResult refused = strike(blow, CudaPlant::kWeightOverwrite, weight);
  return refused ? refused : blow.kernel();
}

KernelResult hang_on_device(Blow& blow) {
  auto flag = blow.gpu()->allocate_host(sizeof(int));
  if (!flag) throw std::bad_alloc();
  return strike(blow, CudaPlant::kHang, flag->release()->data());  // the kernel reads it until the process is gone
}

// The last request is for more than the whole device: it fails whatever the others do meanwhile.
KernelResult run_out_of_device_memory(Blow& blow) {
  Device& device = *blow.gpu();
  std::vector<std::unique_ptr<Buffer>> taken;
  const Device::Memory start = device.memory();
  for (uint64_t free = start.free; free > start.total / kMemoryReserve + kMemoryStep; free = device.memory().free) {
    auto buffer = device.allocate(kMemoryStep);
    if (!buffer) break;
    taken.push_back(std::move(*buffer));
  }
  static_cast<void>(device.allocate(static_cast<size_t>(start.total)));
  throw std::bad_alloc();
}

}  // namespace faultline::plants
