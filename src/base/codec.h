// Bit-level codecs of the number formats, usable on host and device (no other header is needed).
//
//   bf16  1-8-7, round to nearest even; NaN stays NaN.
//   f16   IEEE binary16.
//   e4m3  "fn": bias 7, no infinity, NaN only 0x7F and 0xFF, largest finite 448 (OCP 8-bit floating point, v1.0, 5.1).
//   e2m1  magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 with a sign bit; no NaN, no infinity (OCP MX v1.0, 5.3.3).
//         Two codes a byte, the low nibble is the even column (ModelOpt NVFP4 export).
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define FAULTLINE_HD __host__ __device__
#else
#define FAULTLINE_HD
#endif

namespace faultline {

FAULTLINE_HD inline uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

FAULTLINE_HD inline float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// A stored bf16, as a type of its own so that it cannot be mistaken for an integer.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

FAULTLINE_HD inline float to_float(Bf16 value) {
  return float_from_bits(static_cast<uint32_t>(value.bits) << 16);
}
FAULTLINE_HD inline float to_float(float value) {
  return value;
}

FAULTLINE_HD inline Bf16 to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return Bf16{static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return Bf16{static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

FAULTLINE_HD inline float round_to_bf16(float value) {
  return to_float(to_bf16(value));
}

FAULTLINE_HD inline float to_float(F16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 31u;
  const uint32_t mantissa = value.bits & 0x3FFu;
  if (exponent == 31u) return float_from_bits(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0u) return float_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24, exact
  return float_from_bits(sign | float_bits(magnitude));
}

FAULTLINE_HD inline bool e4m3_is_nan(uint8_t code) {
  return (code & 0x7Fu) == 0x7Fu;
}

FAULTLINE_HD inline float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t exponent = (code >> 3) & 15u;
  const uint32_t mantissa = code & 7u;
  if ((code & 0x7Fu) == 0x7Fu) return float_from_bits(sign | 0x7FC00000u);
  if (exponent != 0u) return float_from_bits(sign | ((exponent + 120u) << 23) | (mantissa << 20));
  const float magnitude = static_cast<float>(mantissa) * 0.001953125f;  // 2^-9, exact
  return float_from_bits(sign | float_bits(magnitude));
}

// Round to nearest even. Magnitudes that round above 448 become NaN, as PyTorch's cast does; kernels clamp first.
FAULTLINE_HD inline uint8_t float_to_e4m3(float value) {
  const uint32_t bits = float_bits(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= 0x43E80000u) {                       // >= 464, NaN included
    if (magnitude == 0x43E80000u) return sign | 0x7Eu;  // 464 is the tie between 448 and 480: even is 448
    return sign | 0x7Fu;
  }
  if (magnitude < 0x3C800000u) {  // below 2^-6: subnormal, steps of 2^-9
    const float scaled = float_from_bits(magnitude) * 512.0f;
    const float rounded = (scaled + 8388608.0f) - 8388608.0f;  // nearest even at integer steps
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(rounded));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | static_cast<uint8_t>((rounded >> 20) - (120u << 3)));
}

FAULTLINE_HD inline float clamp_e4m3(float value) {  // NaN passes through
  return value > 448.0f ? 448.0f : (value < -448.0f ? -448.0f : value);
}

FAULTLINE_HD inline float e2m1_to_float(uint8_t code) {
  const uint32_t magnitude = code & 7u;
  // 0 and 0.5 are the subnormals; from 1 on exponent = code >> 1, mantissa = code & 1.
  const float value = magnitude < 2u ? 0.5f * static_cast<float>(magnitude)
                                     : (1.0f + 0.5f * static_cast<float>(magnitude & 1u)) *
                                           static_cast<float>(1u << ((magnitude >> 1) - 1u));
  return (code & 8u) ? -value : value;
}

// Nearest, ties to the even code, saturating at 6. NaN has no code: it becomes the largest magnitude, as hardware does.
FAULTLINE_HD inline uint8_t float_to_e2m1(float value) {
  const uint8_t sign = static_cast<uint8_t>((float_bits(value) >> 28) & 8u);
  const float magnitude = float_from_bits(float_bits(value) & 0x7FFFFFFFu);
  uint8_t code;
  if (magnitude <= 0.25f)
    code = 0;
  else if (magnitude < 0.75f)
    code = 1;
  else if (magnitude <= 1.25f)
    code = 2;
  else if (magnitude < 1.75f)
    code = 3;
  else if (magnitude <= 2.5f)
    code = 4;
  else if (magnitude < 3.5f)
    code = 5;
  else if (magnitude <= 5.0f)
    code = 6;
  else
    code = 7;
  return static_cast<uint8_t>(sign | code);
}

}  // namespace faultline
