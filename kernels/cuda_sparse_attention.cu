// Sparse attention bodies, compiled for the GPU.
#include "kernels/cuda_launch.cuh"
#include "kernels/sparse_attention.h"

namespace faultline::kernels {

#define FAULTLINE_INSTANTIATE(...) \
  template void cuda_launch<__VA_ARGS__>(const LaunchContext&, Grid, int, size_t, const __VA_ARGS__&)

FAULTLINE_INSTANTIATE(SparseAttentionBody<Bf16, false, false>);
FAULTLINE_INSTANTIATE(SparseAttentionBody<Bf16, false, true>);
FAULTLINE_INSTANTIATE(SparseAttentionBody<Bf16, true, false>);
FAULTLINE_INSTANTIATE(SparseAttentionBody<Bf16, true, true>);
FAULTLINE_INSTANTIATE(SparseAttentionBody<float, false, false>);
FAULTLINE_INSTANTIATE(SparseAttentionBody<float, false, true>);
FAULTLINE_INSTANTIATE(SparseAttentionBody<float, true, false>);
FAULTLINE_INSTANTIATE(SparseAttentionBody<float, true, true>);

#undef FAULTLINE_INSTANTIATE

}  // namespace faultline::kernels
