// Softmax, sampling and argmax bodies, compiled for the GPU.
#include "kernels/cuda_launch.cuh"
#include "kernels/sampling.h"

namespace faultline::kernels {

#define FAULTLINE_INSTANTIATE(...) \
  template void cuda_launch<__VA_ARGS__>(const LaunchContext&, Grid, int, size_t, const __VA_ARGS__&)

FAULTLINE_INSTANTIATE(SoftmaxBody<Bf16, false>);
FAULTLINE_INSTANTIATE(SoftmaxBody<Bf16, true>);
FAULTLINE_INSTANTIATE(SoftmaxBody<float, false>);
FAULTLINE_INSTANTIATE(SoftmaxBody<float, true>);
FAULTLINE_INSTANTIATE(SampleBody<false>);
FAULTLINE_INSTANTIATE(SampleBody<true>);
FAULTLINE_INSTANTIATE(ArgmaxBody<Bf16, false>);
FAULTLINE_INSTANTIATE(ArgmaxBody<Bf16, true>);
FAULTLINE_INSTANTIATE(ArgmaxBody<float, false>);
FAULTLINE_INSTANTIATE(ArgmaxBody<float, true>);

#undef FAULTLINE_INSTANTIATE

}  // namespace faultline::kernels
