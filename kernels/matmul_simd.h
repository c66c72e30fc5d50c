// The vector loops of the matrix products, one build of them an instruction set, chosen when the program runs
// (Highway).
#pragma once

#include <cstdint>

namespace faultline::kernels {

// e2m1 codes of `columns` (a multiple of 16) as twice their value: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives.
void decode_e2m1_doubled(const uint8_t* codes, int64_t columns, int8_t* out);
void f16_to_floats(const uint16_t* values, int64_t count, float* out);
void e4m3_to_floats(const uint8_t* values, int64_t count, float* out);

// Tiles: `weights` rows of the weight (1 to kTileWeights, consecutive, with the given strides) times `rows` rows of x
// (any number), out[r * out_stride + i] for weight row i.
inline constexpr int64_t kTileWeights = 4;

void dot_f32(const float* x, int64_t x_stride, int64_t rows, const float* w, int64_t w_stride, int64_t weights,
             int64_t columns, float* out, int64_t out_stride);
void dot_bf16(const float* x, int64_t x_stride, int64_t rows, const uint16_t* w, int64_t w_stride, int64_t weights,
              int64_t columns, float* out, int64_t out_stride);
// Weights as decode_e2m1_doubled leaves them, row stride `columns`; half_scales has columns / 16 a row.
void dot_doubled(const float* x, int64_t x_stride, int64_t rows, const int8_t* w, const float* half_scales,
                 int64_t weights, int64_t columns, float* out, int64_t out_stride);
// Both sides in codes: x as Fp4Rows holds it, scales of w unscaled floats.
void dot_codes(const int16_t* x, const float* x_quarter_scales, int64_t rows, const int8_t* w, const float* w_scales,
               int64_t weights, int64_t columns, float* out, int64_t out_stride);

// The weight lies the other way round: out[r][c] = sum_i x[r][i] * w[i][c], w [k, columns].
void columns_f32(const float* x, int64_t x_stride, int64_t rows, const float* w, int64_t w_stride, int64_t k,
                 int64_t columns, float* out, int64_t out_stride);
void columns_bf16(const float* x, int64_t x_stride, int64_t rows, const uint16_t* w, int64_t w_stride, int64_t k,
                  int64_t columns, float* out, int64_t out_stride);

}  // namespace faultline::kernels
