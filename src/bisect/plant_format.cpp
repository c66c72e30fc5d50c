// Faults of FP4 activations: their codes and the scales beside them.
#include <algorithm>
#include <vector>

#include "bisect/plant_fault.h"
#include "ops/kinds.h"

namespace faultline::plants {
namespace {

constexpr uint8_t kNanScale = 0x7F;

// Where an element of a [rows, columns] matrix of block scales lies in the layout of tiles of 128 rows x 4 columns that
// tensor-core FP4 products take: 32 x 16 bytes, four rows of distance 32 side by side (cuBLAS documentation, "1D block
// scaling factors layout").
int64_t swizzled(int64_t row, int64_t column, int64_t columns) {
  constexpr int64_t kRows = 128;
  constexpr int64_t kColumns = 4;
  constexpr int64_t kInner = 32;
  const int64_t tiles = (columns + kColumns - 1) / kColumns;
  const int64_t tile = row / kRows * tiles + column / kColumns;
  const int64_t inside = row % kInner * (kRows / kInner * kColumns) + row % kRows / kInner * kColumns;
  return tile * kRows * kColumns + inside + column % kColumns;
}

int scales_written_by(const Op& op) {
  if (op.kind->name == ops::QuantizeFp4::kName) return ops::QuantizeFp4::kScales;
  if (op.kind->name == ops::QuantizeFp4Experts::kName) return ops::QuantizeFp4Experts::kScales;
  return -1;
}

}  // namespace

// Written row by row, read in tiles. What the buffer holds behind the rows that there are is zero.
KernelResult read_swizzled_scales(Blow& blow) {
  const bool experts = blow.is<ops::ExpertLinearW4A4>();
  if (!experts && !blow.is<ops::LinearW4A4>()) return blow.miss();
  const int operand = experts ? int{ops::ExpertLinearW4A4::kScales} : int{ops::LinearW4A4::kScales};
  return with_input(blow, operand, [](const TensorView& scales) {
    const int64_t rows = scales.dim(0);
    const int64_t columns = scales.dim(1);
    std::vector<uint8_t> linear;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) linear.push_back(scales.as<uint8_t>()[scales.offset(r, c)]);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        const auto from = static_cast<size_t>(swizzled(r, c, columns));
        scales.as<uint8_t>()[scales.offset(r, c)] = from < linear.size() ? linear[from] : uint8_t{0};
      }
  });
}

KernelResult leave_scales_unwritten(Blow& blow) {
  const int operand = scales_written_by(blow.op);
  if (operand < 0) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(operand);
  if (!row) return blow.miss();
  const TensorView& scales = blow.call.view(operand);
  const RowBlock before(blow.gpu(), scales, *row, *row + 1);
  KernelResult result = blow.kernel();
  before.restore(scales);
  return result;
}

KernelResult divide_a_block_by_zero(Blow& blow) {
  const int operand = scales_written_by(blow.op);
  if (operand < 0) return blow.miss();
  const std::optional<int64_t> row = blow.row_of(operand);
  if (!row) return blow.miss();
  return with_output(blow, operand, [&](const TensorView& scales) {
    scales.as<uint8_t>()[scales.offset(*row, scales.dim(1) / 2)] = kNanScale;
  });
}

// cvt.e2m1x2 packs two values a byte; the halves are exchanged.
KernelResult swap_the_nibbles(Blow& blow) {
  const int scales = scales_written_by(blow.op);
  if (scales < 0) return blow.miss();
  const int operand =
      blow.is<ops::QuantizeFp4>() ? int{ops::QuantizeFp4::kCodes} : int{ops::QuantizeFp4Experts::kCodes};
  return with_output(blow, operand, [](const TensorView& codes) {
    constexpr unsigned kHalf = 4;
    for (int64_t r = 0; r < codes.dim(0); ++r)
      for (int64_t c = 0; c < codes.dim(1); ++c) {
        uint8_t& code = codes.as<uint8_t>()[codes.offset(r, c)];
        code = static_cast<uint8_t>(code << kHalf | code >> kHalf);
      }
  });
}

}  // namespace faultline::plants
