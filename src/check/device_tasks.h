// What the check kernels are given: one task a (op, operand, kind of work), as plain data in device memory. Built by
// cuda_checks.cpp, run by cuda_checks.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/codec.h"

namespace faultline::device_checks {

inline constexpr int kThreads = 256;
inline constexpr int kVectorBytes = 16;
inline constexpr int kVectorsAThread = 4;  // loads in flight
inline constexpr int kChunkVectors = kThreads * kVectorsAThread;
inline constexpr int kChunkBytes = kChunkVectors * kVectorBytes;
inline constexpr int kSectorBytes = 32;            // what memory writes at once
inline constexpr int kPieceBytes = 1024;           // of a large tensor one sector in each is poisoned
inline constexpr int64_t kTailMargin = 128;        // columns or rows past the live ones that are poisoned as well
inline constexpr int kWindowBits = 128 * 1024;     // of the bitmaps of an index check: slots that are looked at at once
inline constexpr int kLargestPage = 2048;          // slots a page, for the bitmap of the slots written
inline constexpr int64_t kUnwrittenRow = 1 << 24;  // record index of an unwritten cache byte: position * this + byte
inline constexpr int kCanaryBytes = 64;            // Buffer::kCanaryBytes
inline constexpr double kProbabilitySumTolerance = 1e-3;  // as inspect.cpp
inline constexpr uint8_t kScaleSentinel = 0xFF;

// Why an index is bad (DeviceCheckRecord::extra[2]), in the order in which the host asks.
enum Cause : int64_t { kSound = 0, kTail, kRange, kTwice, kForeign };

enum class TaskKind : uint8_t {
  kMark,
  kFloats,
  kIntegers,
  kCodes,
  kProbabilities,
  kIndices,
  kSlots,
  kNeighbours,
  kCanaries
};

// What a block does with its part of a task. kBoth: checks it, then poisons the same bytes for the next group.
enum class Work : uint8_t { kCheck, kPoison, kBoth };

// How the elements of a tensor lie: one run; rows that are walked chunk by chunk; short pieces, many of which make a
// chunk (of whole vectors, or of elements where alignment forbids vectors).
enum class Walk : uint8_t { kFlat, kRows, kVectors, kElements };

enum class RowRule : uint8_t { kAll, kTokens, kRequests };
enum class SlotFormat : uint8_t { kF32, kBf16, kPacked, kPlainFp8, kIndexFp8 };

struct Integers {
  const int32_t* data = nullptr;
  int64_t count = 0;
  int64_t stride = 1;
};

struct alignas(kVectorBytes) Task {
  TaskKind kind = TaskKind::kMark;
  Work work = Work::kCheck;
  Walk walk = Walk::kFlat;
  RowRule rule = RowRule::kAll;
  uint8_t element_bytes = 1;
  bool look_for_poison = false;       // whether what still holds the poison is a violation
  bool flat = false;                  // indices of rank 1: one row as far as uniqueness goes
  bool tail = false, unique = false;  // IndexRule::minus_one_tail, unique
  bool by_words = false;              // kSlots: every piece of a slot is aligned words of 4 bytes
  bool resets = false;                // kMark: the pass's first group
  bool sparse = false;                // one sector of each piece is poisoned
  bool implied = false;               // sparse: only those sectors are looked at at first
  SlotFormat format = SlotFormat::kF32;
  int32_t op = 0;
  int32_t operand = 0;
  int32_t state = 0;        // where the records of this (op, operand) are kept account of
  int32_t first_block = 0;  // in task_of_block
  int32_t blocks = 1;

  // The tensor: rows x inner x columns, the columns contiguous. Strides count elements.
  std::byte* data = nullptr;
  int64_t rows = 0, inner = 1, columns = 1, row_stride = 0, inner_stride = 0;
  int64_t multiplier = 1;
  Integers sum;      // live rows = the sum of these
  Integers lengths;  // live columns of a row

  // kFloats: an element is not finite when ((bits & exponent) + one) & top is set; a word holds several elements.
  uint32_t exponent = 0, one = 0, top = 0;
  uint32_t sentinel = 0;  // of one element
  uint32_t pattern = 0;   // the same, repeated over a word

  // kIndices
  int64_t begin = 0, end = 0;
  Integers valid;  // count_lengths_operand
  Integers table;  // page table: `count` columns, `stride` between rows
  int64_t table_rows = 0;
  Integers row_to_request, owner_lengths;

  // kSlots, kNeighbours
  Integers slots;
  int64_t capacity = 0, page_size = 1, latent = 0, rope = 0, row_bytes = 0, stride_bytes = 0;
  uint64_t* sums = nullptr;  // one a listed slot and part of its page; kProbabilities: a RowSum a row
  int32_t split = 1;         // parts of a page; kProbabilities: of a row
  int32_t unit = 1;          // bytes that are looked at at once: 16, 4 or 1

  // kCanaries: pairs of addresses (before, after)
  const std::byte* const* canaries = nullptr;
  int64_t canary_count = 0;
};

struct Live {
  int64_t tokens = 0;
  int64_t requests = 0;
  uint64_t pass = 0;
};

// What the parts of a probability row have come to so far. Zero bytes are the start.
struct RowSum {
  double sum;
  uint32_t hit;    // an entry that is no probability
  uint32_t parts;  // that are done
};

// Which records a task has; zero bytes are the start.
struct TaskState {
  uint32_t lock;
  int32_t record[7];  // one a DeviceCheck: number + 1
};

// Zero bytes are the start.
struct Account {
  int32_t records;  // taken
  int32_t broken;   // INT32_MAX - the first broken group; 0: none
  int32_t suspect;  // the same of the first group in which a sample of an implied tensor was bad
};

// The page's device address and everything the kernels keep account in.
struct Context {
  const Task* tasks = nullptr;
  const uint32_t* task_of_block = nullptr;
  const Live* live = nullptr;
  TaskState* states = nullptr;
  Account* account = nullptr;
  void* records = nullptr;  // DeviceCheckRecord: the device's own copy, which is added to
  void* page = nullptr;     // DeviceCheckPage
};

// A slice of task_of_block, and which groups it is about.
struct Launch {
  int32_t first_block = 0;
  int32_t blocks = 0;
  int32_t group = 0;       // that is checked
  int32_t next = 0;        // that is poisoned
  bool if_broken = false;  // only where the group has broken, or is suspect
  bool dependent = false;  // may be brought in while the kernel before it still runs
};

// One launch each.
void launch_work(const Context& context, const Launch& launch, void* stream);
void launch_check_indices(const Context& context, const Launch& launch, void* stream);
void launch_set_live(Live* live, int64_t tokens, int64_t requests, uint64_t pass, void* stream);
void launch_mark(void* page, int32_t number, bool is_op, bool done, const Live* live, void* stream);
void clear(void* memory, size_t bytes, void* stream);
int multiprocessors();

}  // namespace faultline::device_checks
