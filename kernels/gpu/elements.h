// What the fused kernels share: rows of 16-bit or 32-bit elements as floats in registers, 16 bytes per access
// where addresses allow it, and the elementwise kernel.
//
// "Wide" accesses need every pointer and every row start to be a multiple of 16 bytes; the launching code
// checks that (IsWide) and otherwise takes the same kernel one element at a time.
#ifndef KERNELS_GPU_ELEMENTS_H_
#define KERNELS_GPU_ELEMENTS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/kx/kx.h"

namespace strata::gpu {

using namespace kx;  // NOLINT: the vocabulary of every kernel

// Elements of T that one 16-byte access moves.
template <class T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

// Threads of a block where nothing asks for another number.
inline constexpr int kBlockThreads = 256;

// `kWidth` elements from `i` on, as floats.
template <int kWidth, class U>
KX_DEVICE void LoadFloats(Gmem<U> g, int64_t i, float (&out)[kWidth]) {
  using T = std::remove_const_t<U>;
  if constexpr (kWidth == 1) {
    out[0] = ToFloat(g.Load(i));
  } else {
    constexpr int kBytes = kWidth * sizeof(T) < 16 ? kWidth * sizeof(T) : 16, kPart = kBytes / sizeof(T);
    KX_UNROLL
    for (int part = 0; part < kWidth / kPart; ++part) {
      const Vec<T, kBytes> v = g.template LoadVec<kBytes>(i + part * kPart);
      KX_UNROLL
      for (int k = 0; k < kPart; ++k) out[part * kPart + k] = ToFloat(v[k]);
    }
  }
}

// Rounds to nearest even.
template <class T, int kWidth>
KX_DEVICE void StoreFloats(Gmem<T> g, int64_t i, const float (&x)[kWidth]) {
  if constexpr (kWidth == 1) {
    g.Store(i, FromFloat<T>(x[0]));
  } else {
    constexpr int kBytes = kWidth * sizeof(T) < 16 ? kWidth * sizeof(T) : 16, kPart = kBytes / sizeof(T);
    KX_UNROLL
    for (int part = 0; part < kWidth / kPart; ++part) {
      Vec<T, kBytes> v;
      if constexpr (sizeof(T) == 2) {
        KX_UNROLL
        for (int k = 0; k < kPart; k += 2) {
          const uint32_t pair = Pack<T>(x[part * kPart + k], x[part * kPart + k + 1]);
          v[k].bits = static_cast<uint16_t>(pair & 0xffff);
          v[k + 1].bits = static_cast<uint16_t>(pair >> 16);
        }
      } else {
        KX_UNROLL
        for (int k = 0; k < kPart; ++k) v[k] = FromFloat<T>(x[part * kPart + k]);
      }
      g.StoreVec(i + part * kPart, v);
    }
  }
}

// Calls body.Run<W>(row, column) once for every W columns of rows [0, rows) of `width` elements: W is
// Body::kWidth as far as whole vectors go if kVector, else 1. The grid has BlocksOfElements blocks.
struct ElementGrid {
  int64_t width = 0;
  uint32_t blocks_per_row = 0;  // of 32 bits: a division of 64 takes longer than many a body
};
template <class Body, bool kVector>
KX_KERNEL KX_LAUNCH_BOUNDS(kBlockThreads) void ForElements(const Body body, const ElementGrid grid) {
  const uint32_t row = BlockIdx().x / grid.blocks_per_row;
  const int64_t piece =
      static_cast<int64_t>(BlockIdx().x - row * grid.blocks_per_row) * kBlockThreads + ThreadIdx().x;
  if constexpr (kVector) {
    const int64_t whole = KX_MUTANT("fused/elements/whole", grid.width / Body::kWidth,
                                    (grid.width + Body::kWidth - 1) / Body::kWidth);
    if (piece < whole) body.template Run<Body::kWidth>(row, piece * Body::kWidth);
    const int64_t rest = whole * Body::kWidth + piece;
    if (KX_MUTANT("fused/elements/tail", rest < grid.width, rest + 1 < grid.width)) {
      body.template Run<1>(row, rest);
    }
  } else {
    if (piece < grid.width) body.template Run<1>(row, piece);
  }
}

// Calls f(i, width) for pieces of `width` elements (a std::integral_constant: W or 1) that together are
// [0, n), shared among the threads of the block: 16-byte accesses where element start + i allows them, so
// rows may start anywhere as long as element 0 is aligned.
template <int W, class F>
KX_DEVICE void ForRow(int64_t start, int64_t n, F&& f) {
  int64_t head = (W - start % W) % W;
  if (head > n) head = n;
  const int64_t whole = (n - head) / W, rest = n - whole * W, threads = BlockDim().x;
  for (int64_t i = ThreadIdx().x; i < whole; i += threads) {
    f(head + i * W, std::integral_constant<int, W>());
  }
  if constexpr (W > 1) {
    const int64_t i = ThreadIdx().x;
    if (i < rest) f(i < head ? i : whole * W + i, std::integral_constant<int, 1>());
  }
}

}  // namespace strata::gpu

#endif  // KERNELS_GPU_ELEMENTS_H_
