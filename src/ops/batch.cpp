// prepare: what each token row of a pass is.
#include <algorithm>

#include "kernels/prepare.h"
#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using ops::Prepare;

void model(const OpCall& call) {
  const TensorView& req_to_token = call.view(Prepare::kReqToToken);
  const TensorView& page_table = call.view(Prepare::kPageTable);
  const TensorView& flat_slots = call.view(Prepare::kFlatSlots);
  const TensorView& seq_lens = call.view(Prepare::kSeqLens);
  const TensorView& starts = call.view(Prepare::kCuSeqlensQ);
  const int64_t requests = seq_lens.dim(0);
  const int64_t columns = std::min(page_table.dim(1), req_to_token.dim(1));
  const int64_t live = call.view(Prepare::kLive).load_index(0);
  int64_t before = 0;  // keys of the requests so far
  for (int64_t r = 0; r < requests; ++r) {
    const int64_t seq_len = seq_lens.load_index(r);
    const int64_t begin = starts.load_index(r);
    const int64_t query_len = starts.load_index(r + 1) - begin;
    for (int64_t i = 0; i < query_len; ++i) {
      const int64_t position = seq_len - query_len + i;
      if (r < live) call.view(Prepare::kPositions).store_index(begin + i, position);
      call.view(Prepare::kRowToRequest).store_index(begin + i, r);
      call.view(Prepare::kLengths).store_index(begin + i, position + 1);
      call.view(Prepare::kRaggedOffsets).store_index(begin + i, before);
    }
    const int64_t row = call.view(Prepare::kReqPool).load_index(r);
    for (int64_t c = 0; c < std::min(seq_len, columns); ++c) {
      const int64_t slot = req_to_token.load_index(req_to_token.offset(row, c));
      page_table.store_index(page_table.offset(r, c), slot);
      flat_slots.store_index(before + c, slot);
    }
    before += seq_len;
  }
}

template <bool kChecked>
void launch(const OpCall& call) {
  const auto operand = [&call](int at) { return kernel_operand<int32_t>(call, at); };
  kernels::launch_prepare(
      call.launch, call.view(Prepare::kSeqLens).dim(0),
      kernels::PrepareBody<kChecked>{
          .req_to_token = operand(Prepare::kReqToToken),
          .req_pool = operand(Prepare::kReqPool),
          .seq_lens = operand(Prepare::kSeqLens),
          .cu_seqlens_q = operand(Prepare::kCuSeqlensQ),
          .positions = operand(Prepare::kPositions),
          .row_to_request = operand(Prepare::kRowToRequest),
          .lengths = operand(Prepare::kLengths),
          .page_table = operand(Prepare::kPageTable),
          .ragged_offsets = operand(Prepare::kRaggedOffsets),
          .flat_slots = operand(Prepare::kFlatSlots),
          .live = operand(Prepare::kLive),
          .req_to_token_stride = call.view(Prepare::kReqToToken).stride[0],
          .page_table_stride = call.view(Prepare::kPageTable).stride[0],
          .columns = std::min(call.view(Prepare::kPageTable).dim(1), call.view(Prepare::kReqToToken).dim(1)),
          .log = call.launch.log});
}

KernelResult run(const OpCall& call) {
  if (call.checked)
    launch<true>(call);
  else
    launch<false>(call);
  return std::nullopt;
}

OpKind kind() {
  Region filled = kRequestRows;
  filled.lengths_operand = Prepare::kSeqLens;
  Region gathered = kAllRows;
  gathered.sum_operand = Prepare::kSeqLens;
  // Ends filled in by the engine: positions C, row_to_request R, lengths C + 1, slots those of the pool, offsets R * C.
  const IndexRule length{.begin = 1};
  const IndexRule slot{.page_table_operand = Prepare::kReqToToken,
                       .row_to_request_operand = Prepare::kReqPool,
                       .owner_lengths_operand = Prepare::kSeqLens};
  return OpKind{.name = Prepare::kName,
                .operands = {input("req_to_token", kAllRows, Content::kMetadata),
                             input("req_pool", kRequestRows, Content::kMetadata),
                             input("seq_lens", kRequestRows, Content::kMetadata),
                             input("cu_seqlens_q", kAllRows, Content::kMetadata), index_output("positions", kTokenRows),
                             index_output("row_to_request", kTokenRows), index_output("lengths", kTokenRows, length),
                             index_output("page_table", filled, slot), index_output("ragged_offsets", kTokenRows),
                             index_output("flat_slots", gathered), input("live", kAllRows, Content::kMetadata)},
                .model = model};
}

const RegisterKind kRegisterKind(kind());

const RegisterKernel kKernel(Kernel{.name = "prepare",
                                    .kind = Prepare::kName,
                                    .follows = "sglang v0.5.9, NSA metadata (page_table_1 of nsa_backend.py)",
                                    .run = run,
                                    .tolerance = tolerance_for(Prepare::kName, Dtype::kI32)});

}  // namespace
}  // namespace faultline
