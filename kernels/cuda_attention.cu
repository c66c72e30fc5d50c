#include "kernels/cuda_attention.cuh"

#include <array>
#include <cstdio>
#include <limits>

#include "kernels/cuda_dependent.cuh"
#include "kernels/cuda_device.cuh"

namespace faultline::kernels {
namespace {

using mla::Arguments;
using mla::Rows;

constexpr int kLargestCluster = mla::kMostSplits;  // more than 8 blocks only where the device has them (non-portable)
constexpr int64_t kLargestGridX = 2147483647;

template <int kRowTiles, Rows kRows>
struct Variant {
  static constexpr int kBytes = mla::Memory<kRowTiles, kRows>::kBytes;

  // How many clusters of `size` blocks the device runs at a time; 0 where it does not run them at all.
  static int active_clusters(int size) {
    static const std::array<int, kLargestCluster + 1> active = [] {
      std::array<int, kLargestCluster + 1> counts{};
      const auto kernel = mla::mla_attention<kRowTiles, kRows>;
      if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes) != cudaSuccess ||
          cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return counts;
      }
      for (int i = 1; i <= kLargestCluster; ++i) {
        cudaLaunchAttribute attribute;
        const cudaLaunchConfig_t config = configuration(i, attribute);
        if (cudaOccupancyMaxActiveClusters(&counts[static_cast<size_t>(i)], kernel, &config) == cudaSuccess) continue;
        static_cast<void>(cudaGetLastError());
        counts[static_cast<size_t>(i)] = 0;
      }
      return counts;
    }();
    return active[static_cast<size_t>(size)];
  }

  // The number of blocks among which a token's keys are best split, and what that takes.
  struct Plan {
    int splits = 0;  // 0: does not run here
    double cost = std::numeric_limits<double>::infinity();
  };
  static Plan plan(int64_t tokens, int heads) {
    constexpr int kHeads = mla::Memory<kRowTiles, kRows>::kHeads;
    constexpr int kTiles = 32;                  // of 64 keys: the top-k of GLM-5
    constexpr int kOverhead = 3;                // tiles' time, of a launch, of reaching the first key and of the merge
    constexpr double kTileTime[] = {1.7, 6.3};  // microseconds on an H200, of 16 and of 64 heads
    const int64_t clusters = tokens * ((heads + kHeads - 1) / kHeads);
    Plan best;
    for (int size = 1; size <= kLargestCluster; ++size) {
      const int active = active_clusters(size);
      if (active == 0) continue;
      const int64_t waves = (clusters + active - 1) / active;
      const double cost =
          static_cast<double>(waves * ((kTiles + size - 1) / size + kOverhead)) * kTileTime[kRowTiles == 1 ? 0 : 1];
      if (cost < best.cost) best = Plan{size, cost};
    }
    return best;
  }

  // One cluster of `size` blocks.
  static cudaLaunchConfig_t configuration(int size, cudaLaunchAttribute& attribute) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(size);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(size));
    config.blockDim = dim3(mla::kThreads);
    config.dynamicSmemBytes = kBytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return config;
  }

  static bool launch(const LaunchContext& context, Arguments arguments, int64_t tokens, int splits) {
    arguments.splits = splits;
    constexpr int kHeads = mla::Memory<kRowTiles, kRows>::kHeads;
    const int64_t blocks = tokens * arguments.splits;
    if (blocks > kLargestGridX) return false;
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>((arguments.heads + kHeads - 1) / kHeads));
    const cudaError_t launched = launch_dependent(context, mla::mla_attention<kRowTiles, kRows>, grid, mla::kThreads,
                                                  kBytes, static_cast<unsigned>(arguments.splits), arguments);
    if (launched != cudaSuccess && !device_died(launched)) {
      char text[256];
      static_cast<void>(std::snprintf(text, sizeof text, "attention, grid (%u, %u), cluster of %d, %d bytes: %s",
                                      grid.x, grid.y, arguments.splits, kBytes, cudaGetErrorString(launched)));
      note_launch_error(text);
    }
    return true;
  }
};

// 64 heads a block, or 16 and four times the blocks: whatever fills the device better.
template <Rows kRows>
bool launch(const LaunchContext& context, const Arguments& arguments, int64_t tokens) {
  const auto few = Variant<1, kRows>::plan(tokens, arguments.heads);
  const auto many = Variant<4, kRows>::plan(tokens, arguments.heads);
  if (few.splits == 0 && many.splits == 0) return false;
  if (few.cost <= many.cost) return Variant<1, kRows>::launch(context, arguments, tokens, few.splits);
  return Variant<4, kRows>::launch(context, arguments, tokens, many.splits);
}

}  // namespace

bool cuda_attention(const LaunchContext& context, const AttentionOperands<Bf16>& operands, KeyRule rule) {
  constexpr int64_t kElement = 2;
  constexpr int64_t kLargestCount = 1 << 30;
  const CacheLayout& layout = operands.layout;
  if (layout.latent != mla::kLatent || layout.width() != mla::kWidth || operands.tokens == 0) return false;
  if (operands.heads < 1 || operands.heads > kLargestCount || operands.topk > kLargestCount) return false;
  if (!aligned_for_vectors(operands.q.data, operands.q_token_stride * kElement, operands.q_head_stride * kElement) ||
      !aligned_for_vectors(operands.out.data, operands.out_token_stride * kElement,
                           operands.out_head_stride * kElement) ||
      !aligned_for_vectors(operands.pool.data, layout.row_stride))
    return false;
  Arguments arguments{};
  arguments.q = reinterpret_cast<const uint16_t*>(operands.q.data);
  arguments.pool = operands.pool.data;
  arguments.indices = operands.indices.data;
  arguments.page_table = operands.page_table.data;
  arguments.row_to_request = operands.row_to_request.data;
  arguments.lengths = operands.lengths.data;
  arguments.ragged_offsets = operands.ragged_offsets.data;
  arguments.out = reinterpret_cast<uint16_t*>(operands.out.data);
  arguments.slots = layout.slots;
  arguments.row_stride = layout.row_stride;
  arguments.q_token_stride = operands.q_token_stride;
  arguments.q_head_stride = operands.q_head_stride;
  arguments.index_stride = operands.index_stride;
  arguments.page_table_stride = operands.page_table_stride;
  arguments.out_token_stride = operands.out_token_stride;
  arguments.out_head_stride = operands.out_head_stride;
  arguments.topk = static_cast<int>(operands.topk);
  arguments.heads = static_cast<int>(operands.heads);
  arguments.scale = operands.scale;
  arguments.initial_max =
      rule == KeyRule::kMaskOutside || rule == KeyRule::kMaskMinusOne ? kFlashMlaInitialMax : kMinusInfinity;
  arguments.rule = rule;
  switch (layout.format) {
    case RowFormat::kBf16:
      return launch<Rows::kBf16>(context, arguments, operands.tokens);
    case RowFormat::kPlainFp8:
      return launch<Rows::kPlainFp8>(context, arguments, operands.tokens);
    case RowFormat::kPacked:
      return launch<Rows::kPacked>(context, arguments, operands.tokens);
    default:
      return false;
  }
}

}  // namespace faultline::kernels
