#include "kernels/matmul.h"

#include <algorithm>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/matmul_simd.h"

namespace faultline::kernels {
namespace {

// Rows of x that stay in the second-level cache while the weight goes by; more rows decode the weight again.
constexpr int64_t kChunkRows = 32;

// Products are cut into parts of so many multiply-adds for the process's threads: some 100 microseconds, so that
// handing them out costs little.
constexpr int64_t kPartProducts = int64_t{1} << 21;

// `factor` is a power of two: exact.
void scales_to_floats(const uint8_t* scales, int64_t count, float factor, float* out) {
  e4m3_to_floats(scales, count, out);
  for (int64_t i = 0; i < count; ++i) out[i] *= factor;
}

const uint8_t* byte_row(const MatmulWeight& weight, int64_t row) {
  return static_cast<const uint8_t*>(weight.values) + row * weight.stride;
}

// F16 or FP8 weight rows [begin, begin + count) as floats, `columns` apart.
void dequantize(const MatmulWeight& weight, int64_t begin, int64_t count, float* out) {
  const int64_t columns = weight.columns;
  for (int64_t n = begin; n < begin + count; ++n, out += columns) {
    if (weight.type == WeightType::kF16) {
      f16_to_floats(static_cast<const uint16_t*>(weight.values) + n * weight.stride, columns, out);
      continue;
    }
    e4m3_to_floats(byte_row(weight, n), columns, out);
    if (weight.fp8_scales == nullptr) continue;
    const float* scales = weight.fp8_scales + n / kFp8Block * weight.scale_stride;
    const bool blocks = weight.scale_stride > 0;
    for (int64_t c = 0; c < columns; ++c) out[c] *= scales[blocks ? c / kFp8Block : 0];
  }
}

// Codes and scales of a tile of weight rows, decoded.
struct CodeTile {
  std::vector<int8_t> doubled;
  std::vector<float> scales;

  explicit CodeTile(int64_t columns)
      : doubled(static_cast<size_t>(kTileWeights * columns)),
        scales(static_cast<size_t>(kTileWeights * (columns / kFp4Block))) {}

  void decode(const MatmulWeight& weight, int64_t begin, int64_t count, float factor) {
    const int64_t blocks = weight.columns / kFp4Block;
    for (int64_t i = 0; i < count; ++i) {
      decode_e2m1_doubled(byte_row(weight, begin + i), weight.columns, doubled.data() + i * weight.columns);
      scales_to_floats(weight.fp4_scales + (begin + i) * weight.scale_stride, blocks, factor,
                       scales.data() + i * blocks);
    }
  }
};

void matmul_chunk(const float* x, int64_t rows, const MatmulWeight& weight, float* out, int64_t out_stride) {
  const int64_t columns = weight.columns;
  CodeTile tile(weight.type == WeightType::kFp4 ? columns : 0);
  std::vector<float> floats;
  for (int64_t n = 0; n < weight.rows; n += kTileWeights) {
    const int64_t count = std::min(kTileWeights, weight.rows - n);
    switch (weight.type) {
      case WeightType::kF32:
        dot_f32(x, columns, rows, static_cast<const float*>(weight.values) + n * weight.stride, weight.stride, count,
                columns, out + n, out_stride);
        break;
      case WeightType::kBf16:
        dot_bf16(x, columns, rows, static_cast<const uint16_t*>(weight.values) + n * weight.stride, weight.stride,
                 count, columns, out + n, out_stride);
        break;
      case WeightType::kFp4:
        tile.decode(weight, n, count, 0.5f);
        dot_doubled(x, columns, rows, tile.doubled.data(), tile.scales.data(), count, columns, out + n, out_stride);
        break;
      case WeightType::kF16:
      case WeightType::kFp8:
        floats.resize(static_cast<size_t>(kTileWeights * columns));
        dequantize(weight, n, count, floats.data());
        dot_f32(x, columns, rows, floats.data(), columns, count, columns, out + n, out_stride);
        break;
    }
  }
}

// Weight rows [begin, end) of a product.
MatmulWeight rows_of(const MatmulWeight& weight, int64_t begin, int64_t end) {
  MatmulWeight part = weight;
  part.rows = end - begin;
  switch (weight.type) {
    case WeightType::kF32:
      part.values = static_cast<const float*>(weight.values) + begin * weight.stride;
      break;
    case WeightType::kBf16:
    case WeightType::kF16:
      part.values = static_cast<const uint16_t*>(weight.values) + begin * weight.stride;
      break;
    case WeightType::kFp8:
      part.values = byte_row(weight, begin);
      if (weight.fp8_scales != nullptr) part.fp8_scales += begin / kFp8Block * weight.scale_stride;
      break;
    case WeightType::kFp4:
      part.values = byte_row(weight, begin);
      part.fp4_scales += begin * weight.scale_stride;
      break;
  }
  return part;
}

// Calls work(first weight row, part) for parts that together are all of the weight. Each output is one dot product, so
// cutting changes no bit.
template <class Work>
void over_parts(int64_t rows, const MatmulWeight& weight, const Work& work) {
  if (parallel_threads() == 1) {
    work(int64_t{0}, weight);
    return;
  }
  const int64_t wanted = kPartProducts / std::max<int64_t>(1, rows * weight.columns);
  const int64_t part = std::max<int64_t>(1, wanted / kFp8Block) * kFp8Block;
  parallel_for((weight.rows + part - 1) / part, [&](int64_t i) {
    const int64_t begin = i * part;
    work(begin, rows_of(weight, begin, std::min(begin + part, weight.rows)));
  });
}

}  // namespace

void matmul(const float* x, int64_t rows, const MatmulWeight& weight, float* out, int64_t out_stride) {
  FAULTLINE_CHECK(weight.type != WeightType::kFp4 || weight.columns % kFp4Block == 0);
  over_parts(rows, weight, [&](int64_t begin, const MatmulWeight& part) {
    for (int64_t r = 0; r < rows; r += kChunkRows)
      matmul_chunk(x + r * weight.columns, std::min(kChunkRows, rows - r), part, out + r * out_stride + begin,
                   out_stride);
  });
}

void matmul_kn(const float* x, int64_t rows, const MatmulWeight& weight, float* out, int64_t out_stride) {
  const int64_t k = weight.rows;
  const int64_t columns = weight.columns;
  if (weight.type == WeightType::kF32) {
    columns_f32(x, k, rows, static_cast<const float*>(weight.values), weight.stride, k, columns, out, out_stride);
    return;
  }
  if (weight.type == WeightType::kBf16) {
    columns_bf16(x, k, rows, static_cast<const uint16_t*>(weight.values), weight.stride, k, columns, out, out_stride);
    return;
  }
  FAULTLINE_CHECK(weight.type == WeightType::kF16);
  std::vector<float> floats(static_cast<size_t>(k * columns));
  dequantize(weight, 0, k, floats.data());
  columns_f32(x, k, rows, floats.data(), columns, k, columns, out, out_stride);
}

Fp4Rows::Fp4Rows(int64_t rows, int64_t columns)
    : rows_(rows),
      columns_(columns),
      doubled_(static_cast<size_t>(rows * columns)),
      quarter_scales_(static_cast<size_t>(rows * (columns / kFp4Block))) {
  FAULTLINE_CHECK(columns % kFp4Block == 0);
}

void Fp4Rows::set(int64_t row, const uint8_t* codes, const uint8_t* scales) {
  int8_t block[kFp4Block];
  for (int64_t b = 0; b < columns_ / kFp4Block; ++b) {
    decode_e2m1_doubled(codes + b * kFp4Block / 2, kFp4Block, block);
    std::copy(block, block + kFp4Block, doubled_.data() + row * columns_ + b * kFp4Block);
  }
  const int64_t blocks = columns_ / kFp4Block;
  scales_to_floats(scales, blocks, 0.25f, quarter_scales_.data() + row * blocks);
}

void matmul_w4a4(const Fp4Rows& x, const MatmulWeight& weight, float* out, int64_t out_stride) {
  FAULTLINE_CHECK(weight.type == WeightType::kFp4 && weight.columns == x.columns());
  over_parts(x.rows(), weight, [&](int64_t begin, const MatmulWeight& part) {
    CodeTile tile(part.columns);
    for (int64_t r = 0; r < x.rows(); r += kChunkRows)
      for (int64_t n = 0; n < part.rows; n += kTileWeights) {
        const int64_t count = std::min(kTileWeights, part.rows - n);
        tile.decode(part, n, count, 1.0f);
        dot_codes(x.doubled(r), x.quarter_scales(r), std::min(kChunkRows, x.rows() - r), tile.doubled.data(),
                  tile.scales.data(), count, part.columns, out + r * out_stride + begin + n, out_stride);
      }
  });
}

}  // namespace faultline::kernels
