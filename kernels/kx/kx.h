// Device primitives for kernels that are written once and compiled twice (kernels/kx/README.md).
//
// A kernel includes this header (and kx_hopper.h for sm_90a) and nothing else of CUDA: no inline assembly, no
// shared-memory declarations, no builtin variables. tests/layering_test.py holds kernels/ and offload/ to it.
// Everything below is in strata::kx and means the same on both targets; the declarations are in
// ptx/primitives.h (what the GPU runs) and emu/primitives.h (what the emulator checks).
//
// Indices      ThreadIdx() BlockIdx() BlockDim() GridDim(): x, y, z. LaneId(), WarpId(): of a
//              one-dimensional block. Threads per block are a multiple of 32.
// Shared       Smem smem; auto tile = smem.Alloc<T, kAlign>(n): every thread carves the same arrays in the
//              same order. SmemArray<T>: Load(i), Store(i, v), LoadVec<kBytes>(i), StoreVec(i, vec),
//              Address(i), As<U>() (the same bytes), Slice(first, n). Contents start undefined.
// Global       Gmem<T>, made from a T* on the host or in a parameter struct: Load, Store, LoadVec,
//              StoreVec, g + n, Aligned16(). It cannot be dereferenced, so every access of a kernel is
//              checked in emulation. Indices are int64_t elements.
// Block        Sync(). BarSync(id, n), BarArrive(id, n): named barriers 1..15 of n threads, a multiple of
//              32, by whole warps.
// Warp         Syncwarp(); ShflXor, ShflDown, ShflIdx (4- and 8-byte types); Ballot, Any, All. All 32 lanes
//              take part. Only Syncwarp orders memory.
// Tensor core  LdMatrixX4, LdMatrixX2 and ...Trans; Mma<T>(c, a, b0, b1): C += A B, m16n8k16, row.col,
//              T = bf16 or f16, f32 accumulators, the fragment layouts of the PTX ISA.
// Async copy   CpAsync16(shared, gmem, valid): 16 bytes past L1, zeros when !valid. CpAsyncCommit(),
//              CpAsyncWait<kGroupsLeft>(). A wait covers the calling thread's copies; Sync() publishes them.
// Conversions  ToFloat(x), FromFloat<T>(f); Pack<T>(lo, hi), UnpackLo<T>, UnpackHi<T>: two in a uint32_t.
//              FromFloat and Pack round to nearest even.
// Exact math   Fma, MulRn, AddRn, SubRn, DivRn, SqrtRn for float and double: one rounding, never
//              contracted: the bits of the host's std::fma, *, +, -, / and std::sqrt.
// Fast math    Ex2, Lg2, Rsqrt, Rcp: float approximations to about 2 ulp, subnormals flushed to 0. Lg2 of
//              what lies between 1/2 and 2: to 2^-22, however small the result.
// Atomics      On Gmem: AtomicAdd (int32, uint32, uint64), AtomicMax, AtomicMin, AtomicOr, AtomicCas. They
//              are relaxed; the final value does not depend on the order.
//              AtomicAddAcqRel(g, i, v) also orders: what was visible to the caller before it is visible to
//              whoever later changes the same word by AtomicAddAcqRel ("the last block reduces").
//              AtomicAddUnordered (float): the sum's bits depend on the order; only where the caller's
//              contract says so.
//
// KX_MUTANT(name, good, bad): `good` in the product; in emulation a test can switch to `bad` by name
// (emu/mutants.h). Both are expressions of one type; a removed statement is (void)0.
#ifndef KERNELS_KX_KX_H_
#define KERNELS_KX_KX_H_

#include <cmath>

#include "kernels/kx/types.h"

#if KX_GPU
#include "kernels/kx/ptx/primitives.h"
#define KX_MUTANT(name, good, bad) (good)
#else
#include "kernels/kx/emu/mutants.h"
#include "kernels/kx/emu/primitives.h"
#define KX_MUTANT(name, good, bad)                                          \
  ([]() -> bool {                                                           \
    static ::strata::kx::emu::MutantSite kx_site(name, __FILE__, __LINE__); \
    return kx_site.Active();                                                \
  }()                                                                       \
               ? (bad)                                                      \
               : (good))
#endif

#endif  // KERNELS_KX_KX_H_
