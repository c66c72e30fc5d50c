// Matrix products on the GPU: out[r][n] = sum_k x[r][k] * w[n][k], with weights of every precision of the checkpoint,
// for one matrix, for a list side by side, for one matrix a head and for the routed experts.
//
// Four bodies, chosen by how many rows share a weight (launch_product):
//   skinny  few rows. A warp keeps 32 weight rows, decodes them in registers to bf16 and multiplies on the tensor cores
//           with up to 16 rows of x; the K range is split over the warps of a block and the blocks of a cluster, whose
//           sums are added in a fixed order. Bound by the weights' bytes. One row of codes takes integer products
//           instead (cuda_products_codes.cuh).
//   tiles   many rows. 256 weight rows x 128 rows of x a block; weights go from memory to registers and are decoded
//           there, once; x comes through shared memory in three stages.
//   plain   float arithmetic on the ordinary cores: F32 activations, F32 and F16 weights, rows that are not aligned.
//   heads   few rows, one matrix a head that lies the other way round (w[k][n]).
// Products of bf16 numbers are exact, and so are e2m1 * e4m3 in bf16: only float sums round. Weights and input scales
// are written by no kernel: the skinny and the heads body ask for them before the kernels ahead of them are done.
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "kernels/matmul.h"

namespace faultline::kernels {

// What x holds. kFp4: two codes a byte with e4m3 scales beside them.
enum class ActivationType : uint8_t { kF32, kBf16, kFp4 };

// One matrix in device memory. Strides in bytes.
struct DeviceWeight {
  const uint8_t* values = nullptr;
  const uint8_t* scales = nullptr;  // kFp4: e4m3, one a kFp4Block columns; kFp8: floats, see fp8_scaling; else null
  const float* global = nullptr;    // kFp4: one float; else null
  int64_t stride = 0;
  int64_t scale_stride = 0;
};

// How many scales an FP8 matrix has.
enum class Fp8Scaling : uint8_t { kNone, kTensor, kBlocks };

// Rows of x that one block takes: entries [begin, begin + count) of the order, all of one expert.
struct PlanItem {
  int32_t group;
  int32_t begin;
  int32_t count;
};

inline constexpr int kMostParts = 4;  // matrices side by side in one launch

struct Product {
  // x [x_rows, columns]; stride in elements (kFp4: bytes).
  ActivationType x_type = ActivationType::kBf16;
  const uint8_t* x = nullptr;
  int64_t x_stride = 0;
  int64_t x_rows = 0;
  const uint8_t* x_scales = nullptr;  // kFp4
  int64_t x_scales_stride = 0;
  // kFp4: one float each; the largest counts (NaN wins). Null: 1.
  const float* input_scales[kMostParts] = {};
  const float* const* scale_list = nullptr;  // instead, for kSkinny: this many of them, in device memory
  int32_t scale_count = 0;

  // The weights: `parts` matrices side by side, of part_rows rows each; for experts the same of each in `table`,
  // expert-major (device memory).
  WeightType type = WeightType::kBf16;
  Fp8Scaling fp8_scaling = Fp8Scaling::kNone;
  bool weight_kn = false;  // w[k][n]; stride is then that of k
  int parts = 1;
  DeviceWeight inline_weights[kMostParts];
  int32_t part_rows[kMostParts] = {};
  const DeviceWeight* table = nullptr;
  int64_t columns = 0;

  // out [rows, sum of part_rows], BF16 or F32, stride in elements.
  void* out = nullptr;
  bool out_f32 = false;
  int64_t out_stride = 0;
  int64_t rows = 0;

  // Heads: the same product `batch` times, each so far (bytes) from the last.
  int64_t batch = 1;
  int64_t x_batch = 0;
  int64_t weight_batch = 0;
  int64_t out_batch = 0;

  // Experts: row i of expert e is order[i] for offsets[e] <= i < offsets[e + 1]: that row of out, and of x the row
  // order[i] / rows_per_x. groups 0: no experts, every row in its place. A row of -1 is left out (checked builds).
  int32_t groups = 0;
  const int32_t* order = nullptr;
  const int32_t* offsets = nullptr;
  int32_t rows_per_x = 1;
  const PlanItem* plan = nullptr;
  const int32_t* plan_items = nullptr;  // how many there are
  int32_t plan_capacity = 0;

  // All rows of x and of the weights (values and scales) are aligned for 16-byte loads of whole groups of codes.
  bool aligned = false;
};

// Which body a product gets.
enum class ProductBody : uint8_t { kSkinny, kTiles, kPlain, kHeads };
ProductBody product_body(const Product& product);
// Rows of x that one item of its plan holds.
int plan_rows(const Product& product, ProductBody body);
// Whether the body needs a plan: the tiles and plain bodies of experts, and skinny ones with many rows.
bool needs_plan(const Product& product, ProductBody body);
// Items that a plan of this product can have.
int32_t plan_capacity(const Product& product, ProductBody body);

// Bytes of workspace for x as the tiles body reads it.
int64_t prepared_bytes(const Product& product);

// All launches are asynchronous on context.stream; one that CUDA refuses is kept for take_launch_error. `prepared`:
// prepared_bytes of device memory, for kTiles only.
void launch_product(const LaunchContext& context, const Product& product, ProductBody body, void* prepared);

// Where a plan and, in a checked build, the sound entries of the order go (device memory).
struct PlanSpace {
  PlanItem* items = nullptr;
  int32_t* count = nullptr;
  int32_t* order = nullptr;  // checked builds: as long as the order; null in others
};
// Cuts the experts' rows into items of at most `rows` rows. In a checked build every entry is tested first, and a bad
// one recorded with these operand numbers and the expert as its block, and left out.
struct PlanRequest {
  const int32_t* order = nullptr;
  const int32_t* offsets = nullptr;
  int32_t groups = 0;
  int32_t entries = 0;  // of the order
  int32_t out_rows = 0;
  int32_t rows = 0;
  int32_t capacity = 0;
  int order_operand = -1;
  AccessLog* log = nullptr;  // null: not checked
};
void launch_plan(const LaunchContext& context, const PlanRequest& request, const PlanSpace& space);

// *largest = the largest of `count` floats at the addresses in `scales` (device memory); NaN wins.
void launch_largest(const LaunchContext& context, const float* const* scales, int32_t count, float* largest);

// factors[i] = the largest of the `each` input scales of matrix i's expert times the matrix' global scale: what
// multiplies its sums where experts have input scales of their own. Addresses of `count` floats each in device memory.
void launch_expert_factors(const LaunchContext& context, const float* const* input_scales,
                           const float* const* global_scales, int32_t count, int32_t each, float* factors);

}  // namespace faultline::kernels
