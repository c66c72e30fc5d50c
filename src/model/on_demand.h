// Weights that are made when they are used. Every tensor has its place in address space for good, so that a view of it
// never changes; memory lies behind a place only while it is wanted, in frames of 2 MiB that are taken from the place
// that was used longest ago. A frame moves with its pages (mremap), so that a place that is filled again and again
// costs no page faults.
//
// A place without memory cannot be read: whoever forgets to ask for a tensor ends in a segmentation fault, not in
// zeros. need_weights() is how to ask, whatever the weights are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/error.h"

namespace faultline {

struct WeightRange {
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
};

// Puts bytes behind these ranges where they lie in the places of any OnDemandWeights of this process; nothing to do for
// the others. They stay until the next call, and after it as long as there is room. Cannot-run when they need more than
// the budget.
Status need_weights(std::span<const WeightRange> ranges);
bool any_weights_on_demand();  // false: need_weights has nothing to do

class OnDemandWeights {
 public:
  static constexpr uint64_t kFrame = uint64_t{2} << 20;  // a huge page of x86-64 and, most often, of aarch64
  // Tensors smaller than this always have memory: scales of whole tensors, norms, biases. Together a few MB.
  static constexpr uint64_t kSmall = uint64_t{64} << 10;

  // Writes bytes [first, first + out.size()) of a tensor; `first` is a multiple of kFrame. Called from several threads.
  using Make = std::function<void(size_t tensor, uint64_t first, std::span<std::byte> out)>;

  struct Statistics {
    uint64_t made_bytes = 0;      // in all
    uint64_t resident_bytes = 0;  // frames, and what is always there
    double seconds = 0;           // spent in need()
  };

  enum class Keep : uint8_t {
    kWhatFits,  // what was made stays as long as the budget allows
    kLatest,    // memory grows only as far as one call needs it: where a pass reads more than the budget anyway, all of
                // it would be gone before it is read again, and memory that was never touched is slow
  };
  // Reserves the places and makes the small tensors. `budget`: bytes of memory for frames. Cannot-run when the system
  // refuses the address space.
  static Result<std::unique_ptr<OnDemandWeights>> create(const std::vector<uint64_t>& tensor_bytes, Make make,
                                                         uint64_t budget, Keep keep = Keep::kWhatFits);
  ~OnDemandWeights();

  std::byte* place(size_t tensor) const { return places_[tensor]; }

  Status need(std::span<const WeightRange> ranges);  // as need_weights; ranges elsewhere are skipped

  Statistics statistics() const;
  uint64_t budget() const { return budget_frames_ * kFrame; }

 private:
  OnDemandWeights() = default;
  struct Slot {
    uint32_t frame = 0;
    uint64_t used = 0;  // the call that wanted it last
    uint32_t newer = 0, older = 0;
  };
  struct FrameOf {
    uint32_t tensor = 0;
    uint32_t first = 0;  // frame of the tensor
  };
  void touch(uint32_t slot);
  void unlink(uint32_t slot);
  void link_newest(uint32_t slot);
  Status take(uint32_t frame);
  std::byte* frame_at(uint64_t frame) const { return frames_begin_ + frame * kFrame; }

  Make make_;
  std::byte* reserved_ = nullptr;
  uint64_t reserved_bytes_ = 0;
  std::byte* frames_begin_ = nullptr;
  std::vector<std::byte> small_;
  std::vector<std::byte*> places_;
  std::vector<uint64_t> tensor_bytes_;
  std::vector<FrameOf> frame_of_;
  std::vector<uint32_t> slot_of_;  // by frame; kNoSlot: no memory

  mutable std::mutex mutex_;
  uint64_t budget_frames_ = 0;
  Keep keep_ = Keep::kWhatFits;
  uint64_t most_frames_ = 0;  // that may be taken now
  std::vector<Slot> slots_;   // slots_[0] is the ring's anchor: its `older` is the newest, its `newer` the oldest
  uint64_t call_ = 0;
  Statistics statistics_;
};

}  // namespace faultline
