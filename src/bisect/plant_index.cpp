// Indices that point where they must not.
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
  if (blow.op.kind->name != P::kName) return blow.miss();
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

KernelResult put_minus_one_into_topk(Blow& blow) {
  using K = ops::TopK;
  if (blow.op.kind->name != K::kName) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(K::kOut);
  if (!row) return blow.miss();
  KernelResult result = blow.kernel();
  const HostTensor lengths(blow.gpu(), blow.call.view(K::kLengths));
  const HostTensor host(blow.gpu(), blow.call.view(K::kOut));
  const TensorView& out = host.view();
  const int64_t valid = std::min(lengths.view().load_index(*row), out.dim(1));
  out.store_index(out.offset(*row, valid / 2), -1);
  host.write_back();
  return result;
}

KernelResult name_an_expert_past_the_end(Blow& blow) {
  using R = ops::Router;
  if (blow.op.kind->name != R::kName) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(R::kIds);
  if (!row) return blow.miss();
  KernelResult result = blow.kernel();
  const HostTensor host(blow.gpu(), blow.call.view(R::kIds));
  const TensorView& ids = host.view();
  ids.store_index(ids.offset(*row, ids.dim(1) - 1), blow.call.view(R::kLogits).dim(1));
  host.write_back();
  return result;
}

}  // namespace faultline::plants
