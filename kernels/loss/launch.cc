#include "kernels/loss/launch.h"

#include "kernels/gpu/launch_elements.h"
#include "kernels/loss/loss.h"

namespace strata::gpu {

LaunchStatus CrossEntropy(kx::Stream stream, DType dtype, const CrossEntropyArgs& args) {
  double* const row_loss = static_cast<double*>(args.workspace.data);
  const LaunchStatus status = WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    CrossEntropyParams<T> p = {};
    p.logits = static_cast<T*>(args.logits);
    p.targets = args.targets;
    p.row_loss = row_loss;
    p.vocab = args.vocab;
    p.gradient = args.gradient;
    p.gradient_scale = args.gradient_scale;
    const LaunchConfig config = {{Blocks(args.rows, 1)}, {kLossThreads}, kCrossEntropySharedBytes, stream};
    return Aligned({args.logits}) ? Launch(config, CrossEntropyKernel<T, true>, p)
                                  : Launch(config, CrossEntropyKernel<T, false>, p);
  });
  if (!status.ok()) return status;
  return Launch({{1}, {kLossTreeThreads}, kWarpsMax * sizeof(int32_t), stream}, LossTree, row_loss,
                args.targets, args.rows, args.loss);
}

}  // namespace strata::gpu
