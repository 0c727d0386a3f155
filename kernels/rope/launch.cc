#include "kernels/rope/launch.h"

#include <cmath>

#include "kernels/gpu/launch_elements.h"
#include "kernels/rope/rope.h"

namespace strata::gpu {

LaunchStatus Rope(kx::Stream stream, DType dtype, const RopeArgs& args) {
  return WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    RopeParams<T> p = {};
    p.x = static_cast<T*>(args.x);
    p.seq = args.seq;
    p.ld = args.ld;
    p.heads = static_cast<int>(args.heads);
    p.half = static_cast<int>(args.head_dim / 2);
    p.inverse = args.inverse;
    for (int i = 0; i < p.half; ++i) {
      p.frequency[i] = std::pow(args.theta, -2.0 * i / static_cast<double>(args.head_dim));
    }
    const bool vector = Aligned({args.x}) && p.half % kWide<T> == 0 && args.ld % kWide<T> == 0;
    const LaunchConfig config = {{Blocks(args.rows, 1)}, {kRopeThreads}, kRopeSharedBytes, stream};
    return vector ? Launch(config, RopeKernel<T, true>, p) : Launch(config, RopeKernel<T, false>, p);
  });
}

}  // namespace strata::gpu
