// Looking through the values of a tensor for what should not be there.
#pragma once

#include <cstdint>
#include <string>

#include "base/tensor.h"
#include "model/checkpoint.h"

namespace faultline {

struct ScanResult {
  int64_t count = 0;    // offending elements
  int64_t first = -1;   // flat index of the first
  std::string problem;  // "NaN", "infinite", "zero", "negative": of the first
};

// NaN and infinite values. Integers and NVFP4 codes have none.
ScanResult scan_values(const TensorView& tensor);
// As scales: NaN, infinite, zero or negative. F32 or F8_E4M3.
ScanResult scan_scales(const TensorView& tensor);
// Block scales of an NVFP4 weight: a zero is harmless, and not counted, where all 16 codes of its block are zero
// anyway.
ScanResult scan_nvfp4_scales(const LinearWeight& weight);
// Rows of a matrix that are all zero.
ScanResult scan_zero_rows(const TensorView& matrix);

// "[3, 17]": the coordinates of a flat index in a contiguous tensor.
std::string coordinates(const TensorView& tensor, int64_t flat);

}  // namespace faultline
