#include "ops/weights_in_use.h"

#ifdef FAULTLINE_HAVE_CUDA
#include "ops/cuda_made_weights.h"
#endif
#include "ops/kinds.h"

namespace faultline {
namespace {

WeightRange whole(const TensorView& view) {
  return {view.data, static_cast<uint64_t>(view.extent()) * dtype_bytes(view.dtype)};
}

// Experts e of `offsets` with offsets[e] < offsets[e + 1].
std::vector<bool> experts_in_use(const TensorView& offsets) {
  std::vector<bool> used;
  for (int64_t e = 0; e + 1 < offsets.dim(0); ++e) used.push_back(offsets.load_index(e) < offsets.load_index(e + 1));
  return used;
}

void embedding_rows(const OpCall& call, std::vector<WeightRange>& ranges) {
  const TensorView& table = call.view(ops::Embed::kTable);
  const TensorView& ids = call.view(ops::Embed::kIds);
  const uint64_t row_bytes = static_cast<uint64_t>(table.dim(1)) * dtype_bytes(table.dtype);
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    const int64_t id = ids.load_index(t);
    if (id < 0 || id >= table.dim(0)) continue;
    ranges.push_back({table.data + static_cast<uint64_t>(table.offset(id)) * dtype_bytes(table.dtype), row_bytes});
  }
}

}  // namespace

std::vector<WeightRange> weights_in_use(const OpKind& kind, const OpCall& call) {
  std::vector<WeightRange> ranges;
  if (kind.name == ops::Embed::kName) {
    embedding_rows(call, ranges);
    return ranges;
  }
  std::vector<bool> experts;
  if (kind.name == ops::ExpertLinear::kName) experts = experts_in_use(call.view(ops::ExpertLinear::kOffsets));
  if (kind.name == ops::ExpertLinearW4A4::kName) experts = experts_in_use(call.view(ops::ExpertLinearW4A4::kOffsets));
  for (size_t o = 0; o < kind.operands.size(); ++o) {
    if (kind.operands[o].content != Content::kWeight) continue;
    const auto& views = call.arguments[o].views;
    // Lists of the experts are expert-major, with as many matrices each.
    const size_t each = experts.empty() ? 1 : views.size() / experts.size();
    for (size_t i = 0; i < views.size(); ++i)
      if (views[i].data != nullptr && (experts.empty() || each == 0 || experts[i / each]))
        ranges.push_back(whole(views[i]));
  }
  return ranges;
}

Status bring_weights(const OpKind& kind, const OpCall& call) {
#ifdef FAULTLINE_HAVE_CUDA
  if (call.launch.cuda) return bring_device_weights(kind, call);
#endif
  if (!any_weights_on_demand()) return {};
  return need_weights(weights_in_use(kind, call));
}

}  // namespace faultline
