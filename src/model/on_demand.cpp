#include "model/on_demand.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/parallel.h"
#include "base/text.h"

namespace faultline {
namespace {

constexpr uint32_t kNoSlot = 0;  // slot 0 is the anchor
constexpr uint64_t kSmallAlignment = 64;

uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// All there are in this process.
struct Registry {
  std::mutex mutex;
  std::vector<OnDemandWeights*> all;
};
Registry& registry() {
  static Registry instance;
  return instance;
}

tl::unexpected<Error> no_mapping(int error) {
  return cannot_run(
      "no memory could be put behind a weight: {}; lower --host-memory, or raise the system's vm.max_map_count",
      std::strerror(error));
}

}  // namespace

bool any_weights_on_demand() {
  Registry& known = registry();
  const std::lock_guard<std::mutex> lock(known.mutex);
  return !known.all.empty();
}

Status need_weights(std::span<const WeightRange> ranges) {
  Registry& known = registry();
  const std::lock_guard<std::mutex> lock(known.mutex);
  for (OnDemandWeights* weights : known.all) FAULTLINE_TRY_STATUS(weights->need(ranges));
  return {};
}

Result<std::unique_ptr<OnDemandWeights>> OnDemandWeights::create(const std::vector<uint64_t>& tensor_bytes, Make make,
                                                                 uint64_t budget, Keep keep) {
  std::unique_ptr<OnDemandWeights> weights(new OnDemandWeights);
  OnDemandWeights& w = *weights;
  w.make_ = std::move(make);
  w.tensor_bytes_ = tensor_bytes;
  w.budget_frames_ = std::max<uint64_t>(1, budget / kFrame);
  w.keep_ = keep;
  w.most_frames_ = keep == Keep::kWhatFits ? w.budget_frames_ : 0;
  uint64_t small = 0;
  for (size_t t = 0; t < tensor_bytes.size(); ++t) {
    if (tensor_bytes[t] < kSmall) {
      small += round_up(tensor_bytes[t], kSmallAlignment);
      continue;
    }
    const uint64_t frames = round_up(tensor_bytes[t], kFrame) / kFrame;
    for (uint64_t i = 0; i < frames; ++i) w.frame_of_.push_back({static_cast<uint32_t>(t), static_cast<uint32_t>(i)});
  }
  w.slot_of_.assign(w.frame_of_.size(), kNoSlot);
  w.slots_.resize(1);
  w.reserved_bytes_ = (w.frame_of_.size() + 1) * kFrame;
  void* reserved = mmap(nullptr, w.reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED)
    return cannot_run("no address space for {} of weights: {} (see `ulimit -v`)", bytes_text(w.reserved_bytes_),
                      std::strerror(errno));
  w.reserved_ = static_cast<std::byte*>(reserved);
  w.frames_begin_ =
      w.reserved_ + (round_up(reinterpret_cast<uintptr_t>(reserved), kFrame) - reinterpret_cast<uintptr_t>(reserved));

  w.small_.resize(small + kSmallAlignment);
  auto* small_at = w.small_.data();
  small_at += round_up(reinterpret_cast<uintptr_t>(small_at), kSmallAlignment) - reinterpret_cast<uintptr_t>(small_at);
  std::byte* frame_at = w.frames_begin_;
  w.places_.reserve(tensor_bytes.size());
  for (const uint64_t bytes : tensor_bytes) {
    std::byte*& at = bytes < kSmall ? small_at : frame_at;
    w.places_.push_back(at);
    at += round_up(bytes, bytes < kSmall ? kSmallAlignment : kFrame);
  }
  parallel_for(static_cast<int64_t>(tensor_bytes.size()), [&](int64_t i) {
    const auto t = static_cast<size_t>(i);
    if (tensor_bytes[t] < kSmall) w.make_(t, 0, {w.places_[t], tensor_bytes[t]});
  });
  Registry& known = registry();
  const std::lock_guard<std::mutex> lock(known.mutex);
  known.all.push_back(weights.get());
  return weights;
}

OnDemandWeights::~OnDemandWeights() {
  {
    Registry& known = registry();
    const std::lock_guard<std::mutex> lock(known.mutex);
    std::erase(known.all, this);
  }
  if (reserved_ != nullptr) munmap(reserved_, reserved_bytes_);
}

void OnDemandWeights::unlink(uint32_t slot) {
  slots_[slots_[slot].newer].older = slots_[slot].older;
  slots_[slots_[slot].older].newer = slots_[slot].newer;
}

void OnDemandWeights::link_newest(uint32_t slot) {
  const uint32_t newest = slots_[0].older;
  slots_[slot].newer = 0;
  slots_[slot].older = newest;
  slots_[newest].newer = slot;
  slots_[0].older = slot;
}

void OnDemandWeights::touch(uint32_t slot) {
  slots_[slot].used = call_;
  unlink(slot);
  link_newest(slot);
}

// Puts memory, with whatever lies in it, behind a frame that has none.
Status OnDemandWeights::take(uint32_t frame) {
  std::byte* const to = frame_at(frame);
  uint32_t slot = kNoSlot;
  if (slots_.size() - 1 < most_frames_) {
    if (mprotect(to, kFrame, PROT_READ | PROT_WRITE) != 0) return no_mapping(errno);
    madvise(to, kFrame, MADV_HUGEPAGE);  // where the system has none, smaller pages do
    slot = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    slot = slots_[0].newer;
    const Slot& oldest = slots_[slot];
    FAULTLINE_CHECK(oldest.used != call_);  // need() has counted
    std::byte* const from = frame_at(oldest.frame);
    // The old place keeps its addresses (DONTUNMAP), so that nobody else is given them. It is mapped anew, as it was at
    // the start: one that is only closed would stay a mapping of its own for good, and a process may have some 65530.
    if (mremap(from, kFrame, kFrame, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) == MAP_FAILED ||
        mmap(from, kFrame, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
      return no_mapping(errno);
    slot_of_[oldest.frame] = kNoSlot;
    unlink(slot);
  }
  slots_[slot].frame = frame;
  slots_[slot].used = call_;
  link_newest(slot);
  slot_of_[frame] = slot;
  return {};
}

Status OnDemandWeights::need(std::span<const WeightRange> ranges) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto start = std::chrono::steady_clock::now();
  ++call_;
  std::vector<uint32_t> missing;
  uint64_t present = 0;
  const auto visit = [&](uint64_t frame) {
    const uint32_t slot = slot_of_[frame];
    if (slot == kNoSlot) {
      missing.push_back(static_cast<uint32_t>(frame));
    } else if (slots_[slot].used != call_) {
      ++present;
      touch(slot);
    }
  };
  const auto begin = reinterpret_cast<uintptr_t>(frames_begin_);
  const uintptr_t end = begin + frame_of_.size() * kFrame;
  for (const WeightRange& range : ranges) {
    const auto at = reinterpret_cast<uintptr_t>(range.data);
    if (range.bytes == 0 || at < begin || at >= end) continue;
    const uint64_t last = std::min<uint64_t>((at + range.bytes - 1 - begin) / kFrame, frame_of_.size() - 1);
    for (uint64_t frame = (at - begin) / kFrame; frame <= last; ++frame) visit(frame);
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  if (present + missing.size() > budget_frames_)
    return cannot_run(
        "one op's weights need {}, more than the {} of memory that weights made on use may take; raise --host-memory",
        bytes_text((present + missing.size()) * kFrame), bytes_text(budget()));
  most_frames_ = std::max<uint64_t>(most_frames_, present + missing.size());
  for (const uint32_t frame : missing) FAULTLINE_TRY_STATUS(take(frame));
  parallel_for(static_cast<int64_t>(missing.size()), [&](int64_t i) {
    const uint32_t frame = missing[static_cast<size_t>(i)];
    const auto [tensor, first] = frame_of_[frame];
    const uint64_t done = first * kFrame;
    make_(tensor, done, {frame_at(frame), std::min(kFrame, tensor_bytes_[tensor] - done)});
  });
  for (const uint32_t frame : missing)
    statistics_.made_bytes +=
        std::min(kFrame, tensor_bytes_[frame_of_[frame].tensor] - frame_of_[frame].first * kFrame);
  statistics_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {};
}

OnDemandWeights::Statistics OnDemandWeights::statistics() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Statistics result = statistics_;
  result.resident_bytes = (slots_.size() - 1) * kFrame + small_.size();
  return result;
}

}  // namespace faultline
