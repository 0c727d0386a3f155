#include "kernels/state/launch.h"

#include <algorithm>

#include "kernels/gpu/launch_elements.h"
#include "kernels/state/state.h"

namespace strata::gpu {

LaunchStatus AdamW(kx::Stream stream, const AdamWScalars& scalars, const AdamWRange& range) {
  if (range.n <= 0) return {};
  return WithElementType(range.params == nullptr ? DType::kF32 : range.params_dtype, [&](auto tag) {
    using P = typename decltype(tag)::Type;
    const AdamWBody<P> body = {range.grad, range.master, range.m, range.v, static_cast<P*>(range.params),
                               scalars};
    const bool vector = Aligned({range.grad, range.master, range.m, range.v}) &&
                        Aligned({range.params}, AdamWBody<P>::kWidth * sizeof(P));
    return LaunchElements(stream, body, 1, range.n, vector);
  });
}

LaunchStatus AdamW8(kx::Stream stream, const AdamWScalars& scalars, const AdamW8Range& range) {
  if (range.n <= 0) return {};
  return WithElementType(range.params == nullptr ? DType::kF32 : range.params_dtype, [&](auto tag) {
    using P = typename decltype(tag)::Type;
    const AdamW8Params<P> p = {range.grad,
                               range.master,
                               range.m,
                               range.m_scale,
                               range.v,
                               range.v_scale,
                               static_cast<P*>(range.params),
                               range.n,
                               scalars};
    const bool vector =
        Aligned({range.grad, range.master, range.params}) && Aligned({range.m, range.v}, kAdamW8Each);
    const LaunchConfig config = {
        {Blocks(range.n, kBlockThreads / 32 * kAdamW8Warp)}, {kBlockThreads}, 0, stream};
    return vector ? Launch(config, AdamW8Kernel<P, true>, p) : Launch(config, AdamW8Kernel<P, false>, p);
  });
}

LaunchStatus CastParams(kx::Stream stream, const float* master, void* params, DType params_dtype, int64_t n) {
  if (n <= 0) return {};
  return WithElementType(params_dtype, [&](auto tag) {
    using P = typename decltype(tag)::Type;
    const CastBody<P> body = {master, static_cast<P*>(params)};
    const bool vector = Aligned({master}) && Aligned({params}, CastBody<P>::kWidth * sizeof(P));
    return LaunchElements(stream, body, 1, n, vector);
  });
}

LaunchStatus Accumulate(kx::Stream stream, float* acc, const float* x, int64_t n) {
  if (n <= 0) return {};
  return LaunchElements(stream, AccumulateBody{acc, x}, 1, n, Aligned({acc, x}));
}

LaunchStatus SumSquares(kx::Stream stream, const float* x, int64_t n, double* sum, int64_t* first_bad,
                        void* scratch_memory, int batch_blocks) {
  static_assert(kSumSquaresBatchBlocks == kTreeThreads);
  static_assert(kSumSquaresScratchBytes == (kTreeThreads + kSubtrees + 1) * 8);
  double* const memory = static_cast<double*>(scratch_memory);
  const SumScratch scratch = {memory, memory + kTreeThreads,
                              reinterpret_cast<uint64_t*>(memory + kTreeThreads + kSubtrees)};
  LaunchStatus status = Launch({{1}, {32}, 0, stream}, SumSquaresBegin, scratch);
  const int64_t batch = int64_t{batch_blocks} * kLeavesPerBlock * kLeaf;
  // An empty range is one batch with no leaves: its sum is 0.
  for (int64_t first = 0; status.ok() && (first < n || first == 0); first += batch) {
    const int64_t size = std::min(n - first, batch);
    const uint32_t blocks = std::max<uint32_t>(1, Blocks(size, int64_t{kLeavesPerBlock} * kLeaf));
    const LaunchConfig config = {{blocks}, {kBlockThreads}, kLeavesPerBlock * sizeof(double), stream};
    status = Aligned({x}) ? Launch(config, SumSquaresLeaves<true>, x, first, size, scratch)
                          : Launch(config, SumSquaresLeaves<false>, x, first, size, scratch);
    if (!status.ok()) break;
    status = Launch({{1}, {kTreeThreads}, kTreeThreads * sizeof(double), stream}, SumSquaresTree, scratch,
                    static_cast<int>(blocks), first / batch, first + batch >= n, sum, first_bad);
  }
  return status;
}

}  // namespace strata::gpu
