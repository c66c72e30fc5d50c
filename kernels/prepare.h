// What each token row of a pass is, from what the scheduler knows of its requests.
//
// One block a request; thread t takes its tokens and its keys t, t + threads, …
// All int32: req_to_token [P, C'], req_pool [R], seq_lens [R], cu_seqlens_q [R+1] | positions, row_to_request, lengths,
// ragged_offsets [T], page_table [R, C], flat_slots [R*C]; live [1]. Only columns c < seq_lens[r] of the page table are
// written, and only positions of the first `live` requests: the server copies those of a batch into a graph's buffer
// and leaves what padding finds there (sglang 93109cc model_executor/cuda_graph_runner.py:256-356).
#pragma once

#include "kernels/operand.h"

namespace faultline::kernels {

inline constexpr int kPrepareThreads = 64;
inline constexpr int kPrepareCudaThreads = 1024;  // a GPU needs more of a page table in flight

template <bool kChecked>
struct PrepareBody {
  Operand<int32_t> req_to_token;
  Operand<int32_t> req_pool;
  Operand<int32_t> seq_lens;
  Operand<int32_t> cu_seqlens_q;
  Operand<int32_t> positions;
  Operand<int32_t> row_to_request;
  Operand<int32_t> lengths;
  Operand<int32_t> page_table;
  Operand<int32_t> ragged_offsets;
  Operand<int32_t> flat_slots;
  Operand<int32_t> live;
  int64_t req_to_token_stride = 0;
  int64_t page_table_stride = 0;
  int64_t columns = 0;  // of the page table
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto slots = open<kChecked>(req_to_token, log, block);
    const auto pool = open<kChecked>(req_pool, log, block);
    const auto lens = open<kChecked>(seq_lens, log, block);
    const auto starts = open<kChecked>(cu_seqlens_q, log, block);
    const auto position_out = open<kChecked>(positions, log, block);
    const auto request_out = open<kChecked>(row_to_request, log, block);
    const auto length_out = open<kChecked>(lengths, log, block);
    const auto table_out = open<kChecked>(page_table, log, block);
    const auto offset_out = open<kChecked>(ragged_offsets, log, block);
    const auto flat_out = open<kChecked>(flat_slots, log, block);
    const int32_t live_count = open<kChecked>(live, log, block).load(0);
    const auto request = static_cast<int32_t>(block.index(0));

    int32_t* before = block.template shared<int32_t>(1);  // keys of the requests before this one
    block.for_each_thread([&](int t) {
      if (t != 0) return;
      int32_t sum = 0;
      for (int32_t r = 0; r < request; ++r) sum += lens.load(r);
      *before = sum;
    });
    block.for_each_thread([&](int t) {
      const int32_t seq_len = lens.load(request);
      const int32_t begin = starts.load(request);
      const int32_t query_len = starts.load(request + 1) - begin;
      for (int32_t i = t; i < query_len; i += block.threads()) {
        const int32_t position = seq_len - query_len + i;
        if (request < live_count) position_out.store(begin + i, position);
        request_out.store(begin + i, request);
        length_out.store(begin + i, position + 1);
        offset_out.store(begin + i, *before);
      }
      const int64_t row = pool.load(request);
      const int64_t keys = seq_len < columns ? seq_len : columns;
      for (int64_t c = t; c < keys; c += block.threads()) {
        const int32_t slot = slots.load(row * req_to_token_stride + c);
        table_out.store(request * page_table_stride + c, slot);
        flat_out.store(*before + c, slot);
      }
    });
  }
};

template <bool kChecked>
void launch_prepare(const LaunchContext& context, int64_t requests, const PrepareBody<kChecked>& body) {
  launch(context, Grid{requests}, context.cuda ? kPrepareCudaThreads : kPrepareThreads, sizeof(int32_t), body);
}

}  // namespace faultline::kernels
