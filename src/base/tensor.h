// Views of typed, strided memory. A view owns nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/codec.h"
#include "base/dtype.h"
#include "base/error.h"

namespace faultline {

inline constexpr int kMaxRank = 4;

// `shape` and `stride` count elements; the last dimension is contiguous (stride 1) in every tensor of the project.
struct TensorView {
  std::byte* data = nullptr;
  Dtype dtype = Dtype::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> stride{};

  int64_t elements() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= shape[i];
    return count;
  }
  int64_t dim(int i) const { return shape[i]; }
  // Elements from `data` to one past the last element that the view reaches.
  int64_t extent() const {
    if (elements() == 0) return 0;
    int64_t last = 0;
    for (int i = 0; i < rank; ++i) last += (shape[i] - 1) * stride[i];
    return last + 1;
  }
  bool contiguous() const {
    int64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (shape[i] != 1 && stride[i] != expected) return false;
      expected *= shape[i];
    }
    return true;
  }
  int64_t offset(int64_t i) const { return i * stride[0]; }
  int64_t offset(int64_t i, int64_t j) const { return i * stride[0] + j * stride[1]; }
  int64_t offset(int64_t i, int64_t j, int64_t k) const { return i * stride[0] + j * stride[1] + k * stride[2]; }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }

  // The value at a flat element offset (see offset()), widened to float. I64 and I32 lose precision above 2^24.
  float load(int64_t at) const;
  // Stores with the rounding of the dtype: bf16 and f16 to nearest even, e4m3 to nearest even with NaN above 448.
  void store(int64_t at, float value) const;
  // Integer dtypes only.
  int64_t load_index(int64_t at) const;
  void store_index(int64_t at, int64_t value) const;
};

// A contiguous view.
TensorView make_view(void* data, Dtype dtype, std::initializer_list<int64_t> shape);
// Columns [begin, begin + count) of the last dimension.
TensorView slice_last(const TensorView& view, int64_t begin, int64_t count);
// Rows [begin, begin + count) of the first dimension.
TensorView slice_rows(const TensorView& view, int64_t begin, int64_t count);
// [a, b*c] seen as [a, b, c].
TensorView split_last(const TensorView& view, int64_t count, int64_t size);

// The raw bits of one element, for reports (JSON has no NaN).
uint32_t raw_bits(const TensorView& view, int64_t at);

}  // namespace faultline
