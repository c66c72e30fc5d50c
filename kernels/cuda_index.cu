// Batch metadata, indexer, top-k, router and expert sorting, compiled for the GPU.
#include "kernels/cuda_launch.cuh"
#include "kernels/index_scores.h"
#include "kernels/moe.h"
#include "kernels/prepare.h"
#include "kernels/router.h"
#include "kernels/topk.h"

namespace faultline::kernels {

#define FAULTLINE_INSTANTIATE(...) \
  template void cuda_launch<__VA_ARGS__>(const LaunchContext&, Grid, int, size_t, const __VA_ARGS__&)

FAULTLINE_INSTANTIATE(PrepareBody<false>);
FAULTLINE_INSTANTIATE(PrepareBody<true>);
FAULTLINE_INSTANTIATE(IndexScoresBody<Bf16, false>);
FAULTLINE_INSTANTIATE(IndexScoresBody<Bf16, true>);
FAULTLINE_INSTANTIATE(IndexScoresBody<float, false>);
FAULTLINE_INSTANTIATE(IndexScoresBody<float, true>);
FAULTLINE_INSTANTIATE(TopKBody<false>);
FAULTLINE_INSTANTIATE(TopKBody<true>);
FAULTLINE_INSTANTIATE(RouterBody<Bf16, false>);
FAULTLINE_INSTANTIATE(RouterBody<Bf16, true>);
FAULTLINE_INSTANTIATE(RouterBody<float, false>);
FAULTLINE_INSTANTIATE(RouterBody<float, true>);
FAULTLINE_INSTANTIATE(MoeAlignBody<false>);
FAULTLINE_INSTANTIATE(MoeAlignBody<true>);
FAULTLINE_INSTANTIATE(MoeCombineBody<Bf16, false>);
FAULTLINE_INSTANTIATE(MoeCombineBody<Bf16, true>);
FAULTLINE_INSTANTIATE(MoeCombineBody<float, false>);
FAULTLINE_INSTANTIATE(MoeCombineBody<float, true>);

#undef FAULTLINE_INSTANTIATE

}  // namespace faultline::kernels
