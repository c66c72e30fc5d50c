#include "engine/request_pool.h"

#include <algorithm>
#include <numeric>

#include "base/rng.h"

namespace faultline {

RequestPool::RequestPool(const PoolShape& shape, TensorView req_to_token, uint64_t seed, SlotPlacement placement)
    : shape_(shape),
      req_to_token_(req_to_token),
      placement_(placement),
      free_pages_(static_cast<size_t>(shape.slots / shape.page_size - 1)),
      lengths_(static_cast<size_t>(shape.max_requests), -1),
      pages_(static_cast<size_t>(shape.max_requests)) {
  std::iota(free_pages_.begin(), free_pages_.end(), 1);
  if (placement_ == SlotPlacement::kHigh) return;  // taken from the back
  const CounterRng rng(seed, "pages");
  for (size_t i = free_pages_.size(); i > 1; --i)
    std::swap(free_pages_[i - 1], free_pages_[rng.below(i, static_cast<uint32_t>(i))]);
}

Result<int64_t> RequestPool::admit() {
  for (size_t i = 0; i < lengths_.size(); ++i)
    if (lengths_[i] < 0) {
      lengths_[i] = 0;
      return static_cast<int64_t>(i);
    }
  return bad_input("more than {} requests at once: lower the probe's batch", shape_.max_requests);
}

Status RequestPool::grow(int64_t request, int64_t new_length) {
  const auto row = static_cast<size_t>(request);
  FAULTLINE_CHECK(lengths_[row] >= 0 && new_length >= lengths_[row]);
  if (new_length > shape_.max_context)
    return bad_input("a request of {} tokens is longer than the context of {} that the probes were sized for",
                     new_length, shape_.max_context);
  const int64_t pages = (new_length + shape_.page_size - 1) / shape_.page_size;
  while (static_cast<int64_t>(pages_[row].size()) < pages) {
    if (free_pages_.empty()) return bad_input("the cache pool of {} tokens is full", shape_.slots);
    pages_[row].push_back(free_pages_.back());
    free_pages_.pop_back();
  }
  for (int64_t position = lengths_[row]; position < new_length; ++position)
    req_to_token_.store_index(req_to_token_.offset(request, position), slot(request, position));
  lengths_[row] = new_length;
  return {};
}

int64_t RequestPool::slot(int64_t request, int64_t position) const {
  const auto& pages = pages_[static_cast<size_t>(request)];
  return pages[static_cast<size_t>(position / shape_.page_size)] * shape_.page_size + position % shape_.page_size;
}

// The row of req_to_token keeps its values: padded graph rows read them (stale, but in the pool's range).
void RequestPool::release(int64_t request) {
  const auto row = static_cast<size_t>(request);
  for (const int64_t page : pages_[row]) free_pages_.push_back(page);
  if (placement_ == SlotPlacement::kHigh) std::sort(free_pages_.begin(), free_pages_.end());
  pages_[row].clear();
  lengths_[row] = -1;
}

}  // namespace faultline
