// Dense attention bodies of further backends, compiled for the GPU. None has a CUDA-only twin: the tensor-core body
// (cuda_attention.h) takes a slot for each key, not pages, and knows no pass for the maximum alone.
#include "kernels/cuda_launch.cuh"
#include "kernels/flashmla_dense.h"
#include "kernels/native_attention.h"
#include "kernels/paged_attention.h"

namespace faultline::kernels {

#define FAULTLINE_INSTANTIATE(...) \
  template void cuda_launch<__VA_ARGS__>(const LaunchContext&, Grid, int, size_t, const __VA_ARGS__&)

FAULTLINE_INSTANTIATE(PagedAttentionBody<Bf16, false>);
FAULTLINE_INSTANTIATE(PagedAttentionBody<Bf16, true>);
FAULTLINE_INSTANTIATE(PagedAttentionBody<float, false>);
FAULTLINE_INSTANTIATE(PagedAttentionBody<float, true>);
FAULTLINE_INSTANTIATE(FlashMlaDenseBody<Bf16, false>);
FAULTLINE_INSTANTIATE(FlashMlaDenseBody<Bf16, true>);
FAULTLINE_INSTANTIATE(FlashMlaDenseBody<float, false>);
FAULTLINE_INSTANTIATE(FlashMlaDenseBody<float, true>);
FAULTLINE_INSTANTIATE(CombineBody<Bf16, false, true>);
FAULTLINE_INSTANTIATE(CombineBody<Bf16, true, true>);
FAULTLINE_INSTANTIATE(CombineBody<float, false, true>);
FAULTLINE_INSTANTIATE(CombineBody<float, true, true>);
FAULTLINE_INSTANTIATE(NativeAttentionBody<Bf16, false>);
FAULTLINE_INSTANTIATE(NativeAttentionBody<Bf16, true>);
FAULTLINE_INSTANTIATE(NativeAttentionBody<float, false>);
FAULTLINE_INSTANTIATE(NativeAttentionBody<float, true>);

#undef FAULTLINE_INSTANTIATE

}  // namespace faultline::kernels
