// The contract checks of a pass, on the GPU: what screening does inside a CUDA graph.
//
// Between a group (a layer, the head, the sampler) and the next one there is one launch that checks the outputs of the
// first and poisons those of the second. Index tensors get a small launch right behind their op, before a consumer can
// die of them: ranges and tails; whether an entry stands twice or belongs to another request is asked with the group.
// All of it is put together once a pass (tables in device memory); the launches allocate nothing and wait for nothing,
// so they can be captured. Live counts, lengths, slots and page tables are read from device memory at run time.
//
// The semantics are those of the host's checks (poison.h, inspect.h), with these differences:
//   * Code bytes (FP4 codes, e4m3 codes of caches): one run over a pseudo-random poison that depends on address and
//     pass, instead of two runs over two constants. What is reported is an aligned 8-byte word that still holds its
//     poison (false alarm: 2^-64 a word); pieces shorter than such a word are left to conviction.
//   * e4m3 block scales are poisoned with 0xFF, a NaN that no conversion instruction makes.
//   * The float parts of packed rows and index pages (scales, rope) get the float sentinels.
//   * Of a tensor whose rows have lengths, the live columns and kTailMargin more are poisoned.
//   * Of large tensors (sparse_from_bytes) one sector of 32 bytes in each 1024 is poisoned, in every pass another one:
//     an unwritten tile, or row of 2 KiB, is found; of what is smaller, a part.
//   * A large tensor whose faults show in a later output of its group (sums and products of every element of it) is
//     looked at in those sectors only. Where they are sound and the later outputs are finite, so is the tensor; where
//     not, all of it is looked at before anything is poisoned.
//   * Once a group has broken, later groups of the pass are not looked at (the host stops there).
// Layout conflicts, scalar scales of the checkpoint and references are not this file's business.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "check/device_record.h"
#include "check/violation.h"
#include "device/device.h"

namespace faultline {

// A buffer whose canaries are watched.
struct GuardedBuffer {
  const std::byte* data = nullptr;  // an address of the device's
  size_t bytes = 0;
  std::string name;
};

struct DeviceCheckOptions {
  bool full = true;    // otherwise `checks: finite`: finite values and probability rows only
  bool poison = true;  // sentinels are laid and looked for
  // Tensors of at least so many bytes are poisoned in samples, and the count of what is unwritten is of those.
  int64_t sparse_from_bytes = 16 << 20;
  // Where records and marks go: host memory and its address on the device. Null: memory of its own.
  DeviceCheckPage* page = nullptr;
  std::byte* page_on_device = nullptr;
};

struct DeviceFinding {
  int op = 0;  // of a canary: the first op of the group after which it was broken
  OpViolation violation;
  std::string buffer;  // of a canary
};

class DeviceChecks {
 public:
  // `groups`: one an op, ascending. The ops' tensors are device memory and outlive the checks; `ops` must too. Errors:
  // out of memory on the device; a tensor that no check can read (a list of lengths that is not I32).
  static Result<std::unique_ptr<DeviceChecks>> create(Device& device, const std::vector<Op>& ops,
                                                      const std::vector<int>& groups,
                                                      const std::vector<GuardedBuffer>& buffers,
                                                      const DeviceCheckOptions& options);
  ~DeviceChecks();
  DeviceChecks(const DeviceChecks&) = delete;
  DeviceChecks& operator=(const DeviceChecks&) = delete;

  // Begins a pass: how many rows are real. Not to be captured (a graph reads what this wrote).
  void set_live(const LiveCounts& live);

  // Each enqueues its launches, or none where there is nothing to do. poison() marks the group as begun, and comes
  // first in a pass; check() of the last group marks it as done.
  void poison(int group);
  void check(int group);
  // check() of a group and poison() of the one that follows it: one launch, where no block would poison what another
  // one still reads.
  void check_and_poison(int group, int next);
  // Ranges and tails of the index outputs of ops [begin, end), in one launch; right behind the op.
  void check_indices(int op) { check_indices(op, op + 1); }
  void check_indices(int begin, int end);
  bool has_indices(int op) const;

  // Progress marks of their own: the group alone (as poison() and check() make them), or one op, when convicting.
  void mark_group(int group, bool done);
  void mark_op(int op, bool done);

  // After a synchronisation, or a fault: what broke in the first broken group, in op order, then forgets it. Of one op
  // what the host's checks report: bad indices and neighbours of every operand, or else the first broken operand.
  std::vector<DeviceFinding> read();

  const DeviceCheckPage& page() const;

 private:
  struct Parts;
  explicit DeviceChecks(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// The findings of a page in words (what read() returns, without forgetting). Needs no device.
std::vector<DeviceFinding> findings_of(const DeviceCheckPage& page, const std::vector<Op>& ops,
                                       const std::vector<GuardedBuffer>& buffers);

}  // namespace faultline
