// What the checks on the GPU leave in host memory: records of broken contracts and marks of progress. Plain data, also
// for nvcc; it survives the device's context, and the worker where the page is shared.
#pragma once

#include <cstdint>

namespace faultline {

enum class DeviceCheck : int32_t { kNonfinite, kUnwritten, kBounds, kNegative, kSum, kNeighbour, kCanary };
inline constexpr int kDeviceChecks = 7;

// One broken contract: of one operand of one op, of one kind.
struct DeviceCheckRecord {
  int32_t used = 0;  // written last
  int32_t op = 0;
  int32_t operand = 0;
  DeviceCheck check = DeviceCheck::kNonfinite;
  int32_t group = 0;
  uint32_t bits = 0;  // of the first element
  uint64_t pass = 0;  // passes that were begun (set_live), from 1
  int64_t first =
      0;  // row * columns + column; of caches the same with the list position as row; page; buffer * 128 + i
  int64_t count = 0;
  int64_t extra[4] =
      {};  // bounds: value, valid entries of the row, cause, owner; caches: slot; sums: the double's bits
};

// Where the device is: after a hang or a fault, which group and op.
struct DeviceProgress {
  uint64_t pass = 0;
  int32_t group_begun = -1;
  int32_t group_done = -1;  // -1 from the first group's begin until the last one is checked: between, begin tells
  int32_t op_begun = -1;
  int32_t op_done = -1;
};

// What the device writes to, in host memory. Zero bytes are a valid start (no group is begun as long as pass is 0).
struct DeviceCheckPage {
  static constexpr int kRecords = 256;  // more are dropped: the first groups come first
  DeviceProgress progress;
  DeviceCheckRecord records[kRecords];
};

}  // namespace faultline
