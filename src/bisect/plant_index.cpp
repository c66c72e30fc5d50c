// Selections and indices that point where they must not, or leave out what they must hold: top-k, experts, tokens.
#include <algorithm>
#include <utility>

#include "bisect/plant_fault.h"
#include "ops/kinds.h"

namespace faultline::plants {
namespace {

using K = ops::TopK;

enum class TopKTransform : int64_t { kPositions, kPaged, kRagged };  // the attribute's values (ops/kinds.h)

constexpr int64_t kNanBits = 0x7FC00000;        // of a float NaN, taken for an index
constexpr int64_t kUninitialised = 0x5A5A5A5A;  // what the buffer held before

// One row of the top-k's result, with its number of valid entries.
struct SelectedRow {
  const TensorView& out;
  int64_t row;
  int64_t valid;
  int64_t at(int64_t i) const { return out.offset(row, i); }
};

// Runs the top-k, then changes its row: change(row). `least`: valid entries that it takes.
template <class Change>
KernelResult change_selection(Blow& blow, int64_t least, const Change& change) {
  if (!blow.is<K>()) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(K::kOut);
  if (!row) return blow.miss();
  const HostTensor lengths(blow.gpu(), blow.call.view(K::kLengths));
  const int64_t valid = std::min(lengths.view().load_index(*row), blow.call.view(K::kOut).dim(1));
  if (valid < least) return blow.miss();
  return with_output(blow, K::kOut, [&](const TensorView& out) { change(SelectedRow{out, *row, valid}); });
}

KernelResult put_into_topk(Blow& blow, int64_t value) {
  return change_selection(blow, 1, [&](const SelectedRow& row) { row.out.store_index(row.at(row.valid / 2), value); });
}

// Column `key` of a row as the top-k's transform gives it.
int64_t entry_of(const Blow& blow, int64_t row, int64_t key) {
  const HostCall host(blow, {K::kPageTable, K::kRowToRequest, K::kRaggedOffsets});
  const auto transform = static_cast<TopKTransform>(blow.call.attr().integer("transform"));
  if (transform == TopKTransform::kRagged) return key + host.view(K::kRaggedOffsets).load_index(row);
  if (transform != TopKTransform::kPaged) return key;
  const TensorView& table = host.view(K::kPageTable);
  return table.load_index(table.offset(host.view(K::kRowToRequest).load_index(row), key));
}

}  // namespace

KernelResult put_minus_one_into_topk(Blow& blow) {
  return put_into_topk(blow, -1);
}

KernelResult put_nan_bits_into_topk(Blow& blow) {
  return put_into_topk(blow, kNanBits);
}

KernelResult leave_a_topk_slot_uninitialised(Blow& blow) {
  return put_into_topk(blow, kUninitialised);
}

KernelResult repeat_a_topk_entry(Blow& blow) {
  return change_selection(blow, 2, [](const SelectedRow& row) {
    row.out.store_index(row.at(row.valid - 1), row.out.load_index(row.at(0)));
  });
}

// The worst key of all in the place of a chosen one: in range, the row's own, and wrong.
KernelResult drop_a_topk_candidate(Blow& blow) {
  if (!blow.is<K>()) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(K::kOut);
  if (!row) return blow.miss();
  const HostTensor lengths(blow.gpu(), blow.call.view(K::kLengths));
  const HostTensor scores(blow.gpu(), blow.call.view(K::kScores));
  const int64_t length = std::min(lengths.view().load_index(*row), scores.view().dim(1));
  if (length <= blow.call.view(K::kOut).dim(1)) return blow.miss();
  int64_t worst = 0;
  const auto score = [&](int64_t key) { return scores.view().load(scores.view().offset(*row, key)); };
  for (int64_t key = 1; key < length; ++key)
    if (score(key) < score(worst)) worst = key;
  const int64_t entry = entry_of(blow, *row, worst);
  return with_output(blow, K::kOut, [&](const TensorView& out) { out.store_index(out.offset(*row, 0), entry); });
}

KernelResult leave_half_of_topk_unwritten(Blow& blow) {
  if (!blow.is<K>()) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(K::kOut);
  if (!row) return blow.miss();
  const TensorView& out = blow.call.view(K::kOut);
  const TensorView half = slice_last(out, out.dim(1) / 2, out.dim(1) - out.dim(1) / 2);
  const RowBlock before(blow.gpu(), half, *row, *row + 1);
  KernelResult result = blow.kernel();
  before.restore(half);
  return result;
}

KernelResult cut_topk_short(Blow& blow) {
  return change_selection(blow, 2, [](const SelectedRow& row) { row.out.store_index(row.at(row.valid - 1), -1); });
}

// Scores past a row's length are not cleaned: a kernel that looks at them may choose one.
KernelResult look_past_the_length(Blow& blow) {
  if (!blow.is<K>()) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(K::kOut);
  if (!row) return blow.miss();
  const HostTensor lengths(blow.gpu(), blow.call.view(K::kLengths));
  const int64_t length = lengths.view().load_index(*row);
  if (length < 1 || length >= blow.call.view(K::kScores).dim(1)) return blow.miss();
  const int64_t entry = entry_of(blow, *row, length);
  return with_output(blow, K::kOut, [&](const TensorView& out) { out.store_index(out.offset(*row, 0), entry); });
}

KernelResult keep_positions(Blow& blow) {
  if (!blow.is<K>() || blow.call.attr().integer("transform") != static_cast<int64_t>(TopKTransform::kPaged))
    return blow.miss();
  return with_attributes(blow,
                         [](Attributes& a) { a.set("transform", static_cast<int64_t>(TopKTransform::kPositions)); });
}

KernelResult take_pages_for_rows(Blow& blow) {
  if (!blow.is<K>() || blow.call.attr().integer("transform") != static_cast<int64_t>(TopKTransform::kRagged))
    return blow.miss();
  return with_attributes(blow, [](Attributes& a) { a.set("transform", static_cast<int64_t>(TopKTransform::kPaged)); });
}

KernelResult name_an_expert_past_the_end(Blow& blow) {
  using R = ops::Router;
  if (!blow.is<R>()) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(R::kIds);
  if (!row) return blow.miss();
  return with_output(blow, R::kIds, [&](const TensorView& ids) {
    ids.store_index(ids.offset(*row, ids.dim(1) - 1), blow.op.index_rules[R::kIds].end);
  });
}

KernelResult name_an_expert_twice(Blow& blow) {
  using R = ops::Router;
  if (!blow.is<R>() || blow.call.view(R::kIds).dim(1) < 2) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(R::kIds);
  if (!row) return blow.miss();
  return with_output(blow, R::kIds, [&](const TensorView& ids) {
    ids.store_index(ids.offset(*row, 1), ids.load_index(ids.offset(*row, 0)));
  });
}

KernelResult end_experts_past_the_rows(Blow& blow) {
  using P = ops::MoePermute;
  if (!blow.is<P>()) return blow.miss();
  return with_output(blow, P::kOffsets, [&](const TensorView& offsets) {
    offsets.store_index(offsets.dim(0) - 1, blow.op.index_rules[P::kOffsets].end);
  });
}

KernelResult draw_a_token_past_the_vocabulary(Blow& blow) {
  using S = ops::Sample;
  if (!blow.is<S>()) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(S::kTokens);
  if (!row) return blow.miss();
  return with_output(blow, S::kTokens, [&](const TensorView& tokens) {
    tokens.store_index(tokens.offset(*row), blow.call.view(S::kProbs).dim(1));
  });
}

}  // namespace faultline::plants
