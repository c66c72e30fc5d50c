// Sparse attention bodies of further backends, compiled for the GPU. fa3's is SparseAttentionBody
// (cuda_sparse_attention.cu). None has a CUDA-only twin: what they mask and read is none of the rules of
// cuda_attention.h.
#include "kernels/cuda_launch.cuh"
#include "kernels/sparse_mla_sm120.h"
#include "kernels/tilelang_attention.h"

namespace faultline::kernels {

#define FAULTLINE_INSTANTIATE(...) \
  template void cuda_launch<__VA_ARGS__>(const LaunchContext&, Grid, int, size_t, const __VA_ARGS__&)

FAULTLINE_INSTANTIATE(TilelangBody<Bf16, false>);
FAULTLINE_INSTANTIATE(TilelangBody<Bf16, true>);
FAULTLINE_INSTANTIATE(TilelangBody<float, false>);
FAULTLINE_INSTANTIATE(TilelangBody<float, true>);
FAULTLINE_INSTANTIATE(SparseMlaBody<Bf16, false>);
FAULTLINE_INSTANTIATE(SparseMlaBody<Bf16, true>);
FAULTLINE_INSTANTIATE(SparseMlaBody<float, false>);
FAULTLINE_INSTANTIATE(SparseMlaBody<float, true>);
FAULTLINE_INSTANTIATE(ZeroScratchBody<false>);
FAULTLINE_INSTANTIATE(ZeroScratchBody<true>);

#undef FAULTLINE_INSTANTIATE

}  // namespace faultline::kernels
