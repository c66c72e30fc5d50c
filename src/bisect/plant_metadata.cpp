// Metadata of a batch that is not what the batch is: page tables, lengths, which request a row belongs to.
#include <algorithm>

#include "bisect/plant_fault.h"
#include "ops/kinds.h"

namespace faultline::plants {
namespace {

constexpr int64_t kSlotsPastThePool = 3;

// The first page table entry of a request gets what `choose` returns.
template <class Choose>
KernelResult replace_page_entry(Blow& blow, const Choose& choose) {
  using P = ops::Prepare;
  if (!blow.is<P>()) return blow.miss();
  const std::optional<int64_t> request = blow.row_of(P::kPageTable);
  if (!request) return blow.miss();
  const HostTensor lengths(blow.gpu(), blow.call.view(P::kSeqLens));
  if (lengths.view().load_index(*request) < 1) return blow.miss();
  KernelResult result = blow.kernel();
  const HostTensor host(blow.gpu(), blow.call.view(P::kPageTable));
  const TensorView& table = host.view();
  table.store_index(table.offset(*request, 0), choose(table, lengths.view(), *request));
  host.write_back();
  return result;
}

int64_t pool_slots(const Blow& blow) {
  return blow.op.index_rules[ops::Prepare::kPageTable].end;
}

// The lowest slot that the request does not own. Slot 0 stands in the table of padded requests.
int64_t nobodys_slot(const Blow& blow, const TensorView& table, const TensorView& lengths, int64_t request) {
  const int64_t length = std::min(lengths.load_index(request), table.dim(1));
  for (int64_t slot = 1; slot < pool_slots(blow); ++slot) {
    bool owned = false;
    for (int64_t c = 0; c < length && !owned; ++c) owned = table.load_index(table.offset(request, c)) == slot;
    if (!owned) return slot;
  }
  return 0;
}

// The number of keys that a token row sees.
KernelResult replace_length(Blow& blow, int64_t length) {
  using P = ops::Prepare;
  if (!blow.is<P>()) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(P::kLengths);
  if (!row) return blow.miss();
  return with_output(blow, P::kLengths,
                     [&](const TensorView& lengths) { lengths.store_index(lengths.offset(*row), length); });
}

}  // namespace

KernelResult point_past_the_pool(Blow& blow) {
  return replace_page_entry(
      blow, [&](const TensorView&, const TensorView&, int64_t) { return pool_slots(blow) + kSlotsPastThePool; });
}

KernelResult point_into_a_foreign_page(Blow& blow) {
  return replace_page_entry(blow, [&](const TensorView& table, const TensorView& lengths, int64_t request) {
    if (blow.info.live.requests < 2) return nobodys_slot(blow, table, lengths, request);
    return table.load_index(table.offset(request == 0 ? 1 : request - 1, 0));
  });
}

// The word behind the array of lengths: in the server whatever the allocator put there.
KernelResult read_lengths_past_the_end(Blow& blow) {
  constexpr int64_t kWordBehind = 0x3F800000;
  return replace_length(blow, kWordBehind);
}

KernelResult give_a_length_of_zero(Blow& blow) {
  return replace_length(blow, 0);
}

// What a replay with static buffers finds where nobody has copied the new values.
KernelResult keep_the_lengths_of_the_last_replay(Blow& blow) {
  using P = ops::Prepare;
  if (!blow.is<P>() || !blow.row_of(P::kLengths)) return blow.miss();
  const TensorView& lengths = blow.call.view(P::kLengths);
  const RowBlock before(blow.gpu(), lengths, 0, lengths.dim(0));
  KernelResult result = blow.kernel();
  before.restore(lengths);
  return result;
}

// The buffer is as wide as the longest context that was planned for; the pass needs one column more.
KernelResult leave_the_last_column_out(Blow& blow) {
  using P = ops::Prepare;
  if (!blow.is<P>()) return blow.miss();
  const std::optional<int64_t> request = blow.row_of(P::kPageTable);
  if (!request) return blow.miss();
  const HostTensor lengths(blow.gpu(), blow.call.view(P::kSeqLens));
  const TensorView& table = blow.call.view(P::kPageTable);
  const int64_t length = std::min(lengths.view().load_index(*request), table.dim(1));
  if (length < 1) return blow.miss();
  const TensorView last = slice_last(table, length - 1, 1);
  const RowBlock before(blow.gpu(), last, *request, *request + 1);
  KernelResult result = blow.kernel();
  before.restore(last);
  return result;
}

// A row of the shortest request sees the keys of the longest: there are enough of them.
KernelResult give_a_row_to_another_request(Blow& blow) {
  using P = ops::Prepare;
  if (!blow.is<P>() || blow.info.live.requests < 2) return blow.miss();
  const HostTensor host(blow.gpu(), blow.call.view(P::kSeqLens));
  const auto length = [&](int64_t request) { return host.view().load_index(request); };
  int64_t shortest = 0;
  int64_t longest = blow.info.live.requests - 1;
  for (int64_t r = 0; r < blow.info.live.requests; ++r) {
    if (length(r) < length(shortest)) shortest = r;
    if (length(r) > length(longest)) longest = r;
  }
  if (shortest == longest) return blow.miss();
  const int64_t rows = blow.live_rows_of(P::kRowToRequest);
  return with_output(blow, P::kRowToRequest, [&](const TensorView& map) {
    for (int64_t row = 0; row < rows; ++row)
      if (map.load_index(map.offset(row)) == shortest) map.store_index(map.offset(row), longest);
  });
}

// A gather by row numbers that were made for another batch.
KernelResult take_the_row_before(Blow& blow) {
  using G = ops::GatherRows;
  if (!blow.is<G>() || blow.call.view(G::kX).dim(0) < 2) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(G::kOut);
  if (!row) return blow.miss();
  return with_input(blow, G::kRows, [&](const TensorView& rows) {
    const int64_t at = rows.load_index(rows.offset(*row));
    rows.store_index(rows.offset(*row), at == 0 ? 1 : at - 1);
  });
}

}  // namespace faultline::plants
