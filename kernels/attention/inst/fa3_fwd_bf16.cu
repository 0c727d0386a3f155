#include "kernels/attention/fa3_launch.h"

namespace strata::attention {

template kx::LaunchStatus LaunchFa3Forward<kx::bf16, 64>(kx::Stream, const ForwardCall&);
template kx::LaunchStatus LaunchFa3Forward<kx::bf16, 96>(kx::Stream, const ForwardCall&);
template kx::LaunchStatus LaunchFa3Forward<kx::bf16, 128>(kx::Stream, const ForwardCall&);
template kx::LaunchStatus LaunchFa3Forward<kx::bf16, 256>(kx::Stream, const ForwardCall&);

}  // namespace strata::attention
