// Where a worker is, in memory that the driver still has when the worker is gone.
//
// A mark costs a few relaxed stores and a clock read, so it may surround every launch. The worker is alone to write;
// the driver reads the heartbeat at any time, and the rest once the worker is dead. Nothing that stands in the page is
// trusted: a stray write of the code under test may have been there.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "check/device_record.h"

namespace faultline {

enum class WorkerPhase : int32_t { kStart, kLoad, kBuild, kCapture, kWarmUp, kPrefill, kDecode, kReplay, kFinish };
std::string_view worker_phase_name(WorkerPhase phase);  // "start", "load", …, "?" for anything else

// What was being done with the op that the page names.
enum class OpState : int32_t { kNone, kRunning, kChecking, kDone };

// Text in whole words, each stored at once: a reader may see an old and a new half, never a data race.
template <size_t kBytes>
class SharedText {
 public:
  static_assert(kBytes % sizeof(uint64_t) == 0);
  void set(std::string_view text);  // cut to kBytes
  // Up to the first NUL. Anything but printable ASCII becomes '?'.
  std::string get() const;

 private:
  std::array<std::atomic<uint64_t>, kBytes / sizeof(uint64_t)> words_{};
};

// One failed check of one tensor (check/ decides what is recorded).
struct CheckRecord {
  int64_t op_index = -1;
  std::string tensor;        // cut to 96 bytes in the page
  std::string kind;          // a verdict name, cut to 16
  int64_t count = 0;         // elements
  int64_t first_index = -1;  // flat
  uint32_t bits = 0;         // of the first element
  bool operator==(const CheckRecord&) const = default;
};

inline constexpr uint64_t kProgressMagic = 0x31'47'50'4C'54'4C'41'46;  // "FALTLPG1", little endian
inline constexpr uint32_t kProgressVersion = 2;
inline constexpr size_t kProgressRecords = 128;  // the newest are kept
inline constexpr size_t kOpNameBytes = 96;
inline constexpr size_t kKernelNameBytes = 64;
inline constexpr size_t kPhaseTextBytes = 64;
inline constexpr size_t kRecordKindBytes = 16;
inline constexpr size_t kPinnedAlignment = 4096;

struct ProgressRecordSlot {
  std::atomic<uint64_t> ticket{0};  // number of the record + 1 when whole, 0 while it is written
  std::atomic<int64_t> op_index{0};
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> first_index{0};
  std::atomic<uint32_t> bits{0};
  SharedText<kOpNameBytes> tensor;
  SharedText<kRecordKindBytes> kind;
};

struct ProgressPage {
  std::atomic<uint64_t> magic{0};
  std::atomic<uint32_t> version{0};
  std::atomic<int32_t> phase{0};
  std::atomic<uint64_t> heartbeat{0};    // grows with every mark
  std::atomic<int64_t> heartbeat_ns{0};  // CLOCK_MONOTONIC, the same in all processes
  std::atomic<uint64_t> changing{0};     // odd while the fields below are being replaced
  std::atomic<int64_t> probe{-1};        // index into the task's probes
  std::atomic<int64_t> step{-1};         // pass number within the phase
  std::atomic<int32_t> decode_pass{0};   // 1: that pass decodes, 0: it prefills
  std::atomic<int64_t> op_index{-1};     // within the pass
  std::atomic<int64_t> layer{-1};
  std::atomic<int32_t> op_state{0};
  SharedText<kPhaseTextBytes> phase_text;
  SharedText<kOpNameBytes> op_name;
  SharedText<kKernelNameBytes> kernel;
  std::atomic<uint64_t> records{0};  // ever made
  std::array<ProgressRecordSlot, kProgressRecords> ring;
  // Written by the GPU itself: where it is, and what its checks found. On pages of its own, which are pinned.
  alignas(kPinnedAlignment) DeviceCheckPage device;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "the page is shared between processes");

// Shared memory for one page, zero.
Result<UniqueFd> make_progress_memory();

// A mapping of such memory.
class ProgressMapping {
 public:
  static Result<ProgressMapping> map(int fd, bool writable);
  ProgressMapping(ProgressMapping&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
  ProgressMapping& operator=(ProgressMapping&&) = delete;
  ProgressMapping(const ProgressMapping&) = delete;
  ProgressMapping& operator=(const ProgressMapping&) = delete;
  ~ProgressMapping();
  ProgressPage& page() const { return *page_; }

 private:
  explicit ProgressMapping(ProgressPage* page) : page_(page) {}
  ProgressPage* page_;
};

// The worker's side.
class ProgressWriter {
 public:
  // Writes the magic: from here on the page counts.
  explicit ProgressWriter(ProgressMapping mapping);

  // Each of these is a heartbeat too. A phase begins without probe, step and op; a probe and a step without op.
  void phase(WorkerPhase phase, std::string_view text = {});
  void probe(int64_t index);
  void step(int64_t index, bool decode = false);
  void op(int64_t index, std::string_view name, std::string_view kernel, int64_t layer);  // about to be launched
  void op_state(OpState state);
  void heartbeat();
  void record(const CheckRecord& record);
  DeviceCheckPage& device_page() { return page_.device; }

 private:
  void clear_op();
  ProgressMapping mapping_;
  ProgressPage& page_;
};

// What the driver makes of a page.
struct ProgressSnapshot {
  bool started = false;  // a page of this version; else the rest means nothing
  bool torn = false;     // the worker died while replacing a mark: names may be halves of two
  WorkerPhase phase = WorkerPhase::kStart;
  std::string phase_text;
  uint64_t heartbeat = 0;
  int64_t heartbeat_ns = 0;
  int64_t probe = -1;
  int64_t step = -1;
  bool decode_pass = false;
  int64_t op_index = -1;
  int64_t layer = -1;
  OpState op_state = OpState::kNone;
  // A GPU's own mark: the group of ops (0: before the layers, l + 1: layer l, then the head) that it had begun and not
  // ended; -1: none.
  int32_t device_group = -1;
  std::string op;
  std::string kernel;
  uint64_t records_made = 0;
  std::vector<CheckRecord> records;  // oldest first; the last kProgressRecords of them, without a torn one

  // "in layers.3.self_attn.attention (kernel flashinfer), decode step 2, probe 4"
  std::string where() const;
};
ProgressSnapshot read_progress(const ProgressPage& page);

}  // namespace faultline
