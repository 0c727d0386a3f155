// Sums over the threads of a block, in a fixed tree: every thread gets the same bits. For one-dimensional
// blocks of at most 32 warps.
#ifndef KERNELS_GPU_REDUCE_H_
#define KERNELS_GPU_REDUCE_H_

#include "kernels/kx/kx.h"

namespace strata::gpu {

using namespace kx;  // NOLINT: the vocabulary of every kernel

inline constexpr int kWarpsMax = 32;

// Of the 32 lanes. a + b = b + a, so all lanes compute the same.
template <class T>
KX_DEVICE T WarpSum(T x) {
  KX_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) x += ShflXor(x, mask);
  return x;
}

// Each call of a kernel needs kWarpsMax elements of shared memory of its own, so that one barrier is enough.
template <class T>
KX_DEVICE T BlockSum(T x, SmemArray<T> partial) {
  const int warps = static_cast<int>(BlockDim().x) / 32;
  x = WarpSum(x);
  if (LaneId() == 0) partial.Store(WarpId(), x);
  KX_MUTANT("fused/reduce/sync", Sync(), (void)0);
  x = LaneId() < warps ? partial.Load(LaneId()) : T{};
  return WarpSum(x);
}

}  // namespace strata::gpu

#endif  // KERNELS_GPU_REDUCE_H_
