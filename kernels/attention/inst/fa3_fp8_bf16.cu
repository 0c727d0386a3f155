#include "kernels/attention/fa3_fp8_launch.h"

namespace strata::attention {

template kx::LaunchStatus LaunchFp8Forward<kx::bf16, 64>(kx::Stream, const ForwardCall&);
template kx::LaunchStatus LaunchFp8Forward<kx::bf16, 96>(kx::Stream, const ForwardCall&);
template kx::LaunchStatus LaunchFp8Forward<kx::bf16, 128>(kx::Stream, const ForwardCall&);
template kx::LaunchStatus LaunchFp8Forward<kx::bf16, 256>(kx::Stream, const ForwardCall&);

}  // namespace strata::attention
