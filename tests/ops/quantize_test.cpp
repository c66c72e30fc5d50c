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

TEST_CASE("rows that go to experts are quantised with their expert's own input scale, the larger of its projections") {
  Random random(11);
  constexpr int64_t kTokens = 5, kTopK = 2, kColumns = 48, kStacked = 2;
  const float scale_of[] = {0.001f, 0.002f, 0.004f};
  const Tensor scalars[] = {scalar(0.001f), scalar(0.0005f), scalar(0.0001f),
                            scalar(0.002f), scalar(0.004f),  scalar(0.003f)};
  std::vector<TensorView> list;
  for (const Tensor& each : scalars) list.push_back(each.view());
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const bool x_per_token : {true, false}) {
      const Tensor x = random.values(dtype, {x_per_token ? kTokens : kTokens * kTopK, kColumns}, 3);
      const Tensor ids = integers({kTokens, kTopK}, {0, 1, 1, 2, 2, 0, 0, 2, 1, 0});
      Tensor codes(Dtype::kU8, {kTokens * kTopK, kColumns / 2});
      Tensor scales(Dtype::kF8E4M3, {kTokens * kTopK, kColumns / 16});
      OpHarness op(ops::QuantizeFp4Experts::kName);
      op.add(x).add(ids).add_list(list).add(codes).add(scales);
      op.attributes().set("k", kTopK).set("stacked", kStacked).set("x_per_token", x_per_token);
      op.require_agreement("scaled_fp4_experts_quant", ops::QuantizeFp4Experts::kCodes, codes);
      op.require_agreement("scaled_fp4_experts_quant", ops::QuantizeFp4Experts::kScales, scales);
      for (int64_t expert = 0; expert < 3; ++expert) {
        const Quantized alone = quantize(x, scale_of[expert]);
        for (int64_t r = 0; r < kTokens * kTopK; ++r) {
          if (ids.integer(r) != expert) continue;
          const int64_t from = x_per_token ? r / kTopK : r;
          for (int64_t i = 0; i < kColumns / 2; ++i)
            CHECK(codes.view().as<uint8_t>()[r * kColumns / 2 + i] == code_byte(alone, from * kColumns / 2 + i));
        }
      }
    }
}

TEST_CASE("the checked quantiser of experts' rows records an expert that does not exist") {
  Random random(12);
  const Tensor x = random.values(Dtype::kF32, {1, 16});
  const Tensor ids = integers({1, 2}, {0, 7});
  const Tensor one = scalar(0.001f);
  const Tensor codes(Dtype::kU8, {2, 8});
  const Tensor scales(Dtype::kF8E4M3, {2, 1});
  OpHarness op(ops::QuantizeFp4Experts::kName);
  op.add(x).add(ids).add_list({one.view()}).add(codes).add(scales);
  op.attributes().set("k", 2).set("stacked", 1).set("x_per_token", true);
  const kernels::AccessLog log = op.run_checked("scaled_fp4_experts_quant");
  REQUIRE(log.count > 0);
  CHECK(log.first[0].operand == ops::QuantizeFp4Experts::kIds);
  CHECK(log.first[0].index == 7);
  CHECK(log.first[0].extent == 1);
}

TEST_CASE("a query in FP8 is each value's nearest e4m3, saturated at 448") {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
    Tensor x(dtype, {1, 2, 4});
    const float values[] = {1000, -1000, 1.0625f, 0.3f, 0, -448, 17, std::nanf("")};
    for (int64_t i = 0; i < 8; ++i) x.view().store(i, values[i]);
    Tensor out(dtype, {1, 2, 4});
    OpHarness op(ops::RoundFp8::kName);
    op.add(x).add(out);
    REQUIRE(!op.run("quantize_q"));
    const float expected[] = {448, -448, 1, 0.3125f, 0, -448, 16};
    for (int64_t i = 0; i < 7; ++i) CHECK(out.at(i) == expected[i]);
    CHECK(std::isnan(out.at(7)));
    x.view().store(7, 3);
    op.require_agreement("quantize_q", ops::RoundFp8::kOut, out);
  }
}
