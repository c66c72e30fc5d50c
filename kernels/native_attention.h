// torch_native: dense attention with PyTorch's own operations (SGLang, layers/attention/torch_native_backend.py).
//
// One request at a time the server gathers the rows of req_to_token[request, 0:length] with an index expression,
// converts them to the query's dtype and calls scaled_dot_product_attention: a softmax over whole rows, not an online
// one. Here one block takes 4 heads of one token and walks its keys twice in blocks of 32: for the maximum of the row,
// then for the sum. Its shared memory does not grow with the row, and fits in the 99 KiB of SM120.
//
// A gather with an index expression takes -n <= index < n of a pool of n rows, a negative one from the pool's end, and
// asserts on anything else: a device-side assert in PyTorch's words. The checked build records the entry of the page
// table instead, and leaves the key out; the host's unchecked build sets `*failed`. Operands: attention_tile.h.
#pragma once

#include "kernels/attention_tile.h"

namespace faultline::kernels {

inline constexpr int kNativeKeys = 32;
inline constexpr int kNativeHeads = 4;

#define FAULTLINE_INDEX_MESSAGE "-sizes[i] <= index && index < sizes[i] && \"index out of bounds\""

// Ends every kernel of the process with cudaErrorAssert; nothing on the host.
FAULTLINE_HD inline void device_assert_index() {
#ifdef __CUDA_ARCH__
  __assert_fail(FAULTLINE_INDEX_MESSAGE, __FILE__, __LINE__, "index_elementwise_kernel");
#endif
}

template <class T, bool kChecked>
struct NativeAttentionBody {
  AttentionOperands<T> operands;
  uint8_t* failed = nullptr;  // on the host
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto page_table = open<kChecked>(operands.page_table, log, block);
    const int64_t token = block.index(0);
    const int64_t length = open<kChecked>(operands.lengths, log, block).load(token);
    const int64_t row = open<kChecked>(operands.row_to_request, log, block).load(token) * operands.page_table_stride;
    AttentionTile<T, kNativeKeys, kNativeHeads, kChecked, Block> tile(block, operands, log, token,
                                                                      block.index(1) * kNativeHeads, kMinusInfinity);
    const int64_t slots = operands.layout.slots;
    const auto walk = [&](bool first_pass) {
      for (int64_t first = 0; first < length; first += kNativeKeys) {
        const int64_t count = length - first < kNativeKeys ? length - first : kNativeKeys;
        const auto slot_of = [&](int64_t j) -> int64_t {
          const int64_t slot = page_table.load(row + first + j);
          if (slot >= 0 && slot < slots) return slot;
          if (slot < 0 && slot >= -slots) return slot + slots;
          if (first_pass) {
            page_table.failed_assertion(row + first + j);
            if constexpr (!kChecked) device_assert_index();
            if (failed != nullptr) *failed = 1;
          }
          return kMaskedSlot;
        };
        if (first_pass)
          tile.raise_maximum(count, slot_of);
        else
          tile.absorb(count, slot_of);
      }
    };
    walk(true);
    walk(false);
    tile.finish(log);
  }
};

// True when an assertion failed, which is known on the host only.
template <class T, bool kChecked>
bool launch_native_attention(const LaunchContext& context, const AttentionOperands<T>& operands) {
  uint8_t failed = 0;
  const size_t shared_bytes =
      AttentionTile<T, kNativeKeys, kNativeHeads, kChecked, HostBlock>::shared_bytes(operands.layout);
  const Grid grid{operands.tokens, (operands.heads + kNativeHeads - 1) / kNativeHeads};
  launch(context, grid, kAttentionThreads, shared_bytes,
         NativeAttentionBody<T, kChecked>{operands, context.cuda ? nullptr : &failed, context.log});
  return failed != 0;
}

}  // namespace faultline::kernels
