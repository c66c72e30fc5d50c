#include "kernels/cuda_attention.cuh"

#include <algorithm>
#include <cstdio>

#include "kernels/cuda_device.cuh"

namespace faultline::kernels {
namespace {

using mla::Arguments;
using mla::Rows;

constexpr int kLargestCluster = 16;  // more than 8 blocks: where the device has them (non-portable)
constexpr int kPortableCluster = 8;
constexpr int64_t kLargestGridX = 2147483647;

template <int kRowTiles, Rows kRows>
struct Variant {
  static constexpr int kBytes = mla::Memory<kRowTiles, kRows>::kBytes;

  // The largest cluster that the device runs; 0 where the kernel does not run at all.
  static int largest_cluster() {
    static const int largest = [] {
      const auto kernel = mla::mla_attention<kRowTiles, kRows>;
      if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes) != cudaSuccess ||
          cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return 0;
      }
      for (int size = kLargestCluster; size > 1; size /= 2) {
        cudaLaunchAttribute attribute;
        const cudaLaunchConfig_t config = configuration(dim3(static_cast<unsigned>(size)), size, nullptr, attribute);
        int clusters = 0;
        if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess && clusters > 0) return size;
        static_cast<void>(cudaGetLastError());
      }
      return 1;
    }();
    return largest;
  }

  static cudaLaunchConfig_t configuration(dim3 grid, int cluster, cudaStream_t stream, cudaLaunchAttribute& attribute) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(mla::kThreads);
    config.dynamicSmemBytes = kBytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return config;
  }

  static bool launch(const LaunchContext& context, Arguments arguments, int64_t tokens, int splits) {
    arguments.splits = std::min(splits, largest_cluster());
    if (arguments.splits == 0) return false;
    constexpr int kHeads = mla::Memory<kRowTiles, kRows>::kHeads;
    const int64_t blocks = tokens * arguments.splits;
    if (blocks > kLargestGridX) return false;
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>((arguments.heads + kHeads - 1) / kHeads));
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config =
        configuration(grid, arguments.splits, static_cast<cudaStream_t>(context.stream), attribute);
    const cudaError_t launched = cudaLaunchKernelEx(&config, mla::mla_attention<kRowTiles, kRows>, arguments);
    if (launched != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      char text[256];
      static_cast<void>(std::snprintf(text, sizeof text, "attention, grid (%u, %u), cluster of %d, %d bytes: %s",
                                      grid.x, grid.y, arguments.splits, kBytes, cudaGetErrorString(launched)));
      note_launch_error(text);
    }
    return true;
  }
};

// 64 heads a block where there are tokens enough to fill the device, or heads enough to make it worth it; few tokens
// are split by 16 heads and over their keys.
template <Rows kRows>
bool launch(const LaunchContext& context, const Arguments& arguments, int64_t tokens) {
  constexpr int kManyHeads = 64;
  constexpr int kFewHeads = 16;
  constexpr int kFewTokens = 4;
  const auto filling = [&](int heads, int most) {
    const int64_t blocks = std::max<int64_t>(tokens * ((arguments.heads + heads - 1) / heads), 1);
    int splits = 1;
    while (splits < most && blocks * splits * 2 <= gpu_limits().multiprocessors) splits *= 2;
    return splits;
  };
  if (arguments.heads <= kFewHeads || tokens <= kFewTokens)
    return Variant<1, kRows>::launch(context, arguments, tokens, filling(kFewHeads, kLargestCluster));
  return Variant<4, kRows>::launch(context, arguments, tokens, filling(kManyHeads, kPortableCluster));
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
