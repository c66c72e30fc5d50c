// Random weights of every precision, as a checkpoint stores them.
#pragma once

#include <string>
#include <vector>

#include "op_harness.h"

namespace faultline::test {

enum class Precision { kF32, kBf16, kF16, kFp8, kFp8Scaled, kFp8Blocks, kNvfp4 };

inline constexpr Precision kEveryPrecision[] = {Precision::kF32,  Precision::kBf16,      Precision::kF16,
                                                Precision::kFp8,  Precision::kFp8Scaled, Precision::kFp8Blocks,
                                                Precision::kNvfp4};

inline Tensor bytes_tensor(Dtype dtype, std::initializer_list<int64_t> shape, const std::vector<uint8_t>& values) {
  Tensor tensor(dtype, shape);
  REQUIRE(tensor.bytes() == values.size());
  if (!values.empty()) std::memcpy(tensor.view().data, values.data(), values.size());
  return tensor;
}
inline Tensor scalar(float value) {
  Tensor tensor(Dtype::kF32, {1});
  tensor.view().store(0, value);
  return tensor;
}
inline Tensor random_codes(Random& random, int64_t rows, int64_t columns) {
  Tensor tensor(Dtype::kU8, {rows, columns / 2});
  for (int64_t i = 0; i < tensor.view().elements(); ++i)
    tensor.view().as<uint8_t>()[i] = static_cast<uint8_t>(random.below(256));
  return tensor;
}
// e4m3 scales between 0.5 and 1.875.
inline Tensor random_scales(Random& random, int64_t rows, int64_t columns) {
  Tensor tensor(Dtype::kF8E4M3, {rows, columns / 16});
  for (int64_t i = 0; i < tensor.view().elements(); ++i)
    tensor.view().as<uint8_t>()[i] = static_cast<uint8_t>(0x30 + random.below(16));
  return tensor;
}

inline std::vector<TensorView> views_of(const std::vector<Tensor>& tensors) {
  std::vector<TensorView> result;
  result.reserve(tensors.size());
  for (const Tensor& tensor : tensors) result.push_back(tensor.view());
  return result;
}

// A list of matrices of one precision, ready to be three operands of an op.
class WeightList {
 public:
  WeightList(Precision precision, Random& random, std::initializer_list<int64_t> rows, int64_t columns)
      : precision_(precision) {
    for (const int64_t n : rows) add(random, n, columns);
  }
  void add(Random& random, int64_t n, int64_t k) {
    constexpr float kSize = 0.1f;
    switch (precision_) {
      case Precision::kF32:
        values_.push_back(random.values(Dtype::kF32, {n, k}, kSize));
        break;
      case Precision::kBf16:
        values_.push_back(random.values(Dtype::kBF16, {n, k}, kSize));
        break;
      case Precision::kF16: {
        Tensor halves(Dtype::kF16, {n, k});
        // Every exponent from subnormals up, every sign; no infinity.
        for (int64_t i = 0; i < n * k; ++i)
          halves.view().as<F16>()[i] = F16{static_cast<uint16_t>(random.below(2) * 0x8000 + random.below(0x3000))};
        values_.push_back(std::move(halves));
        break;
      }
      case Precision::kFp8:
      case Precision::kFp8Scaled:
      case Precision::kFp8Blocks:
        values_.push_back(random.values(Dtype::kF8E4M3, {n, k}, kSize));
        break;
      case Precision::kNvfp4:
        values_.push_back(random_codes(random, n, k));
        scales_.push_back(random_scales(random, n, k));
        globals_.push_back(scalar(0.01f + 0.01f * static_cast<float>(globals_.size())));
        break;
    }
    if (precision_ == Precision::kFp8Scaled) scales_.push_back(scalar(0.75f));
    if (precision_ == Precision::kFp8Blocks) {
      Tensor blocks(Dtype::kF32, {(n + 127) / 128, (k + 127) / 128});
      for (int64_t i = 0; i < blocks.view().elements(); ++i) blocks.view().store(i, 0.5f + static_cast<float>(i));
      scales_.push_back(std::move(blocks));
    }
  }

  void add_to(OpHarness& op) const {
    op.add_list(views(values_), precision_ == Precision::kNvfp4 ? Format::kNvfp4 : Format::kPlain);
    op.add_list(views(scales_)).add_list(views(globals_));
  }
  const char* kernel() const { return precision_ == Precision::kNvfp4 ? "marlin" : "dense"; }
  Tensor& values(size_t i) { return values_[i]; }
  Tensor& scales(size_t i) { return scales_[i]; }
  Tensor& global(size_t i) { return globals_[i]; }

 private:
  static std::vector<TensorView> views(const std::vector<Tensor>& tensors) {
    std::vector<TensorView> result = views_of(tensors);
    if (result.empty()) result.push_back(TensorView{});
    return result;
  }
  Precision precision_;
  std::vector<Tensor> values_, scales_, globals_;
};

}  // namespace faultline::test
