#include "kernels/attention/fa2_launch.h"

namespace strata::attention {

template kx::LaunchStatus LaunchDelta<kx::f16>(kx::Stream, const BackwardCall&);
template kx::LaunchStatus LaunchFa2Backward<kx::f16, 64>(kx::Stream, const BackwardCall&);
template kx::LaunchStatus LaunchFa2Backward<kx::f16, 96>(kx::Stream, const BackwardCall&);
template kx::LaunchStatus LaunchFa2Backward<kx::f16, 128>(kx::Stream, const BackwardCall&);

}  // namespace strata::attention
