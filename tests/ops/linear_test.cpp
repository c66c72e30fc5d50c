#include <hwy/targets.h>

#include "ops/fp4_tiles.h"
#include "ops/kinds.h"
#include "ops/weights.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;
using ops::Linear;
using ops::LinearW4A4;

namespace {

OpHarness linear(const Tensor& x, const WeightList& weights, const Tensor& out) {
  OpHarness op(Linear::kName);
  op.add(x);
  weights.add_to(op);
  op.add(out);
  return op;
}

OpHarness w4a4(const Tensor& codes, const Tensor& scales, const WeightList& weights, const std::vector<Tensor>& inputs,
               const Tensor& out) {
  OpHarness op(LinearW4A4::kName);
  op.add(codes).add(scales);
  weights.add_to(op);
  op.add_list(views_of(inputs)).add(out);
  return op;
}

// Row r holds 1 in column r.
Tensor one_hot_rows(int64_t columns) {
  Tensor x(Dtype::kF32, {columns, columns});
  for (int64_t r = 0; r < columns; ++r) x.view().store(r * columns + r, 1);
  return x;
}

}  // namespace

TEST_CASE("products with every precision agree with the reference, whatever the rows and columns") {
  Random random(1);
  for (const Precision precision : kEveryPrecision)
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
      for (const int64_t rows : {0, 1, 2, 3, 4, 33, 129})
        for (const int64_t columns : {16, 48, 272}) {
          WeightList weights(precision, random, {7, 129}, columns);
          const Tensor x = random.values(dtype, {rows, columns});
          Tensor out(dtype, {rows, 136});
          linear(x, weights, out).require_agreement(weights.kernel(), Linear::kOut, out);
        }
}

TEST_CASE("products agree with the reference on every instruction set that this machine has") {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    INFO(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    Random random(13);
    for (const Precision precision : kEveryPrecision) {
      WeightList weights(precision, random, {7}, 80);
      const Tensor x = random.values(Dtype::kF32, {5, 80});
      Tensor out(Dtype::kF32, {5, 7});
      linear(x, weights, out).require_agreement(weights.kernel(), Linear::kOut, out);
    }
    WeightList weights(Precision::kNvfp4, random, {7}, 80);
    const Tensor codes = random_codes(random, 5, 80);
    const Tensor scales = random_scales(random, 5, 80);
    std::vector<Tensor> inputs;
    inputs.push_back(scalar(0.125f));
    Tensor out(Dtype::kF32, {5, 7});
    w4a4(codes, scales, weights, inputs, out).require_agreement("flashinfer_cutlass", LinearW4A4::kOut, out);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST_CASE("dense products take columns that fill no vector") {
  Random random(2);
  for (const Precision precision : {Precision::kF32, Precision::kBf16, Precision::kF16, Precision::kFp8Blocks})
    for (const int64_t columns : {1, 7, 131}) {
      WeightList weights(precision, random, {5}, columns);
      const Tensor x = random.values(Dtype::kBF16, {3, columns});
      Tensor out(Dtype::kF32, {3, 5});
      linear(x, weights, out).require_agreement("dense", Linear::kOut, out);
    }
}

TEST_CASE("every NVFP4 byte decodes to its two values, low nibble first") {
  constexpr int64_t kColumns = 512;
  Random random(3);
  WeightList weights(Precision::kNvfp4, random, {1}, kColumns);
  for (int byte = 0; byte < 256; ++byte) weights.values(0).view().as<uint8_t>()[byte] = static_cast<uint8_t>(byte);
  weights.scales(0).fill(0x38);  // 1.0
  weights.global(0).view().store(0, 0.5f);
  const Tensor x = one_hot_rows(kColumns);
  Tensor out(Dtype::kF32, {kColumns, 1});
  REQUIRE(!linear(x, weights, out).run("marlin"));
  for (int byte = 0; byte < 256; ++byte) {
    CHECK(out.at(2 * byte) == 0.5f * e2m1_to_float(static_cast<uint8_t>(byte & 15)));
    CHECK(out.at(2 * byte + 1) == 0.5f * e2m1_to_float(static_cast<uint8_t>(byte >> 4)));
  }
}

TEST_CASE("every NVFP4 block scale counts as its e4m3 value, NaN included") {
  Random random(4);
  WeightList weights(Precision::kNvfp4, random, {256}, 16);
  weights.values(0).fill(0x22);  // 1.0
  for (int code = 0; code < 256; ++code) weights.scales(0).view().as<uint8_t>()[code] = static_cast<uint8_t>(code);
  weights.global(0).view().store(0, 1);
  Tensor x(Dtype::kF32, {1, 16});
  x.view().store(3, 1);
  Tensor out(Dtype::kF32, {1, 256});
  REQUIRE(!linear(x, weights, out).run("marlin"));
  for (int code = 0; code < 256; ++code) {
    const float expected = e4m3_to_float(static_cast<uint8_t>(code));
    CHECK((std::isnan(expected) ? std::isnan(out.at(code)) : out.at(code) == expected));
  }
}

TEST_CASE("every FP8 and every F16 code decodes to its value") {
  Random random(5);
  WeightList fp8(Precision::kFp8, random, {16}, 16);
  for (int code = 0; code < 256; ++code) fp8.values(0).view().as<uint8_t>()[code] = static_cast<uint8_t>(code);
  const Tensor x = one_hot_rows(16);
  Tensor out(Dtype::kF32, {16, 16});
  REQUIRE(!linear(x, fp8, out).run("dense"));
  for (int row = 0; row < 16; ++row) {
    bool has_nan = false;  // NaN times the zeros of a one-hot row spoils its whole weight row
    for (int c = 0; c < 16; ++c) has_nan |= e4m3_is_nan(static_cast<uint8_t>(row * 16 + c));
    for (int c = 0; c < 16; ++c) {
      const float value = out.at(c * 16 + row);
      CHECK((has_nan ? std::isnan(value) : value == e4m3_to_float(static_cast<uint8_t>(row * 16 + c))));
    }
  }
  constexpr int64_t kHalves = 0x7C00;  // finite, positive; 32 columns a row
  WeightList f16(Precision::kF16, random, {kHalves / 16}, 16);
  for (int64_t code = 0; code < kHalves; ++code)
    f16.values(0).view().as<F16>()[code] = F16{static_cast<uint16_t>(code)};
  Tensor halves(Dtype::kF32, {16, kHalves / 16});
  REQUIRE(!linear(x, f16, halves).run("dense"));
  int64_t wrong = 0;
  for (int64_t code = 0; code < kHalves; ++code)
    if (halves.at(code % 16 * (kHalves / 16) + code / 16) != to_float(F16{static_cast<uint16_t>(code)})) ++wrong;
  CHECK(wrong == 0);
}

TEST_CASE("a row's product has the same bits alone and beside other rows") {
  Random random(6);
  for (const Precision precision : kEveryPrecision) {
    WeightList weights(precision, random, {6, 11}, 144);
    const Tensor x = random.values(Dtype::kF32, {70, 144});
    Tensor together(Dtype::kF32, {70, 17});
    REQUIRE(!linear(x, weights, together).run(weights.kernel()));
    for (const int64_t row : {0, 1, 31, 32, 69}) {
      Tensor one(Dtype::kF32, {1, 144});
      for (int64_t c = 0; c < 144; ++c) one.view().store(c, x.at(row * 144 + c));
      Tensor alone(Dtype::kF32, {1, 17});
      REQUIRE(!linear(one, weights, alone).run(weights.kernel()));
      for (int64_t n = 0; n < 17; ++n) CHECK(float_bits(alone.at(n)) == float_bits(together.at(row * 17 + n)));
    }
  }
}

TEST_CASE("a product reads and writes columns of wider tensors") {
  Random random(7);
  WeightList weights(Precision::kBf16, random, {5}, 24);
  const Tensor wide = random.values(Dtype::kBF16, {3, 40});
  Tensor narrow(Dtype::kBF16, {3, 24});
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < 24; ++c) narrow.view().store(r * 24 + c, wide.at(r * 40 + 8 + c));
  Tensor expected(Dtype::kBF16, {3, 5});
  REQUIRE(!linear(narrow, weights, expected).run("dense"));
  Tensor wide_out(Dtype::kBF16, {3, 9});
  OpHarness op(Linear::kName);
  op.add_list({slice_last(wide.view(), 8, 24)});
  weights.add_to(op);
  op.add_list({slice_last(wide_out.view(), 2, 5)});
  REQUIRE(!op.run("dense"));
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < 9; ++c)
      CHECK(wide_out.at(r * 9 + c) == (c >= 2 && c < 7 ? expected.at(r * 5 + c - 2) : 0.0f));
}

TEST_CASE("a NaN in x stays in its row, and an infinite weight in its column") {
  Random random(8);
  WeightList weights(Precision::kF32, random, {5}, 32);
  weights.values(0).view().store(3 * 32 + 9, INFINITY);
  Tensor x = random.values(Dtype::kF32, {3, 32});
  x.view().store(1 * 32 + 4, std::nanf(""));
  Tensor out(Dtype::kF32, {3, 5});
  REQUIRE(!linear(x, weights, out).run("dense"));
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t n = 0; n < 5; ++n) {
      CHECK(std::isnan(out.at(r * 5 + n)) == (r == 1));
      CHECK(std::isinf(out.at(r * 5 + n)) == (r != 1 && n == 3));
    }
}

TEST_CASE("the W4A4 product agrees with both references, in tiles and past them") {
  Random random(9);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{3}, kTileRows, kTileRows + 1})
      for (const int64_t columns : {16, 48, 288}) {
        WeightList weights(Precision::kNvfp4, random, {9, 6}, columns);
        const Tensor codes = random_codes(random, rows, columns);
        const Tensor scales = random_scales(random, rows, columns);
        std::vector<Tensor> inputs;
        inputs.push_back(scalar(0.125f));
        inputs.push_back(scalar(0.25f));
        Tensor out(dtype, {rows, 15});
        OpHarness op = w4a4(codes, scales, weights, inputs, out);
        op.require_agreement("flashinfer_cutlass", LinearW4A4::kOut, out);
        Tensor spec(dtype, {rows, 15});
        op.replace(LinearW4A4::kOut, spec);
        find_kernel(LinearW4A4::kName, "flashinfer_cutlass")->spec(op.call());
        const Tolerance tolerance = tolerance_for(LinearW4A4::kName, dtype);
        for (int64_t i = 0; i < rows * 15; ++i)
          CHECK(std::abs(out.at(i) - spec.at(i)) <= tolerance.atol + tolerance.rtol * std::abs(spec.at(i)));
      }
}

TEST_CASE("every pair of NVFP4 codes multiplies exactly") {
  Random random(10);
  WeightList weights(Precision::kNvfp4, random, {16}, 16);
  Tensor codes(Dtype::kU8, {16, 8});
  codes.fill(0);
  weights.values(0).fill(0);
  for (int code = 0; code < 16; ++code) {  // in column 5, a high nibble
    codes.view().as<uint8_t>()[code * 8 + 2] = static_cast<uint8_t>(code << 4);
    weights.values(0).view().as<uint8_t>()[code * 8 + 2] = static_cast<uint8_t>(code << 4);
  }
  Tensor scales(Dtype::kF8E4M3, {16, 1});
  scales.fill(0x40);             // 2.0
  weights.scales(0).fill(0x30);  // 0.5
  weights.global(0).view().store(0, 1);
  std::vector<Tensor> inputs;
  inputs.push_back(scalar(1));
  Tensor out(Dtype::kF32, {16, 16});
  REQUIRE(!w4a4(codes, scales, weights, inputs, out).run("flashinfer_cutlass"));
  for (int a = 0; a < 16; ++a)
    for (int b = 0; b < 16; ++b)
      CHECK(out.at(a * 16 + b) == e2m1_to_float(static_cast<uint8_t>(a)) * e2m1_to_float(static_cast<uint8_t>(b)));
}

TEST_CASE("the W4A4 epilogue takes the largest input scale, a zero one included") {
  Random random(11);
  WeightList weights(Precision::kNvfp4, random, {4}, 32);
  const Tensor codes = random_codes(random, 2, 32);
  const Tensor scales = random_scales(random, 2, 32);
  const auto product = [&](float first, float second) {
    std::vector<Tensor> inputs;
    inputs.push_back(scalar(first));
    inputs.push_back(scalar(second));
    Tensor out(Dtype::kF32, {2, 4});
    REQUIRE(!w4a4(codes, scales, weights, inputs, out).run("flashinfer_cutlass"));
    return out;
  };
  const Tensor base = product(1, 0.5f);
  CHECK(product(0.5f, 2).at(0) == 2 * base.at(0));
  CHECK(base.at(0) != 0);
  CHECK(product(0, 0).at(0) == 0);
  CHECK(std::isnan(product(1, std::nanf("")).at(0)));
}

TEST_CASE("a NaN scale of the W4A4 product spoils its row alone") {
  Random random(12);
  WeightList weights(Precision::kNvfp4, random, {5}, 48);
  const Tensor codes = random_codes(random, 3, 48);
  Tensor scales = random_scales(random, 3, 48);
  scales.view().as<uint8_t>()[1 * 3 + 2] = 0x7F;
  std::vector<Tensor> inputs;
  inputs.push_back(scalar(1));
  Tensor out(Dtype::kF32, {3, 5});
  REQUIRE(!w4a4(codes, scales, weights, inputs, out).run("flashinfer_cutlass"));
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t n = 0; n < 5; ++n) CHECK(std::isnan(out.at(r * 5 + n)) == (r == 1));
}

TEST_CASE("products serve the axes that name them") {
  CHECK(kernel_serving("fp4_gemm_backend", "flashinfer_cutlass", LinearW4A4::kName) ==
        find_kernel(LinearW4A4::kName, "flashinfer_cutlass"));
  CHECK(kernel_serving("fp4_gemm_backend", "marlin", Linear::kName) == find_kernel(Linear::kName, "marlin"));
  CHECK(kernel_serving("fp4_gemm_backend", "flashinfer_cutlass", Linear::kName) == nullptr);
}
