// Elementwise, embedding and gather bodies, compiled for the GPU.
#include "kernels/cuda_launch.cuh"
#include "kernels/elementwise.h"

namespace faultline::kernels {

#define FAULTLINE_INSTANTIATE(...) \
  template void cuda_launch<__VA_ARGS__>(const LaunchContext&, Grid, int, size_t, const __VA_ARGS__&)

FAULTLINE_INSTANTIATE(SiluMulBody<Bf16, false>);
FAULTLINE_INSTANTIATE(SiluMulBody<Bf16, true>);
FAULTLINE_INSTANTIATE(SiluMulBody<float, false>);
FAULTLINE_INSTANTIATE(SiluMulBody<float, true>);
FAULTLINE_INSTANTIATE(AddBody<Bf16, false>);
FAULTLINE_INSTANTIATE(AddBody<Bf16, true>);
FAULTLINE_INSTANTIATE(AddBody<float, false>);
FAULTLINE_INSTANTIATE(AddBody<float, true>);
FAULTLINE_INSTANTIATE(GatherRowsBody<Bf16, false>);
FAULTLINE_INSTANTIATE(GatherRowsBody<Bf16, true>);
FAULTLINE_INSTANTIATE(GatherRowsBody<float, false>);
FAULTLINE_INSTANTIATE(GatherRowsBody<float, true>);
FAULTLINE_INSTANTIATE(EmbedBody<Bf16, false>);
FAULTLINE_INSTANTIATE(EmbedBody<Bf16, true>);
FAULTLINE_INSTANTIATE(EmbedBody<float, false>);
FAULTLINE_INSTANTIATE(EmbedBody<float, true>);

#undef FAULTLINE_INSTANTIATE

}  // namespace faultline::kernels
