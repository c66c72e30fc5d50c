#include "kernels/topk.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>
#include <vector>

#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using kernels::IndexTransform;
using ops::TopK;

// A row's keys and how their positions become entries. Keys past the buffers do not exist.
class Row {
 public:
  Row(const OpCall& call, int64_t token) : call_(call), token_(token) {
    const TensorView& lengths = call.view(TopK::kLengths);
    transform_ = static_cast<IndexTransform>(call.attr().integer("transform"));
    length_ = std::clamp<int64_t>(lengths.load_index(lengths.offset(token)), 0, call.view(TopK::kScores).dim(1));
    if (transform_ == IndexTransform::kPaged) {
      const TensorView& map = call.view(TopK::kRowToRequest);
      const TensorView& table = call.view(TopK::kPageTable);
      request_ = map.load_index(map.offset(token));
      const bool known = request_ >= 0 && request_ < table.dim(0);
      length_ = known ? std::min(length_, table.dim(1)) : 0;
    }
    if (transform_ == IndexTransform::kRagged) {
      const TensorView& offsets = call.view(TopK::kRaggedOffsets);
      offset_ = offsets.load_index(offsets.offset(token));
    }
  }

  int64_t length() const { return length_; }
  float score(int64_t key) const {
    const TensorView& scores = call_.view(TopK::kScores);
    return scores.load(scores.offset(token_, key));
  }
  int64_t entry(int64_t key) const {
    if (transform_ != IndexTransform::kPaged) return key + offset_;
    const TensorView& table = call_.view(TopK::kPageTable);
    return table.load_index(table.offset(request_, key));
  }

 private:
  const OpCall& call_;
  int64_t token_;
  IndexTransform transform_;
  int64_t length_ = 0;
  int64_t request_ = 0;
  int64_t offset_ = 0;
};

// Best first; a NaN after all numbers, so that it is chosen only where nothing else is left.
bool better(float a, float b) {
  return std::isnan(b) ? !std::isnan(a) : a > b;
}

void topk_model(const OpCall& call) {
  const TensorView& out = call.view(TopK::kOut);
  const int64_t topk = call.attr().integer("topk");
  for (int64_t token = 0; token < out.dim(0); ++token) {
    const Row row(call, token);
    std::vector<int64_t> keys(static_cast<size_t>(row.length()));
    std::iota(keys.begin(), keys.end(), int64_t{0});
    if (row.length() > topk)
      std::stable_sort(keys.begin(), keys.end(),
                       [&](int64_t a, int64_t b) { return better(row.score(a), row.score(b)); });
    for (int64_t i = 0; i < topk; ++i)
      out.store_index(out.offset(token, i), i < row.length() ? row.entry(keys[static_cast<size_t>(i)]) : -1);
  }
}

std::optional<OpKind::SelectionProblem> topk_selection(const OpCall& call, int64_t live_rows) {
  const TensorView& out = call.view(TopK::kOut);
  const int64_t topk = call.attr().integer("topk");
  const Tolerance tolerance = tolerance_for(TopK::kName, Dtype::kI32);
  for (int64_t token = 0; token < std::min(live_rows, out.dim(0)); ++token) {
    const Row row(call, token);
    const bool all_kept = row.length() <= topk;  // whatever their scores
    if (row.length() == 0) continue;
    std::vector<float> best(static_cast<size_t>(row.length()));
    std::unordered_map<int64_t, int64_t> key_of;
    for (int64_t key = 0; key < row.length(); ++key) {
      best[static_cast<size_t>(key)] = row.score(key);
      key_of.emplace(row.entry(key), key);
    }
    const int64_t kept = std::min(topk, row.length());
    const auto kth = best.begin() + (kept - 1);
    std::nth_element(best.begin(), kth, best.end(), better);
    // An infinite one leaves no room: infinity less a share of itself is no number.
    const double slack = std::isinf(*kth) ? 0.0 : tolerance.atol + tolerance.rtol * std::abs(*kth);
    const double least = *kth - slack;
    for (int64_t i = 0; i < kept; ++i) {
      const int64_t at = out.offset(token, i);
      const int64_t entry = out.load_index(at);
      const auto found = key_of.find(entry);
      if (found == key_of.end())
        return OpKind::SelectionProblem{
            TopK::kOut, at,
            fmt::format("row {}: entry {} at {} is none of the row's {} keys", token, entry, i, row.length())};
      if (all_kept) continue;
      const float score = row.score(found->second);
      if (!(score >= least))
        return OpKind::SelectionProblem{
            TopK::kOut, at,
            fmt::format("row {}: key {} (entry {} at {}) has the score {}, but the {}-th best of {} is {}", token,
                        found->second, entry, i, score, topk, row.length(), *kth)};
    }
  }
  return std::nullopt;
}

KernelResult run_topk(const OpCall& call) {
  const TensorView& scores = call.view(TopK::kScores);
  kernels::TopKOperands operands;
  operands.scores = kernel_operand<float>(call, TopK::kScores);
  operands.lengths = kernel_operand<int32_t>(call, TopK::kLengths);
  operands.page_table = optional_operand<int32_t>(call, TopK::kPageTable);
  operands.row_to_request = optional_operand<int32_t>(call, TopK::kRowToRequest);
  operands.ragged_offsets = optional_operand<int32_t>(call, TopK::kRaggedOffsets);
  operands.out = kernel_operand<int32_t>(call, TopK::kOut);
  operands.transform = static_cast<IndexTransform>(call.attr().integer("transform"));
  FAULTLINE_CHECK(operands.transform != IndexTransform::kPaged ||
                  (operands.page_table.data != nullptr && operands.row_to_request.data != nullptr));
  FAULTLINE_CHECK(operands.transform != IndexTransform::kRagged || operands.ragged_offsets.data != nullptr);
  operands.tokens = call.view(TopK::kOut).dim(0);
  operands.topk = call.attr().integer("topk");
  operands.score_stride = scores.stride[0];
  operands.page_table_stride = call.argument(TopK::kPageTable).present() ? call.view(TopK::kPageTable).stride[0] : 0;
  operands.out_stride = call.view(TopK::kOut).stride[0];
  with_build(call, scores.dtype,
             [&](auto build) { kernels::launch_topk<decltype(build)::kChecked>(call.launch, operands); });
  return std::nullopt;
}

// Ownership holds for paged entries; the engine drops it for the other transforms, whose entries are no slots.
const IndexRule kEntries{.minus_one_tail = true,
                         .unique = true,
                         .count_lengths_operand = TopK::kLengths,
                         .page_table_operand = TopK::kPageTable,
                         .row_to_request_operand = TopK::kRowToRequest,
                         .owner_lengths_operand = TopK::kLengths};

const RegisterKind kTopK{OpKind{.name = TopK::kName,
                                .operands = {input("scores", Region{.lengths_operand = TopK::kLengths}),
                                             input("lengths", kTokenRows, Content::kMetadata),
                                             input("page_table", kRequestRows, Content::kMetadata),
                                             input("row_to_request", kTokenRows, Content::kMetadata),
                                             input("ragged_offsets", kTokenRows, Content::kMetadata),
                                             index_output("indices", kTokenRows, kEntries)},
                                .model = topk_model,
                                .selection = topk_selection}};

const RegisterKernel kFastTopK{
    Kernel{.name = "fast_topk",
           .kind = TopK::kName,
           .follows = "sglang sgl-kernel/csrc/elementwise/topk.cu (fast_topk_transform_fused)",
           .run = run_topk,
           .tolerance = tolerance_for(TopK::kName, Dtype::kI32)}};

}  // namespace
}  // namespace faultline
