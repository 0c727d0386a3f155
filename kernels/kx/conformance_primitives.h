// Kernels for the primitives that conformance.h and conformance_hopper.h leave out, one by one: what each
// gives is stored as it is. sm_90a.
#ifndef KERNELS_KX_CONFORMANCE_PRIMITIVES_H_
#define KERNELS_KX_CONFORMANCE_PRIMITIVES_H_

#include "kernels/kx/kx_hopper.h"

namespace strata::kx::conformance {

// Of two numbers, in this order: 0..5 with one rounding each, 6..9 approximations of the first alone.
inline constexpr int kArithmetic = 10;
KX_DEVICE void Calculate(float (&out)[kArithmetic], float x, float y) {
  out[0] = MulRn(x, y);
  out[1] = KX_MUTANT("kx/arithmetic_fused", AddRn(MulRn(x, y), y), Fma(x, y, y));
  out[2] = SubRn(x, y);
  out[3] = DivRn(x, y);
  out[4] = SqrtRn(x);
  out[5] = Fma(x, y, -y);
  out[6] = Ex2(x);
  out[7] = Lg2(x);
  out[8] = Rsqrt(x);
  out[9] = Rcp(x);
}
inline constexpr int kArithmetic64 = 6;
KX_DEVICE void Calculate(double (&out)[kArithmetic64], double x, double y) {
  out[0] = MulRn(x, y);
  out[1] = AddRn(MulRn(x, y), y);
  out[2] = SubRn(x, y);
  out[3] = DivRn(x, y);
  out[4] = SqrtRn(x);
  out[5] = Fma(x, y, -y);
}
// results and results64: [n][their count]. halves: [n] pairs of bf16 and of f16, of x and y, by Pack and by
// FromFloat, then x's two back to float: 6 words each.
inline constexpr int kHalves = 6;
KX_KERNEL void KX_LAUNCH_BOUNDS(128)
    Arithmetic(Gmem<const float> x, Gmem<const float> y, int n, Gmem<float> results, Gmem<double> results64,
               Gmem<uint32_t> halves) {
  const int i = static_cast<int>(BlockIdx().x * 128 + ThreadIdx().x);
  if (i >= n) return;
  const float a = x.Load(i), b = y.Load(i);
  float out[kArithmetic];
  Calculate(out, a, b);
  KX_UNROLL
  for (int j = 0; j < kArithmetic; ++j) results.Store(i * kArithmetic + j, out[j]);
  double out64[kArithmetic64];
  Calculate(out64, static_cast<double>(a), static_cast<double>(b));
  KX_UNROLL
  for (int j = 0; j < kArithmetic64; ++j) results64.Store(i * kArithmetic64 + j, out64[j]);

  const auto pair = [](uint32_t lo, uint32_t hi) { return lo | hi << 16; };
  const auto word = [](float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
  };
  const uint32_t b16 = Pack<bf16>(a, b),
                 h16 = KX_MUTANT("kx/halves_swapped", Pack<f16>(a, b), Pack<f16>(b, a));
  const uint32_t words[kHalves] = {b16,
                                   h16,
                                   pair(FromFloat<bf16>(a).bits, FromFloat<bf16>(b).bits),
                                   pair(FromFloat<f16>(a).bits, FromFloat<f16>(b).bits),
                                   word(UnpackLo<bf16>(b16)),
                                   word(UnpackLo<f16>(h16))};
  KX_UNROLL
  for (int j = 0; j < kHalves; ++j) halves.Store(i * kHalves + j, words[j]);
}

// Atomics of 2 blocks of 64 threads, numbered t from 0: `words` [6] of 32 bits: largest and smallest t + 5,
// of -t as int32 the smallest, bits 1 << t % 32, sum of t as float, 1 + how often the first word was
// exchanged; `wide` [2] of 64 bits: sum and largest of t << 32. Shuffles and votes: seen [128][6].
KX_KERNEL void KX_LAUNCH_BOUNDS(64) Gather(Gmem<uint32_t> words, Gmem<uint64_t> wide, Gmem<uint64_t> seen) {
  const int t = static_cast<int>(BlockIdx().x * 64 + ThreadIdx().x), lane = LaneId();
  const auto number = static_cast<uint32_t>(t);
  const uint64_t high = static_cast<uint64_t>(t) << 32;
  AtomicMax(words, 0, number + 5);
  KX_MUTANT("kx/gather_max", AtomicMin(words, 1, number + 5), AtomicMax(words, 1, number + 5));
  AtomicMin(words.As<int32_t>(), 2, -t);
  AtomicOr(words, 3, uint32_t{1} << t % 32);
  AtomicAddUnordered(words.As<float>(), 4, static_cast<float>(t));
  uint32_t found = 1;
  while (true) {
    const uint32_t there = AtomicCas(words, 5, found, found + 1);
    if (there == found) break;
    found = there;
  }
  AtomicAdd(wide, 0, high);
  AtomicMax(wide, 1, high);
  const uint64_t votes[6] = {
      ShflIdx(high, KX_MUTANT("kx/gather_lane", lane / 2, lane)),
      ShflXor(high, 5),
      ShflDown(high, 3),  // of the last three lanes: their own
      static_cast<uint64_t>(Any(lane == 7)) << 1 | static_cast<uint64_t>(Any(lane == 32)),
      static_cast<uint64_t>(All(lane < 32)) << 1 | static_cast<uint64_t>(All(lane != 7)),
      Ballot(lane % 3 == 0)};
  KX_UNROLL
  for (int j = 0; j < 6; ++j) seen.Store(t * 6 + j, votes[j]);
}

// What ldmatrix reads (4, 2 and 2 registers: plain x4, plain x2, transposed x2) of matrices that each form of
// stmatrix wrote. Warp 0 writes register q of lane l as 1000 (form + 1) + 100 q + l in its low half and that
// + 32 in its high half; warp 1 waits at a named barrier at which warp 0 only arrives. seen: [4
// forms][32][8].
KX_KERNEL void KX_LAUNCH_BOUNDS(64) Matrices(Gmem<uint32_t> seen) {
  Smem smem;
  const SmemArray<uint16_t> a = smem.Alloc<uint16_t>(4 * 256);
  const int lane = LaneId();
  const auto row = [&](int form) { return a.Address(form * 256 + lane * 8); };
  if (WarpId() == 0) {
    const auto value = [&](int form, int q) {
      const auto low = static_cast<uint32_t>(1000 * (form + 1) + 100 * q + lane);
      return low | (low + 32) << 16;
    };
    const uint32_t plain[4] = {value(0, 0), value(0, 1), value(0, 2), value(0, 3)};
    const uint32_t trans[4] = {value(1, 0), value(1, 1), value(1, 2), value(1, 3)};
    const uint32_t plain2[2] = {value(2, 0), value(2, 1)}, trans2[2] = {value(3, 0), value(3, 1)};
    StMatrixX4(row(0), plain);
    KX_MUTANT("kx/matrices_plain", StMatrixX4Trans(row(1), trans), StMatrixX4(row(1), trans));
    StMatrixX2(row(2), plain2);
    StMatrixX2Trans(row(3), trans2);
    BarArrive(3, 64);
    return;
  }
  KX_MUTANT("kx/matrices_no_wait", BarSync(3, 64), (void)0);
  KX_UNROLL
  for (int form = 0; form < 4; ++form) {
    uint32_t r[4] = {}, two[2], across[2];
    if (form < 2) LdMatrixX4(r, row(form));
    LdMatrixX2(two, row(form));
    LdMatrixX2Trans(across, row(form));
    const uint32_t all[8] = {r[0], r[1], r[2], r[3], two[0], two[1], across[0], across[1]};
    KX_UNROLL
    for (int j = 0; j < 8; ++j) seen.Store((form * 32 + lane) * 8 + j, all[j]);
  }
}

// One box of rank 2, 3 or 4 through shared memory: as TMA left it there to `seen`, and to where `out` has
// these coordinates. `bytes` is the box's size; the rest of `at` is 0.
struct BoxPlace {
  int rank, at[4];
};
KX_KERNEL void KX_LAUNCH_BOUNDS(128) Boxes(KX_GRID_CONSTANT TensorMap in, KX_GRID_CONSTANT TensorMap out,
                                           const BoxPlace place, int bytes, Gmem<uint32_t> seen) {
  Smem smem;
  const SmemArray<uint32_t> box = smem.Alloc<uint32_t, 1024>(bytes / 4);
  const SmemArray<uint64_t> bar = smem.Alloc<uint64_t, 8>(1);
  const int thread = static_cast<int>(ThreadIdx().x), c0 = place.at[0], c1 = place.at[1];
  if (thread == 0) {
    MbarInit(bar.Address(), 1);
    FenceMbarInit();
    TmaPrefetch(in);
    MbarArriveExpectTx(bar.Address(), bytes);
    const SharedAddress to = box.Address();
    if (place.rank == 2) TmaLoad(to, in, bar.Address(), c0, c1);
    if (place.rank == 3) TmaLoad(to, in, bar.Address(), c0, c1, place.at[2]);
    if (place.rank == 4) {
      TmaLoad(to, in, bar.Address(), c0, c1, KX_MUTANT("kx/boxes_swapped", place.at[2], place.at[3]),
              place.at[3]);
    }
  }
  Sync();
  MbarWait(bar.Address(), 0);
  for (int i = thread; i < bytes / 4; i += 128) seen.Store(i, box.Load(i));
  if (thread != 0) return;
  const SharedAddress from = box.Address();
  if (place.rank == 2) TmaStore(out, from, c0, c1);
  if (place.rank == 3) TmaStore(out, from, c0, c1, place.at[2]);
  if (place.rank == 4) TmaStore(out, from, c0, c1, place.at[2], place.at[3]);
  BulkCommit();
  BulkWait<0>();
}

}  // namespace strata::kx::conformance

#endif  // KERNELS_KX_CONFORMANCE_PRIMITIVES_H_
