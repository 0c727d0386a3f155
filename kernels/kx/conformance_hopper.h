// The kernels of conformance.h for sm_90a.
#ifndef KERNELS_KX_CONFORMANCE_HOPPER_H_
#define KERNELS_KX_CONFORMANCE_HOPPER_H_

#include "kernels/kx/kx_hopper.h"

namespace strata::kx::conformance {

// C[64 x N] = A[64 x K] B[K x N] by one warpgroup, C row-major; K is 128 bytes of T: 64, or 128 of e4m3. The
// map of an operand that is K-major shows its transpose-free rows: A as [64 rows, K], B as [N rows, K], box
// K x rows. MN-major: A as [64 k, 64 m], B as [64 k, N n], box 64 x 64 (N / 64 boxes; then N is a multiple of
// 64). kRs: A goes through registers. C leaves through shared memory and TMA when N is a multiple of 32 (a
// float map, box 32 x 64, swizzled).
template <class T>
inline constexpr int kWgmmaDepth = 128 / static_cast<int>(sizeof(T));
template <class T, int kN, Major kA, Major kB, bool kRs>
KX_KERNEL void KX_LAUNCH_BOUNDS(128, 1)
    WgmmaTile(KX_GRID_CONSTANT TensorMap a, KX_GRID_CONSTANT TensorMap b, KX_GRID_CONSTANT TensorMap c) {
  Smem smem;
  constexpr int kDepth = kWgmmaDepth<T>;
  const SmemArray<T> sa = smem.Alloc<T, 1024>(64 * kDepth), sb = smem.Alloc<T, 1024>(kN * kDepth);
  const SmemArray<float> sc = smem.Alloc<float, 1024>(64 * kN);
  const SmemArray<uint64_t> bar = smem.Alloc<uint64_t, 8>(1);
  const int thread = static_cast<int>(ThreadIdx().x), lane = thread % 32, warp = thread / 32;
  if (thread == 0) {
    MbarInit(bar.Address(), 1);
    KX_MUTANT("kx/wgmma_no_init_fence", FenceMbarInit(), (void)0);
  }
  Sync();
  if (thread == 0) {
    MbarArriveExpectTx(bar.Address(), (64 + kN) * 128);
    TmaLoad(sa.Address(), a, bar.Address(), 0, 0);
    if constexpr (kB == Major::kK) {
      TmaLoad(sb.Address(), b, bar.Address(), 0, 0);
    } else {
      for (int n = 0; n < kN; n += 64) TmaLoad(sb.Address(n * 64), b, bar.Address(), n, 0);
    }
  }
  KX_MUTANT("kx/wgmma_no_load_wait", MbarWait(bar.Address(), 0), (void)0);
  float d[kN / 2];
  KX_UNROLL
  for (int i = 0; i < kN / 2; ++i) d[i] = 0.f;
  uint32_t af[4][4];
  if constexpr (kRs) {
    KX_UNROLL
    for (int kk = 0; kk < 4; ++kk) {
      const uint32_t offset = (16 * warp + lane % 16) * 128 + 32 * kk + lane / 16 * 16;
      LdMatrixX4(af[kk], sa.Address() + Swizzle128(offset));
    }
  }
  if constexpr (kRs) {
    WgmmaFence(d, af);
  } else {
    KX_MUTANT("kx/wgmma_no_fence", WgmmaFence(d), (void)0);
  }
  KX_UNROLL
  for (int kk = 0; kk < 4; ++kk) {
    // A step of K is 32 bytes of a row, or (16 of two bytes) two groups of 8 rows of 128 bytes.
    const uint64_t db =
        kB == Major::kK
            ? SwizzledDescriptor(sb.Address() + 32 * kk, 16, KX_MUTANT("kx/wgmma_stride", 1024, 512))
            : SwizzledDescriptor(sb.Address() + 2048 * kk, KX_MUTANT("kx/wgmma_leading", 64 * 128, 1024),
                                 1024);
    if constexpr (kRs) {
      WgmmaRs<T, kB>(d, af[kk], db, kk > 0);
    } else {
      const uint64_t da = kA == Major::kK ? SwizzledDescriptor(sa.Address() + 32 * kk, 16, 1024)
                                          : SwizzledDescriptor(sa.Address() + 2048 * kk, 64 * 128, 1024);
      WgmmaSs<T, kA, kB>(d, da, db, kk > 0);
    }
  }
  WgmmaCommit();
  KX_MUTANT("kx/wgmma_no_wait", WgmmaWait<0>(d), (void)0);
  KX_UNROLL
  for (int i = 0; i < kN / 2; ++i) {
    const int row = 16 * warp + lane / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    // Column blocks of 32 floats, each 64 rows of 128 bytes.
    const uint32_t offset = column / 32 * 64 * 128 + Swizzle128(row * 128 + column % 32 * 4);
    sc.Store(static_cast<int>(offset / 4), d[i]);
  }
  KX_MUTANT("kx/wgmma_no_proxy_fence", FenceAsyncProxy(), (void)0);
  KX_MUTANT("kx/wgmma_no_sync_before_store", Sync(), (void)0);
  if (thread == 0) {
    for (int n = 0; n < kN; n += 32) TmaStore(c, sc.Address(n * 64), n, 0);
    BulkCommit();
    KX_MUTANT("kx/wgmma_no_read_wait", BulkWaitRead<0>(), (void)0);
  }
}

// Each code of T to its value, and n floats to codes by both ways that round: values[256] from codes 0 to
// 255; rounded[i] by FromFloat, packed[i] by PackFour, four neighbours at a time. 256 threads, n a multiple
// of four.
template <class T>
KX_KERNEL void KX_LAUNCH_BOUNDS(256)
    Convert8(Gmem<const float> x, int n, Gmem<float> values, Gmem<uint8_t> rounded, Gmem<uint32_t> packed) {
  const int i = static_cast<int>(BlockIdx().x * 256 + ThreadIdx().x);
  if (i < 256) values.Store(i, ToFloat(T{static_cast<uint8_t>(i)}));
  if (4 * i >= n) return;
  const Vec<float, 16> four = x.LoadVec(4 * i);
  KX_UNROLL
  for (int j = 0; j < 4; ++j) rounded.Store(4 * i + j, FromFloat<T>(four[j]).bits);
  packed.Store(i, KX_MUTANT("kx/convert8_swapped", PackFour<T>(four[0], four[1], four[2], four[3]),
                            PackFour<T>(four[1], four[0], four[2], four[3])));
}

// out[i] = 2 in[i] for whole 64 x 64 tiles of bf16, [tiles, 64, 64]: a producer warp loads tiles into a ring
// of two, a consumer warpgroup doubles them through stmatrix and stores them. 256 threads.
KX_KERNEL void KX_LAUNCH_BOUNDS(256, 1)
    Pipeline(KX_GRID_CONSTANT TensorMap in, KX_GRID_CONSTANT TensorMap out, int tiles) {
  Smem smem;
  const SmemArray<bf16> ring = smem.Alloc<bf16, 1024>(2 * 64 * 64), result = smem.Alloc<bf16, 1024>(64 * 64);
  const SmemArray<uint64_t> bars = smem.Alloc<uint64_t, 8>(4);
  const SharedAddress full = bars.Address(0), empty = bars.Address(2);
  const int thread = static_cast<int>(ThreadIdx().x);
  if (thread == 0) {
    for (int s = 0; s < 2; ++s) {
      MbarInit(full + 8 * s, 1);
      MbarInit(empty + 8 * s, 4);
    }
    FenceMbarInit();
  }
  Sync();
  if (thread < 128) {
    SetMaxRegistersDec<24>();
    if (thread != 0) return;
    TmaPrefetch(in);
    for (int i = 0; i < tiles; ++i) {
      const int s = i % 2, round = i / 2;
      KX_MUTANT("kx/pipeline_no_empty_wait", MbarWait(empty + 8 * s, (round & 1) ^ 1), (void)0);
      MbarArriveExpectTx(full + 8 * s, KX_MUTANT("kx/pipeline_bytes", 64 * 64 * 2, 64 * 64));
      TmaLoad(ring.Address(s * 64 * 64), in, full + 8 * s, 0, 0, i);
    }
    return;
  }
  SetMaxRegistersInc<240>();
  const int lane = thread % 32, warp = thread / 32 - 4;
  for (int i = 0; i < tiles; ++i) {
    const int s = i % 2, round = i / 2;
    MbarWait(full + 8 * s, KX_MUTANT("kx/pipeline_parity", round & 1, (round & 1) ^ 1));
    uint32_t r[4][4];
    KX_UNROLL
    for (int part = 0; part < 4; ++part) {
      const uint32_t offset = (16 * warp + lane % 16) * 128 + (16 * part + lane / 16 * 8) * 2;
      LdMatrixX4(r[part], ring.Address(s * 64 * 64) + Swizzle128(offset));
    }
    KX_MUTANT("kx/pipeline_no_syncwarp_before_release", Syncwarp(), (void)0);
    if (lane == 0) MbarArrive(empty + 8 * s);
    // The last tile has left `result`.
    if (thread == 128) KX_MUTANT("kx/pipeline_no_read_wait", BulkWaitRead<0>(), (void)0);
    KX_MUTANT("kx/pipeline_no_barrier_before_result", BarSync(1, 128), (void)0);
    KX_UNROLL
    for (int part = 0; part < 4; ++part) {
      KX_UNROLL
      for (int q = 0; q < 4; ++q) {
        r[part][q] = Pack<bf16>(2.f * UnpackLo<bf16>(r[part][q]), 2.f * UnpackHi<bf16>(r[part][q]));
      }
      const uint32_t offset = (16 * warp + lane % 16) * 128 + (16 * part + lane / 16 * 8) * 2;
      StMatrixX4(result.Address() + KX_MUTANT("kx/pipeline_no_swizzle", Swizzle128(offset), offset), r[part]);
    }
    KX_MUTANT("kx/pipeline_no_proxy_fence", FenceAsyncProxy(), (void)0);
    KX_MUTANT("kx/pipeline_no_barrier_before_store", BarSync(1, 128), (void)0);
    if (thread == 128) {
      TmaStore(out, result.Address(), 0, 0, i);
      BulkCommit();
    }
  }
  if (thread == 128) BulkWait<0>();
}

}  // namespace strata::kx::conformance

#endif  // KERNELS_KX_CONFORMANCE_HOPPER_H_
