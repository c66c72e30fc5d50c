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

// Every picked score rounds to 0, and there is no epsilon below (vllm#47367).
KernelResult divide_routing_weights_by_zero(Blow& blow) {
  using R = ops::Router;
  if (blow.op.kind->name != R::kName) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(R::kWeights);
  if (!row) return blow.miss();
  KernelResult result = blow.kernel();
  const HostTensor host(blow.gpu(), blow.call.view(R::kWeights));
  const TensorView& weights = host.view();
  for (int64_t j = 0; j < weights.dim(1); ++j) weights.store(weights.offset(*row, j), kNan);
  host.write_back();
  return result;
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

KernelResult rotate_twice(Blow& blow) {
  using R = ops::Rope;
  if (blow.op.kind->name != R::kName || !blow.call.attr().flag("enabled")) return blow.miss();
  KernelResult result = blow.kernel();
  if (result) return result;
  TensorCopy once(blow.gpu(), blow.call.view(R::kOut));
  ArgumentList arguments = copy_arguments(blow.call);
  arguments.replace(R::kX, {once.publish()});
  return blow.kernel(arguments);
}

}  // namespace faultline::plants
