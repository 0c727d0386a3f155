#include "kernels/attention/fa2_launch.h"

namespace strata::attention {

template kx::LaunchStatus LaunchFa2Forward<kx::f16, 64>(kx::Stream, const ForwardCall&);
template kx::LaunchStatus LaunchFa2Forward<kx::f16, 96>(kx::Stream, const ForwardCall&);
template kx::LaunchStatus LaunchFa2Forward<kx::f16, 128>(kx::Stream, const ForwardCall&);
template kx::LaunchStatus LaunchFa2Forward<kx::f16, 256>(kx::Stream, const ForwardCall&);

}  // namespace strata::attention
