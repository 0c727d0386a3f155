// Eight-bit codes of optimizer states, quantised block by block (Dettmers et al., ICLR 2022): a block of
// kCode8Block elements has one float scale, and element = scale * value of its code. The codes are small
// floating-point numbers with three mantissa bits, so that decoding is exact and encoding is a few integer
// operations with the same result everywhere, instead of a search in a table:
//   unsigned (v):  5 exponent bits, 3 mantissa bits: 0, 2^-33 .. 1.875
//   signed (m):    1 sign, 4 exponent bits, 3 mantissa bits: 0, 2^-17 .. 1.875, and their negatives
// With `largest` the block's largest magnitude, brought between kCode8Least and the largest float:
//   scale = largest * kCode8ScaleOfLargest, code = the nearest code of element * (kCode8Largest / largest)
// each operation rounded once; both factors are 0 where all elements are 0. So the largest element loses only
// the roundings of its scale, and what overflowed or is next to nothing keeps finite factors.
//
// A block is what tensors of a unit are aligned to (model_layout.h): no two tensors share a scale.
#ifndef KERNELS_OPTIMIZER_CODE8_H_
#define KERNELS_OPTIMIZER_CODE8_H_

#include <cstdint>
#include <cstring>

#include "kernels/kx/target.h"

namespace strata {

inline constexpr int kCode8Block = 64;          // elements that share a scale
inline constexpr float kCode8Largest = 1.875f;  // value of the largest code
inline constexpr float kCode8ScaleOfLargest = 1 / 1.875f;
inline constexpr float kCode8Least = 0x1p-120f;

// The value of an unsigned code: exponent field e, mantissa f is 2^(e - kExponents) (1 + f / 8), e = 0 is
// 2^(1 - kExponents) f / 8. kExponents is 31 for eight bits, 15 for seven.
template <int kExponents>
KX_HOST_DEVICE float DecodeCode(uint32_t code) {
  if (code < 8) {
    constexpr uint32_t kStep = static_cast<uint32_t>(127 + 1 - kExponents - 3) << 23;
    float step;
    memcpy(&step, &kStep, 4);
    return static_cast<float>(static_cast<int32_t>(code)) * step;
  }
  const uint32_t bits = (code + (static_cast<uint32_t>(127 - kExponents) << 3)) << 20;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// The code of the value nearest to y >= 0, ties to the even code; above kCode8Largest the largest.
template <int kExponents>
KX_HOST_DEVICE uint32_t EncodeCode(float y) {
  constexpr uint32_t kLargest = kExponents * 8 + 7;
  uint32_t bits;
  memcpy(&bits, &y, 4);
  // Of a float: its upper eleven bits, rounded; exponents count from another zero.
  const int32_t normal =
      static_cast<int32_t>((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - ((127 - kExponents) << 3);
  if (normal >= 8) return normal < static_cast<int32_t>(kLargest) ? static_cast<uint32_t>(normal) : kLargest;
  // Few steps of equal size: 1.5 * 2^23 leaves no bits for a fraction.
  constexpr uint32_t kInverseStep = static_cast<uint32_t>(127 - 1 + kExponents + 3) << 23;
  float inverse_step;
  memcpy(&inverse_step, &kInverseStep, 4);
  constexpr float kMagic = 12582912.0f;
  const float steps = y * inverse_step;  // exact: a power of two
  const float shifted = steps + kMagic;
  uint32_t shifted_bits, magic_bits;
  memcpy(&shifted_bits, &shifted, 4);
  memcpy(&magic_bits, &kMagic, 4);
  return shifted_bits - magic_bits;
}

// Of m / scale. There is no minus zero.
KX_HOST_DEVICE float DecodeSigned(uint8_t code) {
  const float value = DecodeCode<15>(code & 0x7f);
  return (code & 0x80) != 0 ? -value : value;
}
KX_HOST_DEVICE uint8_t EncodeSigned(float y) {
  uint32_t bits;
  memcpy(&bits, &y, 4);
  const uint32_t magnitude_bits = bits & 0x7fffffffu;
  float magnitude;
  memcpy(&magnitude, &magnitude_bits, 4);
  const uint32_t code = EncodeCode<15>(magnitude);
  return static_cast<uint8_t>(code == 0 ? 0 : code | (bits >> 24 & 0x80));
}

// Of v / scale. What is not zero stays so: a v that vanished would turn the update into m / eps.
KX_HOST_DEVICE float DecodeUnsigned(uint8_t code) { return DecodeCode<31>(code); }
KX_HOST_DEVICE uint8_t EncodeUnsigned(float y) {
  const uint32_t code = EncodeCode<31>(y);
  return static_cast<uint8_t>(code == 0 && y > 0 ? 1 : code);
}

}  // namespace strata

#endif  // KERNELS_OPTIMIZER_CODE8_H_
