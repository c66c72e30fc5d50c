// Norm, RoPE and Hadamard bodies, compiled for the GPU.
#include "kernels/cuda_launch.cuh"
#include "kernels/hadamard.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace faultline::kernels {

#define FAULTLINE_INSTANTIATE(...) \
  template void cuda_launch<__VA_ARGS__>(const LaunchContext&, Grid, int, size_t, const __VA_ARGS__&)

FAULTLINE_INSTANTIATE(RmsNormBody<Bf16, false>);
FAULTLINE_INSTANTIATE(RmsNormBody<Bf16, true>);
FAULTLINE_INSTANTIATE(RmsNormBody<float, false>);
FAULTLINE_INSTANTIATE(RmsNormBody<float, true>);
FAULTLINE_INSTANTIATE(LayerNormBody<Bf16, false>);
FAULTLINE_INSTANTIATE(LayerNormBody<Bf16, true>);
FAULTLINE_INSTANTIATE(LayerNormBody<float, false>);
FAULTLINE_INSTANTIATE(LayerNormBody<float, true>);
FAULTLINE_INSTANTIATE(RopeBody<Bf16, false>);
FAULTLINE_INSTANTIATE(RopeBody<Bf16, true>);
FAULTLINE_INSTANTIATE(RopeBody<float, false>);
FAULTLINE_INSTANTIATE(RopeBody<float, true>);
FAULTLINE_INSTANTIATE(HadamardBody<Bf16, false>);
FAULTLINE_INSTANTIATE(HadamardBody<Bf16, true>);
FAULTLINE_INSTANTIATE(HadamardBody<float, false>);
FAULTLINE_INSTANTIATE(HadamardBody<float, true>);

#undef FAULTLINE_INSTANTIATE

}  // namespace faultline::kernels
