// Kernels that compute or store something wrong.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "bisect/plant_fault.h"
#include "check/violation.h"
#include "ops/kinds.h"

namespace faultline::plants {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The element in the middle of a live row of the op's first output of floats: its flat offset.
std::optional<int64_t> middle_of_row(const Blow& blow, int operand) {
  const std::optional<int64_t> row = blow.row_of(operand);
  if (!row) return std::nullopt;
  const TensorView& view = blow.call.view(operand);
  if (view.rank == 1) return view.offset(*row);
  if (view.rank == 3) return view.offset(*row, view.dim(1) / 2, view.dim(2) / 2);
  const Region& region = blow.op.kind->operands[static_cast<size_t>(operand)].region;
  const HostCall host(blow, {region.lengths_operand});
  const int64_t columns = live_columns(host.call(), region, view, *row);
  if (columns == 0) return std::nullopt;
  return view.offset(*row, columns / 2);
}

template <class Change>
KernelResult change_one_value(Blow& blow, const Change& change) {
  const int operand = value_output(blow.op, blow.call);
  if (operand < 0) return blow.miss();
  const std::optional<int64_t> at = middle_of_row(blow, operand);
  if (!at) return blow.miss();
  KernelResult result = blow.kernel();
  const HostTensor out(blow.gpu(), blow.call.view(operand));
  out.view().store(*at, change(out.view().load(*at)));
  out.write_back();
  return result;
}

// Live rows of an output that `chosen` picks, after the kernel.
template <class Chosen>
KernelResult fill_rows(Blow& blow, int operand, float value, const Chosen& chosen) {
  const int64_t rows = blow.live_rows_of(operand);
  return with_output(blow, operand, [&](const TensorView& out) {
    for (int64_t row = 0; row < rows; ++row) {
      if (!chosen(row)) continue;
      for (int64_t i = 0; i < (out.rank > 1 ? out.dim(1) : 1); ++i)
        for (int64_t j = 0; j < (out.rank > 2 ? out.dim(2) : 1); ++j)
          out.store(row * out.stride[0] + i * out.stride[1] + j * out.stride[2], value);
    }
  });
}

void copy(Device* gpu, std::byte* to, const std::byte* from, size_t bytes) {
  if (gpu != nullptr)
    gpu->copy(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

}  // namespace

KernelResult put_a_nan(Blow& blow) {
  return change_one_value(blow, [](float) { return kNan; });
}

// Beyond every tolerance of the table, whatever the size of the values.
KernelResult put_a_wrong_value(Blow& blow) {
  return change_one_value(blow, [](float value) { return value + 1.0f + std::fabs(value); });
}

KernelResult put_a_row_of_nan(Blow& blow) {
  const int operand = value_output(blow.op, blow.call);
  if (operand < 0) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(operand);
  if (!row) return blow.miss();
  return fill_rows(blow, operand, kNan, [&](int64_t r) { return r == *row; });
}

// A padded row of length 0 is 0/0, which its own row may be; here it reaches a live one.
KernelResult spread_the_nan_of_padding(Blow& blow) {
  const int operand = value_output(blow.op, blow.call);
  if (operand < 0 || blow.call.view(operand).dim(0) <= blow.live_rows_of(operand)) return blow.miss();
  return put_a_row_of_nan(blow);
}

// Rows that see few keys: all of a later chunk is masked, and -inf - -inf is NaN where the running maximum starts at
// -inf.
KernelResult lose_rows_with_a_masked_chunk(Blow& blow) {
  using A = ops::Attention;
  if (!blow.is<A>()) return blow.miss();
  const HostTensor lengths(blow.gpu(), blow.call.view(A::kLengths));
  const int64_t chunk = std::max<int64_t>(1, blow.call.attr().integer("topk") / 2);
  const auto masked = [&](int64_t row) { return lengths.view().load_index(lengths.view().offset(row)) <= chunk; };
  bool any = false;
  for (int64_t row = 0; row < blow.live_rows_of(A::kOut); ++row) any = any || masked(row);
  return any ? fill_rows(blow, A::kOut, kNan, masked) : blow.miss();
}

KernelResult lose_rows_at_a_stride(Blow& blow) {
  constexpr int64_t kStride = 8;
  const int operand = value_output(blow.op, blow.call);
  if (operand < 0) return blow.miss();
  return fill_rows(blow, operand, kNan, [](int64_t row) { return row % kStride == 0; });
}

KernelResult put_a_tile_of_nan(Blow& blow) {
  const int operand = value_output(blow.op, blow.call);
  if (operand < 0) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(operand);
  if (!row) return blow.miss();
  const auto [begin, end] = tile_of(blow.call.view(operand), *row);
  return fill_rows(blow, operand, kNan, [begin = begin, end = end](int64_t r) { return r >= begin && r < end; });
}

KernelResult put_zeros(Blow& blow) {
  const int operand = value_output(blow.op, blow.call);
  return operand < 0 ? blow.miss() : fill_rows(blow, operand, 0.0f, [](int64_t) { return true; });
}

KernelResult leave_probabilities_unnormalised(Blow& blow) {
  using S = ops::Softmax;
  constexpr float kMassKept = 0.5f;
  if (!blow.is<S>()) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(S::kProbs);
  if (!row) return blow.miss();
  return with_output(blow, S::kProbs, [&](const TensorView& probs) {
    for (int64_t v = 0; v < probs.dim(1); ++v)
      probs.store(probs.offset(*row, v), kMassKept * probs.load(probs.offset(*row, v)));
  });
}

// Every picked score rounds to 0, and there is no epsilon below (vllm#47367).
KernelResult divide_routing_weights_by_zero(Blow& blow) {
  using R = ops::Router;
  if (!blow.is<R>()) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(R::kWeights);
  if (!row) return blow.miss();
  return with_output(blow, R::kWeights, [&](const TensorView& weights) {
    for (int64_t j = 0; j < weights.dim(1); ++j) weights.store(weights.offset(*row, j), kNan);
  });
}

KernelResult leave_a_tile_unwritten(Blow& blow) {
  const int operand = value_output(blow.op, blow.call);
  if (operand < 0) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(operand);
  if (!row) return blow.miss();
  const TensorView& out = blow.call.view(operand);
  const auto [begin, end] = tile_of(out, *row);
  const RowBlock before(blow.gpu(), out, begin, end);
  KernelResult result = blow.kernel();
  before.restore(out);
  return result;
}

// Scratch memory of a replay has no canaries: there, and wherever views are checked, the access is dropped and recorded
// as a checked view would.
KernelResult write_past_the_end(Blow& blow) {
  const int operand = value_output(blow.op, blow.call);
  if (operand < 0 || !blow.call.view(operand).contiguous()) return blow.miss();
  KernelResult result = blow.kernel();
  const TensorView& out = blow.call.view(operand);
  Device* const gpu = blow.gpu();
  if (blow.call.checked && blow.call.launch.log != nullptr) {
    auto* const at = reinterpret_cast<std::byte*>(blow.call.launch.log);
    kernels::AccessLog log;
    copy(gpu, reinterpret_cast<std::byte*>(&log), at, sizeof log);
    if (log.count < kernels::AccessLog::kCapacity)
      log.first[log.count] = kernels::BadAccess{operand, 1, out.extent(), out.extent(), 0, 0};
    ++log.count;
    copy(gpu, at, reinterpret_cast<const std::byte*>(&log), sizeof log);
    return result;
  }
  if (out.data != blow.op.arguments[operand].view().data) {
    blow.struck = false;
    return result;
  }
  constexpr std::array<std::byte, sizeof(double)> kZero{};
  const size_t size = dtype_bytes(out.dtype);
  copy(gpu, out.data + static_cast<size_t>(out.extent()) * size, kZero.data(), size);
  return result;
}

}  // namespace faultline::plants
