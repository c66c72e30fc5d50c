// Which body a product gets, the plan of the experts' rows, and the largest input scale.
#include <algorithm>
#include <cstdio>

#include "kernels/cuda_products.cuh"

namespace faultline::kernels {
namespace products {
namespace {

constexpr int kPlanThreads = 256;
constexpr int64_t kSkinnyMost = 64;        // rows that share a weight: below, reading the weights again is cheaper
constexpr int64_t kSkinnyExpertRows = 12;  // the same, on average over the experts
constexpr int64_t kUnplanned = 128;        // pairs of row and expert that find their expert themselves

// One block. Experts are taken a block's width at a time; their items start where those of the experts before end.
__global__ void __launch_bounds__(kPlanThreads)
    plan(const __grid_constant__ PlanRequest request, const __grid_constant__ PlanSpace space) {
  __shared__ int32_t counts[kPlanThreads];
  __shared__ int32_t base;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread == 0) base = 0;
  if (space.order != nullptr)
    for (int32_t i = thread; i < request.entries; i += kPlanThreads) space.order[i] = request.order[i];
  __syncthreads();
  for (int32_t first = 0; first < request.groups; first += kPlanThreads) {
    const int32_t expert = first + thread;
    int32_t begin = 0;
    int32_t rows = 0;
    if (expert < request.groups) {
      begin = request.offsets[expert];
      int32_t end = request.offsets[expert + 1];
      if (request.log != nullptr && begin < end) {
        const Place place{expert, 0};
        const auto record = [&](int64_t index, int64_t extent) {
          const View<int32_t, true> view(nullptr, extent, request.order_operand, request.log, &place);
          static_cast<void>(view.load(index));
        };
        int32_t i = begin;
        for (; i < end; ++i) {
          if (i < 0 || i >= request.entries) {
            record(i, request.entries);
            break;
          }
          const int32_t row = request.order[i];
          if (row >= 0 && row < request.out_rows) continue;
          record(row, request.out_rows);
          space.order[i] = -1;
        }
        end = i;
      }
      rows = max(end - begin, 0);
    }
    const int32_t items = (rows + request.rows - 1) / request.rows;
    counts[thread] = items;
    __syncthreads();
    for (int step = 1; step < kPlanThreads; step *= 2) {
      const int32_t before = thread >= step ? counts[thread - step] : 0;
      __syncthreads();
      counts[thread] += before;
      __syncthreads();
    }
    int32_t at = base + counts[thread] - items;
    for (int32_t i = 0; i < items; ++i, ++at) {
      const int32_t from = begin + i * request.rows;
      // Offsets that overlap can ask for more rows than there are: the plan has no place for them.
      if (at < request.capacity) space.items[at] = PlanItem{expert, from, min(begin + rows - from, request.rows)};
    }
    __syncthreads();
    if (thread == kPlanThreads - 1) base += counts[thread];
    __syncthreads();
  }
  if (thread == 0) *space.count = min(base, request.capacity);
}

// One block, a thread a matrix.
__global__ void __launch_bounds__(kPlanThreads)
    expert_factors(const float* const* input_scales, const float* const* global_scales, int count, int each,
                   float* factors) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kPlanThreads) {
    const int first = i / each * each;
    float largest = *input_scales[first];
    for (int s = 1; s < each; ++s) {
      const float value = *input_scales[first + s];
      if (value > largest || value != value) largest = value;
    }
    factors[i] = largest * *global_scales[i];
  }
}

__global__ void __launch_bounds__(kPlanThreads) largest_of(const float* const* scales, int32_t count, float* largest) {
  __shared__ float values[kPlanThreads];
  const auto larger = [](float a, float b) { return b > a || b != b ? b : a; };
  const auto thread = static_cast<int32_t>(threadIdx.x);
  float value = *scales[0];
  for (int32_t i = thread; i < count; i += kPlanThreads) value = larger(value, *scales[i]);
  values[thread] = value;
  __syncthreads();
  for (int step = kPlanThreads / 2; step > 0; step /= 2) {
    if (thread < step) values[thread] = larger(values[thread], values[thread + step]);
    __syncthreads();
  }
  if (thread == 0) *largest = values[0];
}

}  // namespace

void check_launch(const char* body, cudaError_t error) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  char text[256];
  static_cast<void>(std::snprintf(text, sizeof text, "%s: %s", body, cudaGetErrorString(error)));
  note_launch_error(text);
}

}  // namespace products

ProductBody product_body(const Product& p) {
  const bool decoded = p.type == WeightType::kBf16 || p.type == WeightType::kFp8 || p.type == WeightType::kFp4;
  if (p.x_type == ActivationType::kF32 || !decoded || !p.aligned) return ProductBody::kPlain;
  const bool few = p.rows <= (p.groups > 0 ? products::kSkinnyExpertRows * p.groups : products::kSkinnyMost);
  if (p.weight_kn) {
    const bool heads = few && p.type == WeightType::kBf16 && p.columns <= products::kMostHeadRows;
    return heads ? ProductBody::kHeads : ProductBody::kPlain;
  }
  if (!few) return ProductBody::kTiles;
  const bool wide = *std::min_element(p.part_rows, p.part_rows + p.parts) >= products::kWarpRows;
  return wide ? ProductBody::kSkinny : ProductBody::kPlain;
}

int plan_rows(const Product& p, ProductBody body) {
  if (body == ProductBody::kTiles) return products::tile_rows(p);
  return body == ProductBody::kSkinny ? products::kSkinnyRows : products::kPlainRows;
}

bool needs_plan(const Product& p, ProductBody body) {
  return p.groups > 0 && (body != ProductBody::kSkinny || p.rows > products::kUnplanned);
}

int32_t plan_capacity(const Product& p, ProductBody body) {
  return static_cast<int32_t>(p.rows / plan_rows(p, body) + std::min<int64_t>(p.groups, p.rows));
}

int64_t prepared_bytes(const Product& p) {
  return products::prepared_bytes_of(p);
}

void launch_product(const LaunchContext& context, const Product& p, ProductBody body, void* prepared) {
  if (p.rows == 0 || p.batch == 0 || products::weight_tiles(p, 1) == 0) return;
  switch (body) {
    case ProductBody::kSkinny:
      return products::launch_skinny(context, p);
    case ProductBody::kTiles:
      return products::launch_tiles(context, p, prepared);
    case ProductBody::kPlain:
      return products::launch_plain(context, p);
    case ProductBody::kHeads:
      return products::launch_heads(context, p);
  }
}

void launch_plan(const LaunchContext& context, const PlanRequest& request, const PlanSpace& space) {
  products::plan<<<1, products::kPlanThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(request, space);
  products::check_launch("plan of the experts' rows", cudaPeekAtLastError());
}

void launch_largest(const LaunchContext& context, const float* const* scales, int32_t count, float* largest) {
  products::largest_of<<<1, products::kPlanThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(scales, count,
                                                                                                    largest);
  products::check_launch("largest input scale", cudaPeekAtLastError());
}

void launch_expert_factors(const LaunchContext& context, const float* const* input_scales,
                           const float* const* global_scales, int32_t count, int32_t each, float* factors) {
  products::expert_factors<<<1, products::kPlanThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(
      input_scales, global_scales, count, each, factors);
  products::check_launch("factors of the experts", cudaPeekAtLastError());
}

}  // namespace faultline::kernels
