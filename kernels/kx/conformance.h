// Small kernels that use every primitive once, with results known in closed form. The emulator's tests run
// them; nvcc assembles them (sass.golden); tests/gpu runs them on a card.
#ifndef KERNELS_KX_CONFORMANCE_H_
#define KERNELS_KX_CONFORMANCE_H_

#include "kernels/kx/kx.h"

namespace strata::kx::conformance {

// C[16 x 8] = A[16 x 16] B[16 x 8] with B given as its transpose [8 x 16]; all row-major. One warp. `trans`:
// A is given column-major instead.
template <class T>
KX_KERNEL void MmaTile(Gmem<const T> a, Gmem<const T> bt, Gmem<float> c, bool trans) {
  Smem smem;
  const SmemArray<T> sa = smem.Alloc<T>(16 * 16), sb = smem.Alloc<T>(8 * 16);
  const int lane = LaneId();
  CpAsync16(sa.Address(lane * 8), a + lane * 8, true);
  if (lane < 16) CpAsync16(sb.Address(lane * 8), bt + lane * 8, true);
  CpAsyncCommit();
  KX_MUTANT("kx/mma_no_copy_wait", CpAsyncWait<0>(), (void)0);
  KX_MUTANT("kx/mma_no_syncwarp", Syncwarp(), (void)0);
  uint32_t af[4], bf[2];
  if (trans) {
    // Column-major A: matrix q covers k from 8 (q / 2) and rows from 8 (q % 2), stored as rows of k.
    LdMatrixX4Trans(af, sa.Address((lane % 8 + lane / 16 * 8) * 16 + lane / 8 % 2 * 8));
  } else {
    LdMatrixX4(af, sa.Address(lane % 16 * 16 + lane / 16 * 8));
  }
  LdMatrixX2(bf, sb.Address(lane % 8 * 16 + lane / 8 % 2 * 8));
  float acc[4] = {0.f, 0.f, 0.f, 0.f};
  Mma<T>(acc, af, KX_MUTANT("kx/mma_swapped_b", bf[0], bf[1]), bf[1]);
  for (int i = 0; i < 4; ++i) c.Store((lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2, acc[i]);
}

// out[0] = sum of x[0, n), out[1] = the largest: the last block to finish adds the blocks' partial results,
// in their order. `counter` starts at 0. positive counts the positive ones. Blocks of 128.
KX_KERNEL void Reduce(Gmem<const float> x, int n, Gmem<float> partial, Gmem<uint32_t> counter,
                      Gmem<float> out, Gmem<uint32_t> positive) {
  Smem smem;
  const SmemArray<float> sums = smem.Alloc<float>(4), tops = smem.Alloc<float>(4);
  const SmemArray<uint32_t> ticket = smem.Alloc<uint32_t>(1);
  const int thread = static_cast<int>(ThreadIdx().x), block = static_cast<int>(BlockIdx().x);
  const int blocks = static_cast<int>(GridDim().x);
  const int i = block * static_cast<int>(BlockDim().x) + thread;
  const float value = i < n ? x.Load(i) : 0.f;
  const uint32_t votes = Ballot(value > 0.f);
  if (LaneId() == 0) {
    int count = 0;
    for (int bit = 0; bit < 32; ++bit) count += votes >> bit & 1;
    AtomicAdd(positive, 0, static_cast<uint32_t>(count));
  }
  float sum = value, top = i < n ? value : -INFINITY;
  KX_UNROLL
  for (int step = 16; step > 0; step /= 2) {
    sum += KX_MUTANT("kx/reduce_own_value", ShflDown(sum, step), sum);
    top = fmaxf(top, ShflXor(top, step));
  }
  if (LaneId() == 0) {
    sums.Store(thread / 32, sum);
    tops.Store(thread / 32, top);
  }
  KX_MUTANT("kx/reduce_no_sync_before_sums", Sync(), (void)0);
  if (thread == 0) {
    sum = 0.f;
    top = -INFINITY;
    for (int w = 0; w < 4; ++w) {
      sum += sums.Load(w);
      top = fmaxf(top, tops.Load(w));
    }
    partial.Store(2 * block, sum);
    partial.Store(2 * block + 1, top);
    ticket.Store(
        0, KX_MUTANT("kx/reduce_relaxed_ticket", AtomicAddAcqRel(counter, 0, 1), AtomicAdd(counter, 0, 1u)));
  }
  KX_MUTANT("kx/reduce_no_sync_before_ticket", Sync(), (void)0);
  if (ticket.Load(0) != static_cast<uint32_t>(blocks - 1) || thread != 0) return;
  sum = 0.f;
  top = -INFINITY;
  for (int b = 0; b < blocks; ++b) {
    sum += partial.Load(2 * b);
    top = fmaxf(top, partial.Load(2 * b + 1));
  }
  out.Store(0, sum);
  out.Store(1, top);
}

}  // namespace strata::kx::conformance

#endif  // KERNELS_KX_CONFORMANCE_H_
