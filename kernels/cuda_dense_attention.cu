// Dense attention bodies, compiled for the GPU.
#include "kernels/cuda_launch.cuh"
#include "kernels/dense_attention.h"

namespace faultline::kernels {

#define FAULTLINE_INSTANTIATE(...) \
  template void cuda_launch<__VA_ARGS__>(const LaunchContext&, Grid, int, size_t, const __VA_ARGS__&)

FAULTLINE_INSTANTIATE(DenseAttentionBody<Bf16, false, false>);
FAULTLINE_INSTANTIATE(DenseAttentionBody<Bf16, false, true>);
FAULTLINE_INSTANTIATE(DenseAttentionBody<Bf16, true, false>);
FAULTLINE_INSTANTIATE(DenseAttentionBody<Bf16, true, true>);
FAULTLINE_INSTANTIATE(DenseAttentionBody<float, false, false>);
FAULTLINE_INSTANTIATE(DenseAttentionBody<float, false, true>);
FAULTLINE_INSTANTIATE(DenseAttentionBody<float, true, false>);
FAULTLINE_INSTANTIATE(DenseAttentionBody<float, true, true>);

#undef FAULTLINE_INSTANTIATE

}  // namespace faultline::kernels
