// The 8-bit floats of fp8 training (Micikevicius et al. 2022, OCP 8-bit Floating Point Specification) and the
// scale of a matrix of them. E4M3 (activations, weights): bias 7, largest 448, no infinity. E5M2 (gradients):
// bias 15, largest 57344.
//
// A matrix has one scale, a power of two: 2^e with the largest e for which no element times it is beyond the
// format's largest value (current scaling: from the matrix itself, so a product depends on its operands alone
// and not on steps before it; and a power of two, so that scaling loses nothing and what was rounded is a
// bf16 number again).
#ifndef KERNELS_FP8_FP8_FORMAT_H_
#define KERNELS_FP8_FP8_FORMAT_H_

#include <cstdint>
#include <cstring>

#include "kernels/kx/target.h"
#include "kernels/op_args.h"

namespace strata {

// Of the formats: bits of the mantissa, exponents' bias, the code of the largest value; both have NaN at
// 0x7f.
KX_HOST_DEVICE constexpr int Fp8Mantissa(Fp8 type) { return type == Fp8::kE4M3 ? 3 : 2; }
KX_HOST_DEVICE constexpr int Fp8Bias(Fp8 type) { return type == Fp8::kE4M3 ? 7 : 15; }
KX_HOST_DEVICE constexpr uint32_t Fp8Largest(Fp8 type) { return type == Fp8::kE4M3 ? 0x7e : 0x7b; }
inline constexpr uint32_t kFp8Nan = 0x7f;

// Scales are 2^-96 .. 2^96: they and what is left of any element are normal floats.
inline constexpr int kFp8ExponentMax = 96;

// e of a matrix whose largest magnitude has these bits (of a float; bits of larger magnitudes are larger
// numbers). Where an element is not finite e says nothing: the element becomes a NaN whatever it is.
KX_HOST_DEVICE int Fp8ScaleExponent(Fp8 type, uint32_t largest_bits) {
  if (largest_bits == 0 || largest_bits >= 0x7f800000u) return 0;
  // The largest value of either format is 1.75 times a power of two: 2^8 or 2^15.
  const int exponent = static_cast<int>(largest_bits >> 23) - 127;
  const int above = (largest_bits & 0x7fffffu) > 0x600000u ? 1 : 0;
  const int e = Fp8Bias(type) + (type == Fp8::kE4M3 ? 1 : 0) - exponent - above;
  return e > kFp8ExponentMax ? kFp8ExponentMax : e < -kFp8ExponentMax ? -kFp8ExponentMax : e;
}

// 2^e, -127 < e < 128.
KX_HOST_DEVICE float PowerOfTwo(int e) {
  const uint32_t bits = static_cast<uint32_t>(e + 127) << 23;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// The nearest code, ties to the even one; beyond the largest value that one; not finite: a NaN.
KX_HOST_DEVICE uint32_t EncodeFp8(Fp8 type, float y) {
  const int mantissa = Fp8Mantissa(type), bias = Fp8Bias(type);
  uint32_t bits;
  memcpy(&bits, &y, 4);
  const uint32_t sign = bits >> 24 & 0x80;
  bits &= 0x7fffffffu;
  if (bits >= 0x7f800000u) return kFp8Nan;
  // Of a float: its upper bits, rounded; exponents count from another zero.
  const int drop = 23 - mantissa;
  const int32_t normal = static_cast<int32_t>((bits + (1u << (drop - 1)) - 1 + (bits >> drop & 1)) >> drop) -
                         ((127 - bias) << mantissa);
  if (normal >= 1 << mantissa) {
    const uint32_t code = static_cast<uint32_t>(normal);
    return sign | (code < Fp8Largest(type) ? code : Fp8Largest(type));
  }
  // Few steps of equal size: 1.5 * 2^23 leaves no bits for a fraction.
  constexpr float kMagic = 12582912.0f;
  float magnitude;
  memcpy(&magnitude, &bits, 4);
  const float shifted = magnitude * PowerOfTwo(bias - 1 + mantissa) + kMagic;  // exact, then rounded once
  uint32_t shifted_bits, magic_bits;
  memcpy(&shifted_bits, &shifted, 4);
  memcpy(&magic_bits, &kMagic, 4);
  return sign | (shifted_bits - magic_bits);
}

// The value of a code that EncodeFp8 gives.
KX_HOST_DEVICE float DecodeFp8(Fp8 type, uint32_t code) {
  const int mantissa = Fp8Mantissa(type), bias = Fp8Bias(type);
  const uint32_t magnitude = code & 0x7f;
  uint32_t bits = 0x7fc00000u;
  if (magnitude < 1u << mantissa) {
    const float value = static_cast<float>(static_cast<int32_t>(magnitude)) * PowerOfTwo(1 - bias - mantissa);
    memcpy(&bits, &value, 4);
  } else if (magnitude != kFp8Nan) {
    bits = (magnitude + (static_cast<uint32_t>(127 - bias) << mantissa)) << (23 - mantissa);
  }
  bits |= (code & 0x80) << 24;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// x as an element of a matrix with scale 2^e.
KX_HOST_DEVICE float RoundToFp8(Fp8 type, float x, int e) {
  return DecodeFp8(type, EncodeFp8(type, x * PowerOfTwo(e))) * PowerOfTwo(-e);
}

}  // namespace strata

#endif  // KERNELS_FP8_FP8_FORMAT_H_
