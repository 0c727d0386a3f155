#include "kernels/attention/fa2_launch.h"

namespace strata::attention {

template kx::LaunchStatus LaunchDelta<kx::bf16>(kx::Stream, const BackwardCall&);
template kx::LaunchStatus LaunchFa2Backward<kx::bf16, 64>(kx::Stream, const BackwardCall&);
template kx::LaunchStatus LaunchFa2Backward<kx::bf16, 96>(kx::Stream, const BackwardCall&);
template kx::LaunchStatus LaunchFa2Backward<kx::bf16, 128>(kx::Stream, const BackwardCall&);

}  // namespace strata::attention
