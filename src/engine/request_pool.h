// Which slots of the paged caches belong to which request. Pages are handed out in a shuffled, seeded order, so that a
// slot number says nothing about a position, or those with the highest numbers first, where an offset computed in 32
// bits overflows. Page 0 is never handed out: padded rows write to slot 0.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/tensor.h"
#include "engine/pass.h"

namespace faultline {

enum class SlotPlacement : uint8_t { kShuffled, kHigh };

class RequestPool {
 public:
  // `req_to_token` is [max_requests, max_context] I32, owned by the caller.
  RequestPool(const PoolShape& shape, TensorView req_to_token, uint64_t seed,
              SlotPlacement placement = SlotPlacement::kShuffled);

  // Errors: no row, or not enough pages (how many tokens the pool holds and how many were asked for).
  Result<int64_t> admit();
  Status grow(int64_t request, int64_t new_length);  // slots for positions [length, new_length)
  void release(int64_t request);

  int64_t length(int64_t request) const { return lengths_[static_cast<size_t>(request)]; }
  int64_t slot(int64_t request, int64_t position) const;

 private:
  PoolShape shape_;
  TensorView req_to_token_;
  SlotPlacement placement_;
  std::vector<int64_t> free_pages_;
  std::vector<int64_t> lengths_;  // -1: the row is free
  std::vector<std::vector<int64_t>> pages_;
};

}  // namespace faultline
