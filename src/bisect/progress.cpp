#include "bisect/progress.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/clock.h"

namespace faultline {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// The fields between `changing` and the ring change under this; a reader that sees an odd number, or another one after
// reading, has seen a mixture.
class Change {
 public:
  explicit Change(ProgressPage& page) : page_(page) {
    page_.changing.fetch_add(1, kRelaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~Change() {
    page_.changing.fetch_add(1, std::memory_order_release);
    page_.heartbeat_ns.store(monotonic_ns(), kRelaxed);
    page_.heartbeat.fetch_add(1, std::memory_order_release);
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  ProgressPage& page_;
};

}  // namespace

std::string_view worker_phase_name(WorkerPhase phase) {
  switch (phase) {
    case WorkerPhase::kStart:
      return "start";
    case WorkerPhase::kLoad:
      return "load";
    case WorkerPhase::kBuild:
      return "build";
    case WorkerPhase::kCapture:
      return "capture";
    case WorkerPhase::kWarmUp:
      return "warm-up";
    case WorkerPhase::kPrefill:
      return "prefill";
    case WorkerPhase::kDecode:
      return "decode";
    case WorkerPhase::kReplay:
      return "replay";
    case WorkerPhase::kFinish:
      return "finish";
  }
  return "?";
}

template <size_t kBytes>
void SharedText<kBytes>::set(std::string_view text) {
  for (size_t i = 0; i < words_.size(); ++i) {
    const size_t at = i * sizeof(uint64_t);
    uint64_t word = 0;
    if (at < text.size()) std::memcpy(&word, text.data() + at, std::min(sizeof word, text.size() - at));
    words_[i].store(word, kRelaxed);
    if (at + sizeof word > text.size()) return;  // this word ends in a NUL
  }
}

template <size_t kBytes>
std::string SharedText<kBytes>::get() const {
  char bytes[kBytes];
  for (size_t i = 0; i < words_.size(); ++i) {
    const uint64_t word = words_[i].load(kRelaxed);
    std::memcpy(bytes + i * sizeof word, &word, sizeof word);
  }
  std::string text(bytes, ::strnlen(bytes, kBytes));
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

Result<UniqueFd> make_progress_memory() {
  return make_shared_memory("faultline-progress", sizeof(ProgressPage));
}

Result<ProgressMapping> ProgressMapping::map(int fd, bool writable) {
  void* memory =
      ::mmap(nullptr, sizeof(ProgressPage), writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return internal_error("mapping the progress page: {}", errno_text(errno));
  return ProgressMapping(static_cast<ProgressPage*>(memory));
}

ProgressMapping::~ProgressMapping() {
  if (page_ != nullptr) ::munmap(page_, sizeof(ProgressPage));
}

ProgressWriter::ProgressWriter(ProgressMapping mapping) : mapping_(std::move(mapping)), page_(mapping_.page()) {
  new (&page_) ProgressPage;
  page_.version.store(kProgressVersion, kRelaxed);
  page_.magic.store(kProgressMagic, std::memory_order_release);
  heartbeat();
}

void ProgressWriter::clear_op() {
  page_.op_index.store(-1, kRelaxed);
  page_.layer.store(-1, kRelaxed);
  page_.op_state.store(static_cast<int32_t>(OpState::kNone), kRelaxed);
}

void ProgressWriter::phase(WorkerPhase phase, std::string_view text) {
  const Change change(page_);
  page_.phase.store(static_cast<int32_t>(phase), kRelaxed);
  page_.phase_text.set(text);
  page_.probe.store(-1, kRelaxed);
  page_.step.store(-1, kRelaxed);
  clear_op();
}

void ProgressWriter::probe(int64_t index) {
  const Change change(page_);
  page_.probe.store(index, kRelaxed);
  page_.step.store(-1, kRelaxed);
  clear_op();
}

void ProgressWriter::step(int64_t index, bool decode) {
  const Change change(page_);
  page_.step.store(index, kRelaxed);
  page_.decode_pass.store(decode ? 1 : 0, kRelaxed);
  clear_op();
}

void ProgressWriter::op(int64_t index, std::string_view name, std::string_view kernel, int64_t layer) {
  const Change change(page_);
  page_.op_index.store(index, kRelaxed);
  page_.op_name.set(name);
  page_.kernel.set(kernel);
  page_.layer.store(layer, kRelaxed);
  page_.op_state.store(static_cast<int32_t>(OpState::kRunning), kRelaxed);
}

void ProgressWriter::op_state(OpState state) {
  page_.op_state.store(static_cast<int32_t>(state), kRelaxed);
  heartbeat();
}

void ProgressWriter::heartbeat() {
  page_.heartbeat_ns.store(monotonic_ns(), kRelaxed);
  page_.heartbeat.fetch_add(1, std::memory_order_release);
}

void ProgressWriter::record(const CheckRecord& record) {
  const uint64_t number = page_.records.load(kRelaxed);
  ProgressRecordSlot& slot = page_.ring[number % kProgressRecords];
  slot.ticket.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.op_index.store(record.op_index, kRelaxed);
  slot.tensor.set(record.tensor);
  slot.kind.set(record.kind);
  slot.count.store(record.count, kRelaxed);
  slot.first_index.store(record.first_index, kRelaxed);
  slot.bits.store(record.bits, kRelaxed);
  slot.ticket.store(number + 1, std::memory_order_release);
  page_.records.store(number + 1, std::memory_order_release);
  heartbeat();
}

std::string ProgressSnapshot::where() const {
  if (!started) return "before it began";
  std::string text;
  switch (op_state) {
    case OpState::kNone:
      text = fmt::format("in phase {}", worker_phase_name(phase));
      break;
    case OpState::kRunning:
      text = fmt::format("in {} (kernel {}), {}", op, kernel, worker_phase_name(phase));
      break;
    case OpState::kChecking:
      text = fmt::format("while checking {} (kernel {}), {}", op, kernel, worker_phase_name(phase));
      break;
    case OpState::kDone:
      text = fmt::format("after {} (kernel {}), {}", op, kernel, worker_phase_name(phase));
      break;
  }
  if (step >= 0) text += fmt::format(" step {}", step);
  if (probe >= 0) text += fmt::format(", probe {}", probe);
  if (!phase_text.empty()) text += fmt::format(", {}", phase_text);
  if (device_group == 0) text += "; the GPU was before the first layer";
  if (device_group > 0) text += fmt::format("; the GPU was in layer {} (or behind the last)", device_group - 1);
  return text;
}

ProgressSnapshot read_progress(const ProgressPage& page) {
  ProgressSnapshot result;
  if (page.magic.load(std::memory_order_acquire) != kProgressMagic || page.version.load(kRelaxed) != kProgressVersion)
    return result;
  result.started = true;
  result.heartbeat = page.heartbeat.load(std::memory_order_acquire);
  result.heartbeat_ns = page.heartbeat_ns.load(kRelaxed);

  const uint64_t before = page.changing.load(std::memory_order_acquire);
  result.phase = static_cast<WorkerPhase>(page.phase.load(kRelaxed));
  result.phase_text = page.phase_text.get();
  result.probe = page.probe.load(kRelaxed);
  result.step = page.step.load(kRelaxed);
  result.decode_pass = page.decode_pass.load(kRelaxed) != 0;
  result.op_index = page.op_index.load(kRelaxed);
  result.layer = page.layer.load(kRelaxed);
  result.op = page.op_name.get();
  result.kernel = page.kernel.get();
  const int32_t state = page.op_state.load(kRelaxed);
  const bool known = state >= 0 && state <= static_cast<int32_t>(OpState::kDone);
  result.op_state = known ? static_cast<OpState>(state) : OpState::kNone;
  std::atomic_thread_fence(std::memory_order_acquire);
  result.torn = !known || before % 2 != 0 || page.changing.load(kRelaxed) != before;
  if (result.op_state == OpState::kNone) {
    result.op.clear();
    result.kernel.clear();
  }

  // Plain memory that another processor wrote: a copy, taken for what it is.
  const DeviceProgress device = page.device.progress;
  if (device.pass > 0 && device.group_begun >= 0 && device.group_begun != device.group_done)
    result.device_group = device.group_begun;

  result.records_made = page.records.load(std::memory_order_acquire);
  const uint64_t kept = std::min<uint64_t>(result.records_made, kProgressRecords);
  for (uint64_t number = result.records_made - kept; number < result.records_made; ++number) {
    const ProgressRecordSlot& slot = page.ring[number % kProgressRecords];
    if (slot.ticket.load(std::memory_order_acquire) != number + 1) continue;
    CheckRecord record;
    record.op_index = slot.op_index.load(kRelaxed);
    record.tensor = slot.tensor.get();
    record.kind = slot.kind.get();
    record.count = slot.count.load(kRelaxed);
    record.first_index = slot.first_index.load(kRelaxed);
    record.bits = slot.bits.load(kRelaxed);
    result.records.push_back(std::move(record));
  }
  return result;
}

}  // namespace faultline
