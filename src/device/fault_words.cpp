#include "device/fault_words.h"

#include <array>
#include <utility>

namespace faultline {

std::string_view verdict_of_fault_words(std::string_view words) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kWords{{
      {"device-side assert", "device-assert"},
      {"cudaErrorAssert", "device-assert"},
      {"illegal memory access", "illegal-access"},
      {"cudaErrorIllegalAddress", "illegal-access"},
      {"misaligned address", "illegal-access"},
      {"cudaErrorMisalignedAddress", "illegal-access"},
      {"address space", "illegal-access"},
      {"cudaErrorInvalidAddressSpace", "illegal-access"},
      {"no kernel image", "unsupported"},
      {"cudaErrorNoKernelImageForDevice", "unsupported"},
      {"invalid device function", "unsupported"},
      {"cudaErrorInvalidDeviceFunction", "unsupported"},
      {"out of memory", "oom"},
      {"cudaErrorMemoryAllocation", "oom"},
  }};
  for (const auto& [part, verdict] : kWords)
    if (words.find(part) != std::string_view::npos) return verdict;
  return "launch-failure";
}

}  // namespace faultline
