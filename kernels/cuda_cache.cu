// Cache writers and gathers, and the quantisers of activations, compiled for the GPU.
#include "kernels/cache_gather.h"
#include "kernels/cache_write.h"
#include "kernels/cuda_launch.cuh"
#include "kernels/quantize_fp4.h"
#include "kernels/round_fp8.h"

namespace faultline::kernels {

#define FAULTLINE_INSTANTIATE(...) \
  template void cuda_launch<__VA_ARGS__>(const LaunchContext&, Grid, int, size_t, const __VA_ARGS__&)

FAULTLINE_INSTANTIATE(CacheGatherBody<Bf16, false>);
FAULTLINE_INSTANTIATE(CacheGatherBody<Bf16, true>);
FAULTLINE_INSTANTIATE(CacheGatherBody<float, false>);
FAULTLINE_INSTANTIATE(CacheGatherBody<float, true>);
FAULTLINE_INSTANTIATE(StoreRowsBody<Bf16, false>);
FAULTLINE_INSTANTIATE(StoreRowsBody<Bf16, true>);
FAULTLINE_INSTANTIATE(StoreRowsBody<float, false>);
FAULTLINE_INSTANTIATE(StoreRowsBody<float, true>);
FAULTLINE_INSTANTIATE(PackRowsBody<Bf16, false>);
FAULTLINE_INSTANTIATE(PackRowsBody<Bf16, true>);
FAULTLINE_INSTANTIATE(PackRowsBody<float, false>);
FAULTLINE_INSTANTIATE(PackRowsBody<float, true>);
FAULTLINE_INSTANTIATE(StoreIndexKeysBody<Bf16, false>);
FAULTLINE_INSTANTIATE(StoreIndexKeysBody<Bf16, true>);
FAULTLINE_INSTANTIATE(StoreIndexKeysBody<float, false>);
FAULTLINE_INSTANTIATE(StoreIndexKeysBody<float, true>);
FAULTLINE_INSTANTIATE(QuantizeFp4Body<Bf16, false>);
FAULTLINE_INSTANTIATE(QuantizeFp4Body<Bf16, true>);
FAULTLINE_INSTANTIATE(QuantizeFp4Body<float, false>);
FAULTLINE_INSTANTIATE(QuantizeFp4Body<float, true>);
FAULTLINE_INSTANTIATE(QuantizeFp4ExpertsBody<Bf16, false>);
FAULTLINE_INSTANTIATE(QuantizeFp4ExpertsBody<Bf16, true>);
FAULTLINE_INSTANTIATE(QuantizeFp4ExpertsBody<float, false>);
FAULTLINE_INSTANTIATE(QuantizeFp4ExpertsBody<float, true>);
FAULTLINE_INSTANTIATE(RoundFp8Body<Bf16, false>);
FAULTLINE_INSTANTIATE(RoundFp8Body<Bf16, true>);
FAULTLINE_INSTANTIATE(RoundFp8Body<float, false>);
FAULTLINE_INSTANTIATE(RoundFp8Body<float, true>);

#undef FAULTLINE_INSTANTIATE

}  // namespace faultline::kernels
