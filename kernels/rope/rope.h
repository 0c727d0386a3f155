// Rotary position embedding in place (Su et al. 2021), half-split pairs, a block per row. The angles' sines
// and cosines are computed once per row, in double, and shared by its heads.
#ifndef KERNELS_ROPE_ROPE_H_
#define KERNELS_ROPE_ROPE_H_

#include "kernels/gpu/elements.h"
#include "kernels/gpu/math.h"

namespace strata::gpu {

inline constexpr int kRopeThreads = 128;
inline constexpr int kRopeHalfMax = 128;
// Places of cosines and sines: those of one element of all pieces of W lie beside each other, since the lanes
// read them at once, and the next element's one place further than they need, since they were stored across.
inline constexpr int64_t kRopeSharedBytes = (kRopeHalfMax + 16 / 2) * 2 * sizeof(float);

template <class T>
struct RopeParams {
  Gmem<T> x;  // row r, head h at r * ld + h * head_dim
  int64_t seq, ld;
  int heads, half;  // half a head's dimension, at most kRopeHalfMax
  bool inverse;
  double frequency[kRopeHalfMax];  // theta^(-2 i / head_dim)
};

// Grid: rows. kVector: x and ld allow wide accesses and half is a multiple of kWide<T>.
template <class T, bool kVector>
KX_KERNEL KX_LAUNCH_BOUNDS(kRopeThreads) void RopeKernel(KX_GRID_CONSTANT RopeParams<T> p) {
  constexpr int W = kVector ? kWide<T> : 1;
  Smem smem;
  const auto angles = smem.Alloc<float>(kRopeSharedBytes / sizeof(float));  // cosine, sine
  const int64_t row = BlockIdx().x;
  const int thread = static_cast<int>(ThreadIdx().x);
  const int pieces = p.half / W, pitch = pieces + 1;  // of a head
  if (thread < p.half) {
    const SineCosine angle = SinCos(MulRn(static_cast<double>(row % p.seq), p.frequency[thread]));
    Vec<float, 8> pair;
    pair[0] = static_cast<float>(angle.cosine);
    pair[1] = static_cast<float>(p.inverse ? -angle.sine : angle.sine);
    angles.StoreVec(2 * (thread % W * pitch + thread / W), pair);
  }
  KX_MUTANT("fused/rope/sync", Sync(), (void)0);
  for (int i = thread; i < p.heads * pieces; i += kRopeThreads) {
    const int head = i / pieces, piece = i - head * pieces;
    const int64_t low = row * p.ld + static_cast<int64_t>(head) * 2 * p.half + piece * W, high = low + p.half;
    float a[W], b[W];
    LoadFloats<W>(p.x, low, a);
    LoadFloats<W>(p.x, high, b);
    KX_UNROLL
    for (int k = 0; k < W; ++k) {
      const Vec<float, 8> angle = angles.template LoadVec<8>(2 * (k * pitch + piece));
      const float c = angle[0], s = angle[1], x = a[k];
      a[k] = Fma(x, c, -(b[k] * s));
      b[k] = KX_MUTANT("fused/rope/pair", Fma(b[k], c, x * s), Fma(b[k], c, -(x * s)));
    }
    StoreFloats<T>(p.x, low, a);
    StoreFloats<T>(p.x, high, b);
  }
}

}  // namespace strata::gpu

#endif  // KERNELS_ROPE_ROPE_H_
