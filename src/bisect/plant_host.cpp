// Kernels that take the process with them, or never come back.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "bisect/plant_fault.h"

#if defined(__SANITIZE_ADDRESS__)
#define FAULTLINE_PLANT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FAULTLINE_PLANT_ASAN 1
#endif
#endif

namespace faultline::plants {
namespace {

constexpr int kExitStatus = 7;
constexpr size_t kMemoryStep = size_t{64} << 20;
constexpr size_t kMemoryAttempts = 1024;  // 64 GiB
constexpr long kMemoryReserve = 8;        // an eighth of the machine's memory stays free, whatever the limits say

bool machine_runs_low() {
  return ::sysconf(_SC_AVPHYS_PAGES) < ::sysconf(_SC_PHYS_PAGES) / kMemoryReserve;
}

}  // namespace

KernelResult crash(Blow& blow) {
#ifdef FAULTLINE_PLANT_ASAN
  std::signal(SIGSEGV, SIG_DFL);  // the sanitizer would turn the signal into an exit code
#endif
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* memory = ::mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) *static_cast<volatile char*>(memory) = 0;
  std::raise(SIGSEGV);
  return blow.kernel();
}

KernelResult abort_process(Blow& blow) {
  std::fprintf(stderr, "%s: planted abort\n", blow.op.name.c_str());
  std::fflush(stderr);
  std::abort();
}

KernelResult hang(Blow& blow) {
  if (blow.gpu() != nullptr) return hang_on_device(blow);
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

KernelResult exit_process(Blow&) {
  std::_Exit(kExitStatus);
}

KernelResult throw_exception(Blow& blow) {
  throw std::runtime_error(blow.op.name + ": planted exception");
}

KernelResult run_out_of_memory(Blow& blow) {
  if (blow.gpu() != nullptr) return run_out_of_device_memory(blow);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<std::unique_ptr<char[]>> taken;
  for (size_t i = 0; i < kMemoryAttempts && !machine_runs_low(); ++i) {
    taken.emplace_back(new char[kMemoryStep]);
    volatile char* bytes = taken.back().get();
    for (size_t at = 0; at < kMemoryStep; at += page) bytes[at] = 1;
  }
  throw std::bad_alloc();
}

}  // namespace faultline::plants
