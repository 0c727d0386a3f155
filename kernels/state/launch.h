// Math on model states on the device, with the CPU's bits (kernels/optimizer). Pointers are the device's, n
// >= 0: nothing is launched for none. No alignment is needed beyond that of the element types.
#ifndef KERNELS_STATE_LAUNCH_H_
#define KERNELS_STATE_LAUNCH_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/kx/launch_types.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/adamw8.h"

namespace strata::gpu {

kx::LaunchStatus AdamW(kx::Stream stream, const AdamWScalars& scalars, const AdamWRange& range);

// With m and v in eight bits: the bits of kernels/optimizer/adamw8.h.
kx::LaunchStatus AdamW8(kx::Stream stream, const AdamWScalars& scalars, const AdamW8Range& range);

// params[i] = master[i] rounded to nearest even; params_dtype is kF32, kBF16 or kF16.
kx::LaunchStatus CastParams(kx::Stream stream, const float* master, void* params, DType params_dtype,
                            int64_t n);

kx::LaunchStatus Accumulate(kx::Stream stream, float* acc, const float* x, int64_t n);

// As StateOps::SumSquares. `sum` and `first_bad` are memory that the device can write; `scratch` has
// kSumSquaresScratchBytes, is aligned to 64 bytes and belongs to one stream. A range is summed in batches of
// `batch_blocks` (a power of two) times 131072 elements, which changes no bit: tests make them small.
inline constexpr int kSumSquaresBatchBlocks = 1024;
inline constexpr int64_t kSumSquaresScratchBytes = (kSumSquaresBatchBlocks + 64) * 8;
kx::LaunchStatus SumSquares(kx::Stream stream, const float* x, int64_t n, double* sum, int64_t* first_bad,
                            void* scratch, int batch_blocks = kSumSquaresBatchBlocks);

}  // namespace strata::gpu

#endif  // KERNELS_STATE_LAUNCH_H_
