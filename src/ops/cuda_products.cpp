#include "ops/cuda_products.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <new>
#include <vector>

#include "base/error.h"
#include "kernels/cublaslt.h"
#include "kernels/cuda_products.h"
#include "ops/kinds.h"
#include "ops/weights.h"

namespace faultline {
namespace {

using kernels::ActivationType;
using kernels::DeviceWeight;
using kernels::Product;
using kernels::ProductBody;
using kernels::WeightType;

constexpr int64_t kVector = 16;      // bytes of a vector load
constexpr int64_t kCublasRows = 17;  // of x, from which on cuBLASLt is asked first

bool capturing(const kernels::LaunchContext& context) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  static_cast<void>(cudaStreamIsCapturing(static_cast<cudaStream_t>(context.stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

// Null and a kept launch error when there is none to be had.
std::byte* allocate(const kernels::LaunchContext& context, size_t bytes) {
  if (capturing(context)) {
    kernels::note_launch_error("a product is captured that has never run: its device memory is not there");
    return nullptr;
  }
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaSuccess) return static_cast<std::byte*>(memory);
  static_cast<void>(cudaGetLastError());
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  kernels::note_launch_error(cudaGetErrorString(error));
  return nullptr;
}

// Memory that one launch fills and the next reads, shared by all products of a process (they share a stream). Grown
// memory is never given back: a captured graph may hold the smaller one's address.
class Workspace {
 public:
  std::byte* get(const kernels::LaunchContext& context, int64_t bytes) {
    if (bytes <= bytes_) return memory_;
    std::byte* grown = allocate(context, static_cast<size_t>(bytes));
    if (grown == nullptr) return nullptr;
    bytes_ = bytes;
    memory_ = grown;
    return grown;
  }

 private:
  std::byte* memory_ = nullptr;
  int64_t bytes_ = 0;
};

// Tables of addresses in device memory, one for each list that was met, by their contents.
class Tables {
 public:
  template <class Entry>
  const Entry* get(const kernels::LaunchContext& context, const std::vector<Entry>& entries) {
    const auto* bytes = reinterpret_cast<const std::byte*>(entries.data());
    std::vector<std::byte> key(bytes, bytes + entries.size() * sizeof(Entry));
    const auto found = tables_.find(key);
    if (found != tables_.end()) return reinterpret_cast<const Entry*>(found->second);
    std::byte* table = allocate(context, key.size());
    if (table == nullptr) return nullptr;
    // From pageable memory: copied from it when the call returns.
    const cudaError_t copied = cudaMemcpyAsync(table, key.data(), key.size(), cudaMemcpyHostToDevice,
                                               static_cast<cudaStream_t>(context.stream));
    if (copied != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      kernels::note_launch_error(cudaGetErrorString(copied));
      return nullptr;
    }
    tables_.emplace(std::move(key), table);
    return reinterpret_cast<const Entry*>(table);
  }

 private:
  std::map<std::vector<std::byte>, std::byte*> tables_;
};

Workspace& prepared_space() {
  static Workspace space;
  return space;
}
Workspace& plan_space() {
  static Workspace space;
  return space;
}
Workspace& largest_space() {
  static Workspace space;
  return space;
}
Workspace& factor_space() {
  static Workspace space;
  return space;
}
Tables& tables() {
  static Tables tables;
  return tables;
}

bool vector_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kVector == 0;
}

// One matrix of a list; `aligned` is cleared when vector loads of it would not do.
DeviceWeight device_weight(const Weight& weight, bool& aligned) {
  const kernels::MatmulWeight host = matmul_weight(weight);
  const auto bytes = static_cast<int64_t>(dtype_bytes(weight.values.dtype));
  DeviceWeight result;
  result.values = static_cast<const uint8_t*>(host.values);
  result.stride = host.stride * bytes;
  aligned = aligned && vector_aligned(result.values) && result.stride % kVector == 0;
  if (host.type == WeightType::kFp4) {
    result.scales = host.fp4_scales;
    result.scale_stride = host.scale_stride;
    result.global = weight.global_scale.as<float>();
    aligned = aligned && vector_aligned(result.scales) && host.scale_stride % kVector == 0;
  } else if (host.type == WeightType::kFp8) {
    result.scales = reinterpret_cast<const uint8_t*>(host.fp8_scales);
    result.scale_stride = host.scale_stride * static_cast<int64_t>(sizeof(float));
  }
  return result;
}

// The operands that say how a weight is scaled are alike for all of a list.
void describe_weights(Product& p, const Weight& first) {
  const kernels::MatmulWeight host = matmul_weight(first);
  p.type = host.type;
  p.columns = host.columns;
  p.fp8_scaling = host.type != WeightType::kFp8 || host.fp8_scales == nullptr ? kernels::Fp8Scaling::kNone
                  : first.fp8_blocks()                                        ? kernels::Fp8Scaling::kBlocks
                                                                              : kernels::Fp8Scaling::kTensor;
}

// A row that is aligned has a whole number of 16-byte pieces; of NVFP4, of eight of them,
// whose scales come together.
int64_t piece_columns(WeightType type) {
  return type == WeightType::kFp4 ? 256 : (type == WeightType::kFp8 ? 16 : 8);
}

void set_x(Product& p, const TensorView& x) {
  FAULTLINE_CHECK(x.dtype == Dtype::kBF16 || x.dtype == Dtype::kF32);
  p.x_type = x.dtype == Dtype::kF32 ? ActivationType::kF32 : ActivationType::kBf16;
  p.x = x.as<uint8_t>();
  p.x_stride = x.stride[0];
  p.x_rows = x.dim(0);
  p.aligned =
      p.aligned && vector_aligned(p.x) && x.stride[0] * static_cast<int64_t>(dtype_bytes(x.dtype)) % kVector == 0;
}

void set_codes(Product& p, const TensorView& codes, const TensorView& scales) {
  p.x_type = ActivationType::kFp4;
  p.x = codes.as<uint8_t>();
  p.x_stride = codes.stride[0];
  p.x_rows = codes.dim(0);
  p.x_scales = scales.as<uint8_t>();
  p.x_scales_stride = scales.stride[0];
  constexpr int64_t kScales = 2;
  p.aligned = p.aligned && vector_aligned(p.x) && p.x_stride % kVector == 0 &&
              reinterpret_cast<uintptr_t>(p.x_scales) % kScales == 0 && p.x_scales_stride % kScales == 0;
}

void set_out(Product& p, const TensorView& out) {
  FAULTLINE_CHECK(out.dtype == Dtype::kBF16 || out.dtype == Dtype::kF32);
  p.out = out.data;
  p.out_f32 = out.dtype == Dtype::kF32;
  p.out_stride = out.stride[0];
  p.rows = out.dim(0);
}

// A list of input scales too long for a launch's arguments is a table; the skinny body looks for the largest itself.
bool set_input_scales(const OpCall& call, Product& p, const Argument& list) {
  if (list.views.size() <= kernels::kMostParts) {
    for (size_t i = 0; i < list.views.size(); ++i) p.input_scales[i] = list.views[i].as<float>();
    return true;
  }
  std::vector<const float*> scales;
  scales.reserve(list.views.size());
  for (const TensorView& view : list.views) scales.push_back(view.as<float>());
  p.scale_list = tables().get(call.launch, scales);
  p.scale_count = static_cast<int32_t>(scales.size());
  return p.scale_list != nullptr;
}

void launch(const OpCall& call, Product p, ProductBody body) {
  if (p.rows == 0) return;
  void* prepared = nullptr;
  if (body == ProductBody::kTiles) {
    prepared = prepared_space().get(call.launch, kernels::prepared_bytes(p));
    if (prepared == nullptr) return;
  }
  if (p.scale_list != nullptr && body != ProductBody::kSkinny) {
    auto* largest = reinterpret_cast<float*>(largest_space().get(call.launch, sizeof(float)));
    if (largest == nullptr) return;
    kernels::launch_largest(call.launch, p.scale_list, p.scale_count, largest);
    p.input_scales[0] = largest;
  }
  kernels::launch_product(call.launch, p, body, prepared);
}

// Dense BF16 products of many rows: cuBLASLt, where it is there.
bool by_library(const OpCall& call, const Product& p) {
  if (p.rows < kCublasRows || p.x_type != ActivationType::kBf16 || p.type != WeightType::kBf16 || p.out_f32 ||
      p.groups > 0)
    return false;
  int64_t column = 0;
  for (int i = 0; i < p.parts; ++i) {
    constexpr int64_t kBytes = 2;  // of a bf16
    const DeviceWeight& w = p.inline_weights[i];
    if (p.part_rows[i] == 0) continue;
    const kernels::DenseProduct dense{.x = p.x,
                                      .x_stride = p.x_stride,
                                      .x_batch = p.x_batch / kBytes,
                                      .w = w.values,
                                      .w_stride = w.stride / kBytes,
                                      .w_batch = p.weight_batch / kBytes,
                                      .weight_kn = p.weight_kn,
                                      .out = static_cast<std::byte*>(p.out) + column * kBytes,
                                      .out_stride = p.out_stride,
                                      .out_batch = p.out_batch / kBytes,
                                      .rows = p.rows,
                                      .out_columns = p.part_rows[i],
                                      .columns = p.columns,
                                      .batch = p.batch};
    // One that is refused after another was launched is computed again with the own body, to the same place.
    if (!kernels::cublaslt_product(call.launch, dense)) return false;
    column += p.part_rows[i];
  }
  return true;
}

// The matrices of a list, side by side, a few a launch.
KernelResult stacked(const OpCall& call, int values, int block_scale, int global_scale, const Product& common,
                     const TensorView& out) {
  const size_t count = call.argument(values).views.size();
  int64_t column = 0;
  for (size_t first = 0; first < count; first += kernels::kMostParts) {
    Product p = common;
    p.parts = static_cast<int>(std::min<size_t>(kernels::kMostParts, count - first));
    int64_t width = 0;
    for (int i = 0; i < p.parts; ++i) {
      const Weight weight = weight_at(call, values, block_scale, global_scale, first + static_cast<size_t>(i));
      if (i == 0) describe_weights(p, weight);
      p.inline_weights[i] = device_weight(weight, p.aligned);
      p.part_rows[i] = static_cast<int32_t>(weight.rows());
      width += weight.rows();
    }
    p.aligned = p.aligned && p.columns % piece_columns(p.type) == 0;
    FAULTLINE_CHECK(column + width <= out.dim(1));
    set_out(p, slice_last(out, column, width));
    column += width;
    if (p.rows == 0 || p.columns == 0) continue;
    if (!by_library(call, p)) launch(call, p, kernels::product_body(p));
  }
  FAULTLINE_CHECK(column == out.dim(1));
  return std::nullopt;
}

// Device memory of a plan: its count, its items, and the tested order.
bool set_plan(const OpCall& call, Product& p, ProductBody body, int order_operand) {
  const TensorView& order = call.view(order_operand);
  p.plan_capacity = kernels::plan_capacity(p, body);
  constexpr int64_t kHeader = 16;
  const int64_t item_bytes = p.plan_capacity * static_cast<int64_t>(sizeof(kernels::PlanItem));
  const int64_t order_bytes = call.checked ? order.dim(0) * static_cast<int64_t>(sizeof(int32_t)) : 0;
  std::byte* space = plan_space().get(call.launch, kHeader + item_bytes + order_bytes);
  if (space == nullptr) return false;
  kernels::PlanSpace parts;
  parts.count = reinterpret_cast<int32_t*>(space);
  parts.items = reinterpret_cast<kernels::PlanItem*>(space + kHeader);
  if (call.checked) parts.order = reinterpret_cast<int32_t*>(space + kHeader + item_bytes);
  kernels::launch_plan(call.launch,
                       kernels::PlanRequest{.order = p.order,
                                            .offsets = p.offsets,
                                            .groups = p.groups,
                                            .entries = static_cast<int32_t>(order.dim(0)),
                                            .out_rows = static_cast<int32_t>(p.rows),
                                            .rows = kernels::plan_rows(p, body),
                                            .capacity = p.plan_capacity,
                                            .order_operand = order_operand,
                                            .log = call.checked ? call.launch.log : nullptr},
                       parts);
  p.plan = parts.items;
  p.plan_items = parts.count;
  if (call.checked) p.order = parts.order;
  return true;
}

// Of each matrix, its expert's input scale times its global scale, in device memory. Null when there is none to be had.
const float* expert_factors(const OpCall& call, const std::vector<DeviceWeight>& table, int64_t each) {
  std::vector<const float*> input_scales;
  std::vector<const float*> global_scales;
  for (size_t i = 0; i < table.size(); ++i) {
    input_scales.push_back(call.argument(ops::ExpertLinearW4A4::kInputScale).views[i].as<float>());
    global_scales.push_back(table[i].global);
  }
  const float* const* inputs = tables().get(call.launch, input_scales);
  const float* const* globals = tables().get(call.launch, global_scales);
  auto* factors =
      reinterpret_cast<float*>(factor_space().get(call.launch, static_cast<int64_t>(table.size() * sizeof(float))));
  if (inputs == nullptr || globals == nullptr || factors == nullptr) return nullptr;
  kernels::launch_expert_factors(call.launch, inputs, globals, static_cast<int32_t>(table.size()),
                                 static_cast<int32_t>(each), factors);
  return factors;
}

KernelResult experts(const OpCall& call, int order_operand, int offsets_operand, int values, int block_scale,
                     int global_scale, Product p, const TensorView& out, bool own_input_scales = false) {
  FAULTLINE_CHECK(!call.checked || call.launch.log != nullptr);
  const int64_t stacked_count = call.attr().integer("stacked");
  FAULTLINE_CHECK(stacked_count <= kernels::kMostParts);
  set_out(p, out);
  if (p.rows == 0) return std::nullopt;
  p.groups = static_cast<int32_t>(call.view(offsets_operand).dim(0) - 1);
  p.order = call.view(order_operand).as<int32_t>();
  p.offsets = call.view(offsets_operand).as<int32_t>();
  p.rows_per_x = call.attr().flag("x_per_token") ? static_cast<int32_t>(call.attr().integer("k")) : 1;
  p.parts = static_cast<int>(stacked_count);
  for (int i = 0; i < p.parts; ++i) p.part_rows[i] = static_cast<int32_t>(out.dim(1) / stacked_count);
  const auto count = static_cast<size_t>(p.groups * stacked_count);
  FAULTLINE_CHECK(call.argument(values).views.size() >= count);
  std::vector<DeviceWeight> table;
  table.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const Weight weight = weight_at(call, values, block_scale, global_scale, i);
    if (i == 0) describe_weights(p, weight);
    table.push_back(device_weight(weight, p.aligned));
  }
  if (p.columns == 0 || count == 0) return std::nullopt;
  p.aligned = p.aligned && p.columns % piece_columns(p.type) == 0;
  if (own_input_scales) {
    const float* factors = expert_factors(call, table, stacked_count);
    if (factors == nullptr) return std::nullopt;
    for (size_t i = 0; i < count; ++i) table[i].global = factors + i;
  }
  p.table = tables().get(call.launch, table);
  if (p.table == nullptr) return std::nullopt;
  const ProductBody body = kernels::product_body(p);
  if ((call.checked || kernels::needs_plan(p, body)) && !set_plan(call, p, body, order_operand)) return std::nullopt;
  launch(call, p, body);
  return std::nullopt;
}

}  // namespace

KernelResult cuda_linear(const OpCall& call) {
  using ops::Linear;
  Product p;
  p.aligned = true;
  set_x(p, call.view(Linear::kX));
  return stacked(call, Linear::kWeight, Linear::kBlockScale, Linear::kGlobalScale, p, call.view(Linear::kOut));
}

KernelResult cuda_linear_w4a4(const OpCall& call) {
  using ops::LinearW4A4;
  Product p;
  p.aligned = true;
  set_codes(p, call.view(LinearW4A4::kCodes), call.view(LinearW4A4::kScales));
  if (!set_input_scales(call, p, call.argument(LinearW4A4::kInputScale))) return std::nullopt;
  return stacked(call, LinearW4A4::kWeight, LinearW4A4::kBlockScale, LinearW4A4::kGlobalScale, p,
                 call.view(LinearW4A4::kOut));
}

KernelResult cuda_experts(const OpCall& call) {
  using ops::ExpertLinear;
  Product p;
  p.aligned = true;
  set_x(p, call.view(ExpertLinear::kX));
  return experts(call, ExpertLinear::kOrder, ExpertLinear::kOffsets, ExpertLinear::kWeight, ExpertLinear::kBlockScale,
                 ExpertLinear::kGlobalScale, p, call.view(ExpertLinear::kOut));
}

KernelResult cuda_experts_w4a4(const OpCall& call) {
  using E = ops::ExpertLinearW4A4;
  Product p;
  p.aligned = true;
  set_codes(p, call.view(E::kCodes), call.view(E::kScales));
  if (call.view(E::kOut).dim(0) == 0) return std::nullopt;
  const bool own = call.attr().integer_or("per_expert", 0) != 0;
  if (!own && !set_input_scales(call, p, call.argument(E::kInputScale))) return std::nullopt;
  return experts(call, E::kOrder, E::kOffsets, E::kWeight, E::kBlockScale, E::kGlobalScale, p, call.view(E::kOut), own);
}

KernelResult cuda_batched_linear(const OpCall& call) {
  using ops::BatchedLinear;
  const TensorView& x = call.view(BatchedLinear::kX);
  const TensorView& w = call.view(BatchedLinear::kWeight);
  const TensorView& out = call.view(BatchedLinear::kOut);
  Product p;
  p.aligned = true;
  p.weight_kn = call.attr().flag("weight_kn");
  // The head's matrix as a weight of its own; its columns are K where it lies as [n][k].
  TensorView matrix = w;
  matrix.rank = 2;
  matrix.shape = {w.dim(1), w.dim(2)};
  matrix.stride = {w.stride[1], w.stride[2]};
  describe_weights(p, Weight{.values = matrix});
  set_x(p, x);
  set_out(p, out);
  p.columns = x.dim(2);
  p.batch = x.dim(1);
  p.x_batch = x.stride[1] * static_cast<int64_t>(dtype_bytes(x.dtype));
  p.weight_batch = w.stride[0] * static_cast<int64_t>(dtype_bytes(w.dtype));
  p.out_batch = out.stride[1] * static_cast<int64_t>(dtype_bytes(out.dtype));
  p.inline_weights[0] = device_weight(Weight{.values = matrix}, p.aligned);
  p.part_rows[0] = static_cast<int32_t>(out.dim(2));
  p.aligned = p.aligned && p.x_batch % kVector == 0 && p.weight_batch % kVector == 0 &&
              (p.weight_kn ? out.dim(2) : p.columns) % piece_columns(p.type) == 0;
  if (p.rows == 0 || p.columns == 0) return std::nullopt;
  if (!by_library(call, p)) launch(call, p, kernels::product_body(p));
  return std::nullopt;
}

}  // namespace faultline
