#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;
using ops::QuantizeFp4;

namespace {

struct Quantized {
  Tensor codes;
  Tensor scales;
};

Quantized quantize(const Tensor& x, float input_scale) {
  Quantized result{Tensor(Dtype::kU8, {x.view().dim(0), x.view().dim(1) / 2}),
                   Tensor(Dtype::kF8E4M3, {x.view().dim(0), x.view().dim(1) / 16})};
  const Tensor scale = scalar(input_scale);
  OpHarness op(QuantizeFp4::kName);
  op.add(x).add(scale).add(result.codes).add(result.scales);
  REQUIRE(!op.run("fp4_quantize"));
  return result;
}

uint8_t scale_code(const Quantized& q, int64_t i) {
  return q.scales.view().as<uint8_t>()[i];
}
uint8_t code_byte(const Quantized& q, int64_t i) {
  return q.codes.view().as<uint8_t>()[i];
}

}  // namespace

TEST_CASE("fp4_quantize gives the reference's bytes, and takes the largest input scale of its list") {
  Random random(1);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const int64_t rows : {0, 1, 129})
      for (const int64_t columns : {16, 80}) {
        const Tensor x = random.values(dtype, {rows, columns}, 3);
        const Tensor small = scalar(0.001f);
        const Tensor large = scalar(0.004f);
        Tensor codes(Dtype::kU8, {rows, columns / 2});
        Tensor scales(Dtype::kF8E4M3, {rows, columns / 16});
        OpHarness op(QuantizeFp4::kName);
        op.add(x).add_list({small.view(), large.view()}).add(codes).add(scales);
        op.require_agreement("fp4_quantize", QuantizeFp4::kCodes, codes);
        op.require_agreement("fp4_quantize", QuantizeFp4::kScales, scales);
        const Quantized alone = quantize(x, 0.004f);
        CHECK(alone.codes.same_bytes(codes));
        CHECK(alone.scales.same_bytes(scales));
      }
}

TEST_CASE("quantised values lie within half a step of what they stand for") {
  Random random(2);
  const Tensor x = random.values(Dtype::kF32, {4, 64});
  const float input_scale = 4.0f / (6 * 448);
  const Quantized q = quantize(x, input_scale);
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t c = 0; c < 64; ++c) {
      const uint8_t byte = code_byte(q, r * 32 + c / 2);
      const float scale = e4m3_to_float(scale_code(q, r * 4 + c / 16)) * input_scale;
      const float value = e2m1_to_float(static_cast<uint8_t>(c % 2 == 0 ? byte & 15 : byte >> 4)) * scale;
      // The widest gap between codes is 2, and the scale itself is rounded by up to 1/16.
      CHECK(std::abs(value - x.at(r * 64 + c)) <= scale * (1 + 6.0f / 16));
    }
}

TEST_CASE("a block of zeros has a zero scale and zero codes") {
  Tensor x(Dtype::kF32, {1, 32});
  x.view().store(20, 1);
  const Quantized q = quantize(x, 1.0f / 448);
  CHECK(scale_code(q, 0) == 0);
  CHECK(scale_code(q, 1) != 0);
  for (int64_t i = 0; i < 8; ++i) CHECK(code_byte(q, i) == 0);
}

TEST_CASE("an input scale of 0 is not guarded: NaN scales for zero blocks, saturated ones for others") {
  Tensor x(Dtype::kF32, {1, 32});
  x.view().store(16, 1e-3f);
  x.view().store(17, -1e-3f);
  const Quantized q = quantize(x, 0);
  CHECK(scale_code(q, 0) == 0x7F);
  CHECK(scale_code(q, 1) == 0x7E);
  CHECK(code_byte(q, 8) == 0xF7);  // +6 in the low nibble, -6 in the high one
}

TEST_CASE("a NaN beside numbers is dropped from the scale, a block of NaN is not") {
  Tensor x(Dtype::kF32, {1, 32});
  x.view().store(0, std::nanf(""));
  x.view().store(1, 6);
  for (int64_t c = 16; c < 32; ++c) x.view().store(c, std::nanf(""));
  const Quantized q = quantize(x, 1);
  CHECK(scale_code(q, 0) == 0x38);
  CHECK((code_byte(q, 0) & 15) == 7);
  CHECK(scale_code(q, 1) == 0x7F);
}

TEST_CASE("values past the range saturate") {
  Tensor x(Dtype::kF32, {1, 16});
  x.view().store(0, 1e9f);
  x.view().store(1, -INFINITY);
  const Quantized q = quantize(x, 1.0f / 448);
  CHECK(scale_code(q, 0) == 0x7E);
  CHECK(code_byte(q, 0) == 0xF7);
}
