// Typed views through which every kernel body reads and writes.
//
// The checked build of a kernel tests every index against the tensor's extent: a bad access is recorded, a bad read
// yields NaN (0 for integers), a bad write is dropped, so that the run goes on and the record holds the exact
// coordinate. The unchecked build is a plain pointer.
#pragma once

#include <cstdint>

#include "base/codec.h"

namespace faultline::kernels {

// What an entry of the log records: an access outside the extent, or an element inside it on which an assertion of the
// kernel's own failed (a device-side assert in the unchecked build on a GPU).
enum AccessKind : int32_t { kBadRead = 0, kBadWrite = 1, kFailedAssertion = 2 };

// The first bad accesses of one launch. Plain data, so that it can live in device memory.
struct BadAccess {
  int32_t operand;   // position in the op's operand list
  int32_t is_write;  // AccessKind
  int64_t index;     // flat element index
  int64_t extent;    // valid: [0, extent)
  int64_t block;
  int32_t thread;
};
struct AccessLog {
  static constexpr int kCapacity = 16;
  int64_t count = 0;
  BadAccess first[kCapacity];
};

// Where a body is at, for the record.
struct Place {
  int64_t block = 0;
  int32_t thread = 0;
};

template <class T>
struct BadValue {
  FAULTLINE_HD static T get() { return T(0); }
};
template <>
struct BadValue<float> {
  FAULTLINE_HD static float get() { return float_from_bits(0x7FC00BADu); }
};
template <>
struct BadValue<Bf16> {
  FAULTLINE_HD static Bf16 get() { return Bf16{0x7FC1}; }
};
template <>
struct BadValue<F16> {
  FAULTLINE_HD static F16 get() { return F16{0x7E01}; }
};

template <class T, bool kChecked>
class View {
 public:
  View() = default;
  FAULTLINE_HD View(T* data, int64_t extent, int operand, AccessLog* log, const Place* place)
      : data_(data), extent_(extent), operand_(operand), log_(log), place_(place) {}

  FAULTLINE_HD T load(int64_t i) const {
    if constexpr (kChecked) {
      if (i < 0 || i >= extent_) {
        record(i, kBadRead);
        return BadValue<T>::get();
      }
    }
    return data_[i];
  }
  FAULTLINE_HD void store(int64_t i, T value) const {
    if constexpr (kChecked) {
      if (i < 0 || i >= extent_) {
        record(i, kBadWrite);
        return;
      }
    }
    data_[i] = value;
  }
  FAULTLINE_HD int64_t extent() const { return extent_; }
  // Records that an assertion of the kernel's failed on element i (checked build only).
  FAULTLINE_HD void failed_assertion(int64_t i) const {
    if constexpr (kChecked) record(i, kFailedAssertion);
  }
  // A byte-wise view's pieces are read through these, so that packed rows stay checked.
  template <class U>
  FAULTLINE_HD U load_as(int64_t byte_offset) const {
    static_assert(sizeof(T) == 1);
    if constexpr (kChecked) {
      if (byte_offset < 0 || byte_offset + static_cast<int64_t>(sizeof(U)) > extent_) {
        record(byte_offset, kBadRead);
        return BadValue<U>::get();
      }
    }
    U value;
    memcpy(&value, data_ + byte_offset, sizeof value);
    return value;
  }
  template <class U>
  FAULTLINE_HD void store_as(int64_t byte_offset, U value) const {
    static_assert(sizeof(T) == 1);
    if constexpr (kChecked) {
      if (byte_offset < 0 || byte_offset + static_cast<int64_t>(sizeof(U)) > extent_) {
        record(byte_offset, kBadWrite);
        return;
      }
    }
    memcpy(data_ + byte_offset, &value, sizeof value);
  }

 private:
  FAULTLINE_HD void record(int64_t index, int is_write) const {
#ifdef __CUDA_ARCH__
    const int64_t at = atomicAdd(reinterpret_cast<unsigned long long*>(&log_->count), 1ull);
#else
    const int64_t at = log_->count++;
#endif
    if (at < AccessLog::kCapacity)
      log_->first[at] =
          BadAccess{operand_, is_write, index, extent_, place_ ? place_->block : 0, place_ ? place_->thread : 0};
  }

  T* data_ = nullptr;
  int64_t extent_ = 0;
  int operand_ = -1;
  AccessLog* log_ = nullptr;
  const Place* place_ = nullptr;
};

}  // namespace faultline::kernels
