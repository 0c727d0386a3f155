#include "offload/bench/pseudo_values.h"

#include <bit>

#include "kernels/optimizer/isa.h"

namespace strata {
namespace {

// Rounds of a 32-bit integer hash (constants of xxHash32), all of which vector units have: a generator of
// better quality would cost more than the memory traffic that is to be measured.
__attribute__((always_inline)) inline void Fill(uint64_t key, uint32_t first, float amplitude, float* out,
                                                int64_t n) {
  const uint32_t low = static_cast<uint32_t>(key);
  const uint32_t high = static_cast<uint32_t>(key >> 32);
  for (int64_t i = 0; i < n; ++i) {
    uint32_t x = (first + static_cast<uint32_t>(i)) * 0x9E3779B1u + low;
    x ^= x >> 15;
    x = (x ^ high) * 0x85EBCA77u;
    x ^= x >> 13;
    x *= 0xC2B2AE3Du;
    x ^= x >> 16;
    out[i] = (std::bit_cast<float>((x >> 9) | 0x40000000u) - 3.0f) * amplitude;
  }
}

#if STRATA_OPTIMIZER_X86
STRATA_TARGET_AVX2 void FillAvx2(uint64_t key, uint32_t first, float amplitude, float* out, int64_t n) {
  Fill(key, first, amplitude, out, n);
}
#endif

}  // namespace

uint64_t MixKeys(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15u + b;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

void PseudoValues(uint64_t key, int64_t first, float amplitude, std::span<float> out) {
  const int64_t n = static_cast<int64_t>(out.size());
#if STRATA_OPTIMIZER_X86
  if (Supported(Isa::kAvx2)) return FillAvx2(key, static_cast<uint32_t>(first), amplitude, out.data(), n);
#endif
  Fill(key, static_cast<uint32_t>(first), amplitude, out.data(), n);
}

}  // namespace strata
