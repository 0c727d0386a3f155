#include "kernels/fp8/launch.h"

#include <algorithm>

#include "kernels/fp8/fp8.h"
#include "kernels/gpu/launch_elements.h"

namespace strata::gpu {
namespace {

constexpr int64_t kLargestShared = kBlockThreads / 32 * sizeof(uint32_t);
// Rows of blocks in a grid: enough to fill any GPU, far from the limit of 65535.
constexpr uint32_t kGridRows = 1024;
// A block of the first pass is worth starting for this many.
constexpr int64_t kRowsPerPartial = 16;

template <Fp8 kType>
LaunchStatus Codes(kx::Stream stream, const Fp8Matrix& matrix, const Fp8QuantizeArgs& args) {
  if (args.transpose) {
    const LaunchConfig config = {
        {Blocks(args.columns, kFp8TileColumns), std::min(Blocks(args.rows, kFp8TileRows), kGridRows)},
        {kBlockThreads},
        kLargestShared + kFp8TileBytes,
        stream};
    return Launch(config, Fp8TransposedKernel<kType>, matrix, args.scratch, args.scale, args.codes);
  }
  const LaunchConfig config = {{Blocks(args.columns, int64_t{kBlockThreads} * kFp8Wide),
                                static_cast<uint32_t>(std::min<int64_t>(args.rows, kGridRows))},
                               {kBlockThreads},
                               kLargestShared,
                               stream};
  return Launch(config, Fp8CodesKernel<kType>, matrix, args.scratch, args.scale, args.codes);
}

}  // namespace

LaunchStatus Fp8Quantize(kx::Stream stream, const Fp8QuantizeArgs& args) {
  static_assert(kFp8ScratchBytes == kFp8Partials * sizeof(uint32_t));
  Fp8Matrix matrix = {static_cast<const bf16*>(args.x), args.rows, args.columns, args.ld};
  matrix.partials = std::clamp<uint32_t>(Blocks(args.rows, kRowsPerPartial), 1, kFp8Partials);
  const LaunchStatus status = Launch({{matrix.partials}, {kBlockThreads}, kLargestShared, stream},
                                     Fp8LargestKernel, matrix, args.scratch);
  if (!status.ok()) return status;
  return args.type == Fp8::kE4M3 ? Codes<Fp8::kE4M3>(stream, matrix, args)
                                 : Codes<Fp8::kE5M2>(stream, matrix, args);
}

}  // namespace strata::gpu
