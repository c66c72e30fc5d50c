#include "kernels/launch.h"

#include <cstdio>
#include <numeric>

#include "base/error.h"

namespace faultline::kernels {
namespace {

constexpr size_t kErrorBytes = 512;
thread_local char launch_error[kErrorBytes];
thread_local bool launch_failed = false;

}  // namespace

const char* take_launch_error() {
  if (!launch_failed) return nullptr;
  launch_failed = false;
  return launch_error;
}

void note_launch_error(const char* text) {
  if (launch_failed) return;
  launch_failed = true;
  static_cast<void>(std::snprintf(launch_error, kErrorBytes, "%s", text));
}

HostBlock::HostBlock(Grid grid, int threads, size_t shared_bytes, uint64_t seed)
    : grid_(grid),
      threads_(threads),
      state_(seed * 0x9E3779B97F4A7C15ull + 1),
      order_(static_cast<size_t>(threads)),
      shared_(shared_bytes + alignof(std::max_align_t)) {
  std::iota(order_.begin(), order_.end(), 0);
}

void HostBlock::begin(int64_t x, int64_t y, int64_t z) {
  x_ = x;
  y_ = y;
  z_ = z;
  place_.block = x + grid_.x * (y + grid_.y * z);
  shared_used_ = 0;
  // Every byte 0xFF reads as NaN in each float format and as -1 in each integer.
  std::fill(shared_.begin(), shared_.end(), std::byte{0xFF});
  shuffle();
}

void HostBlock::shuffle() {
  // A random rotation and direction: one draw a phase, and any two neighbours run in either order.
  state_ ^= state_ << 13;
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  const int start = static_cast<int>(state_ % static_cast<uint64_t>(threads_));
  const int step = (state_ >> 40) & 1 ? 1 : threads_ - 1;
  int t = start;
  for (int& slot : order_) {
    slot = t;
    t = (t + step) % threads_;
  }
}

void* HostBlock::take_shared(size_t bytes, size_t alignment) {
  shared_used_ = (shared_used_ + alignment - 1) / alignment * alignment;
  FAULTLINE_CHECK(shared_used_ + bytes <= shared_.size());  // the launch declared too little shared memory
  void* result = shared_.data() + shared_used_;
  shared_used_ += bytes;
  return result;
}

}  // namespace faultline::kernels
