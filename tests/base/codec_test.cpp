#include "base/codec.h"

#include <cmath>
#include <limits>
#include <vector>

#include "testing.h"

using namespace faultline;

namespace {

// The finite values of a format with their codes, to find the nearest one by looking at all of them.
struct Coded {
  float value;
  int code;
};

std::vector<Coded> e4m3_values() {
  std::vector<Coded> values;
  for (int code = 0; code < 0x7F; ++code) values.push_back({e4m3_to_float(static_cast<uint8_t>(code)), code});
  return values;
}

std::vector<Coded> e2m1_values() {
  std::vector<Coded> values;
  for (int code = 0; code < 8; ++code) values.push_back({e2m1_to_float(static_cast<uint8_t>(code)), code});
  return values;
}

int nearest(const std::vector<Coded>& values, float magnitude) {
  Coded best = values.front();
  for (const Coded& candidate : values) {
    const double error = std::abs(static_cast<double>(candidate.value) - magnitude);
    const double least = std::abs(static_cast<double>(best.value) - magnitude);
    if (error < least || (error == least && candidate.code % 2 == 0)) best = candidate;
  }
  return best.code;
}

// Every value of a format, every midpoint of two, and the floats next to both.
std::vector<float> interesting(const std::vector<Coded>& values) {
  std::vector<float> result;
  const auto add_around = [&](float x) {
    result.push_back(x);
    result.push_back(std::nextafter(x, 0.0f));
    result.push_back(std::nextafter(x, std::numeric_limits<float>::infinity()));
  };
  for (size_t i = 0; i < values.size(); ++i) {
    add_around(values[i].value);
    if (i + 1 < values.size()) add_around((values[i].value + values[i + 1].value) / 2);
  }
  return result;
}

}  // namespace

TEST_CASE("every e4m3 code survives a round trip, and only 0x7F and 0xFF are NaN") {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    const float value = e4m3_to_float(byte);
    CHECK(std::isnan(value) == (code == 0x7F || code == 0xFF));
    CHECK(e4m3_is_nan(byte) == std::isnan(value));
    CHECK(float_to_e4m3(value) == byte);
  }
}

TEST_CASE("e4m3 has the values of the standard") {
  CHECK(e4m3_to_float(0x00) == 0.0f);
  CHECK(std::signbit(e4m3_to_float(0x80)));
  CHECK(e4m3_to_float(0x01) == std::ldexp(1.0f, -9));
  CHECK(e4m3_to_float(0x08) == std::ldexp(1.0f, -6));
  CHECK(e4m3_to_float(0x38) == 1.0f);
  CHECK(e4m3_to_float(0x7E) == 448.0f);
  CHECK(e4m3_to_float(0xFE) == -448.0f);
}

TEST_CASE("floats become the nearest e4m3 value, ties the even code") {
  const std::vector<Coded> values = e4m3_values();
  for (const float x : interesting(values)) {
    if (x > 464) continue;
    INFO(x);
    CHECK(float_to_e4m3(x) == nearest(values, x));
    CHECK(float_to_e4m3(-x) == (nearest(values, x) | 0x80));
  }
}

TEST_CASE("e4m3 overflows to NaN, and a clamp before it saturates") {
  CHECK(float_to_e4m3(464.0f) == 0x7E);
  CHECK(e4m3_is_nan(float_to_e4m3(std::nextafter(464.0f, 500.0f))));
  CHECK(e4m3_is_nan(float_to_e4m3(std::numeric_limits<float>::infinity())));
  CHECK(float_to_e4m3(clamp_e4m3(1e9f)) == 0x7E);
  CHECK(float_to_e4m3(clamp_e4m3(-1e9f)) == 0xFE);
  CHECK(std::isnan(clamp_e4m3(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("every e2m1 code survives a round trip") {
  const float magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 16; ++code) {
    const float value = e2m1_to_float(static_cast<uint8_t>(code));
    CHECK(std::abs(value) == magnitudes[code & 7]);
    CHECK(std::signbit(value) == (code >= 8));
    CHECK(float_to_e2m1(value) == code);
  }
}

TEST_CASE("floats become the nearest e2m1 value, ties the even code, saturating at 6") {
  const std::vector<Coded> values = e2m1_values();
  for (const float x : interesting(values)) {
    INFO(x);
    CHECK(float_to_e2m1(x) == nearest(values, x));
    CHECK(float_to_e2m1(-x) == (nearest(values, x) | 8));
  }
  CHECK(float_to_e2m1(100.0f) == 7);
  CHECK(float_to_e2m1(std::numeric_limits<float>::infinity()) == 7);
  CHECK((float_to_e2m1(std::numeric_limits<float>::quiet_NaN()) & 7) == 7);
}

TEST_CASE("every bf16 survives a round trip") {
  int wrong = 0;
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const Bf16 stored{static_cast<uint16_t>(bits)};
    const float value = to_float(stored);
    if (std::isnan(value))
      wrong += std::isnan(to_float(to_bf16(value))) ? 0 : 1;
    else
      wrong += to_bf16(value).bits == stored.bits ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("bf16 rounds to nearest, ties to even, up into infinity") {
  CHECK(to_bf16(float_from_bits(0x3F808000u)).bits == 0x3F80);  // tie, even below
  CHECK(to_bf16(float_from_bits(0x3F818000u)).bits == 0x3F82);  // tie, even above
  CHECK(to_bf16(float_from_bits(0x3F808001u)).bits == 0x3F81);
  CHECK(to_bf16(float_from_bits(0x3F807FFFu)).bits == 0x3F80);
  CHECK(to_bf16(std::numeric_limits<float>::max()).bits == 0x7F80);
  CHECK(std::isnan(to_float(to_bf16(float_from_bits(0x7F800001u)))));
}

TEST_CASE("every f16 widens to the value of its bits") {
  int wrong = 0;
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = to_float(F16{static_cast<uint16_t>(bits)});
    const int exponent = static_cast<int>(bits >> 10 & 31u);
    const auto mantissa = static_cast<float>(bits & 0x3FFu);
    float expected = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0f + mantissa, exponent - 25);
    if (exponent == 31) expected = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
    if ((bits & 0x8000u) != 0) expected = -expected;
    const bool same =
        std::isnan(expected) ? std::isnan(value) : value == expected && std::signbit(value) == std::signbit(expected);
    wrong += same ? 0 : 1;
  }
  CHECK(wrong == 0);
}
