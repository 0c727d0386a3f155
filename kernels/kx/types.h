// Scalar types of kernels, the same bits on host, device and emulator, and the vectors that move them.
#ifndef KERNELS_KX_TYPES_H_
#define KERNELS_KX_TYPES_H_

#include <cstdint>
#include <cstring>

#include "kernels/kx/target.h"

namespace strata::kx {

// An address in the 32-bit shared-memory window of a block, as PTX sees it. 0 is never valid.
using SharedAddress = uint32_t;

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

// bfloat16 and IEEE binary16 by their bits. Conversions are ToFloat and FromFloat (kx.h): round to nearest
// even; a NaN stays a NaN.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

// Eight-bit floats by their bits (OCP 8-bit Floating Point Specification, revision 1.0): 1 sign bit, then 4
// or 5 of exponent (bias 7, 15), then 3 or 2 of fraction. e4m3 reaches 448 and has no infinity, its only NaNs
// are 0x7f and 0xff; e5m2 reaches 57344 and is IEEE in form. Conversions (kx_hopper.h) round to nearest even
// and saturate: what is larger, infinities too, becomes the largest number of its sign; a NaN becomes 0x7f.
struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};
inline constexpr float kE4m3Max = 448.f;

// `kBytes` (4, 8 or 16) of T's, moved by one load or store. The address must be a multiple of kBytes.
template <class T, int kBytes = 16>
struct alignas(kBytes) Vec {
  static constexpr int kCount = kBytes / static_cast<int>(sizeof(T));
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "one load moves 4, 8 or 16 bytes");
  T v[kCount];
  KX_HOST_DEVICE T& operator[](int i) { return v[i]; }
  KX_HOST_DEVICE const T& operator[](int i) const { return v[i]; }
};

}  // namespace strata::kx

#endif  // KERNELS_KX_TYPES_H_
