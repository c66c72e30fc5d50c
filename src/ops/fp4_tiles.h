// How the W4A4 products are cut into tiles: what a tile that is applied late leaves stale.
#pragma once

#include <cstdint>

namespace faultline {

// Rows of the output that one tile of the flashinfer_cutlass products stores at once (the 128 x 128 x 256 tile of
// CUTLASS's NVFP4 kernels; flashinfer issue 2708 saw whole tiles of 128 rows unwritten).
inline constexpr int64_t kTileRows = 128;

}  // namespace faultline
