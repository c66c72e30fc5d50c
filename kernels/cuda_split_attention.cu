// Split attention bodies, compiled for the GPU.
#include "kernels/cuda_launch.cuh"
#include "kernels/split_attention.h"

namespace faultline::kernels {

#define FAULTLINE_INSTANTIATE(...) \
  template void cuda_launch<__VA_ARGS__>(const LaunchContext&, Grid, int, size_t, const __VA_ARGS__&)

FAULTLINE_INSTANTIATE(SplitAttentionBody<Bf16, false>);
FAULTLINE_INSTANTIATE(SplitAttentionBody<Bf16, true>);
FAULTLINE_INSTANTIATE(SplitAttentionBody<float, false>);
FAULTLINE_INSTANTIATE(SplitAttentionBody<float, true>);
FAULTLINE_INSTANTIATE(CombineBody<Bf16, false>);
FAULTLINE_INSTANTIATE(CombineBody<Bf16, true>);
FAULTLINE_INSTANTIATE(CombineBody<float, false>);
FAULTLINE_INSTANTIATE(CombineBody<float, true>);

#undef FAULTLINE_INSTANTIATE

}  // namespace faultline::kernels
