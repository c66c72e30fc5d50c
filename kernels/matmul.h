// Matrix products with weights of every precision of the checkpoint, and the NVFP4 products: vectorised CPU bodies.
//
//   out[r][n] = sum_k x[r][k] * w[n][k]
//
// Weights are read as they lie in the checkpoint and decoded as they are multiplied. Sums are in float; their order
// depends on the processor's vector width, and on nothing else: a row gives the same bits whatever rows are beside it.
#pragma once

#include <cstdint>
#include <vector>

namespace faultline::kernels {

inline constexpr int64_t kFp4Block = 16;   // columns that share one e4m3 scale
inline constexpr int64_t kFp8Block = 128;  // rows and columns that share one fp32 scale, where FP8 comes in blocks

enum class WeightType : uint8_t { kF32, kBf16, kF16, kFp8, kFp4 };

// One matrix [rows, columns]. `stride` counts stored elements a row: bytes of two codes for kFp4.
struct MatmulWeight {
  WeightType type = WeightType::kF32;
  const void* values = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  // kFp4: e4m3 scales, one a kFp4Block columns.
  const uint8_t* fp4_scales = nullptr;
  // kFp8: F32 scales: null, one for all (scale_stride 0), or one a block of kFp8Block x kFp8Block.
  const float* fp8_scales = nullptr;
  int64_t scale_stride = 0;  // elements a row of scales
};

// x [rows, columns] floats, contiguous; out [rows, weight.rows] floats with a row stride. NVFP4's global scale is left
// to the caller's epilogue. `columns` of an NVFP4 weight is a multiple of kFp4Block.
void matmul(const float* x, int64_t rows, const MatmulWeight& weight, float* out, int64_t out_stride);

// The weight lies the other way round: out[r][c] = sum_k x[r][k] * w[k][c], with weight.rows = K. Not for kFp8, kFp4.
void matmul_kn(const float* x, int64_t rows, const MatmulWeight& weight, float* out, int64_t out_stride);

// NVFP4 activations, decoded once for any number of products: codes as twice their value, scales as floats.
class Fp4Rows {
 public:
  Fp4Rows(int64_t rows, int64_t columns);
  // `codes`: columns / 2 bytes; `scales`: columns / kFp4Block e4m3 bytes.
  void set(int64_t row, const uint8_t* codes, const uint8_t* scales);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  const int16_t* doubled(int64_t row) const { return doubled_.data() + row * columns_; }
  // A quarter of each scale: both factors of a product are doubled.
  const float* quarter_scales(int64_t row) const { return quarter_scales_.data() + row * (columns_ / kFp4Block); }

 private:
  int64_t rows_;
  int64_t columns_;
  std::vector<int16_t> doubled_;
  std::vector<float> quarter_scales_;
};

// Codes x codes: each block of 16 is an exact integer sum times an exact product of two scales; only the sum over
// blocks rounds. Neither global scale is applied.
void matmul_w4a4(const Fp4Rows& x, const MatmulWeight& weight, float* out, int64_t out_stride);

}  // namespace faultline::kernels
