#include "kernels/attention/fa3_launch.h"

namespace strata::attention {

template kx::LaunchStatus LaunchFa3Backward<kx::bf16, 64>(kx::Stream, const BackwardCall&);
template kx::LaunchStatus LaunchFa3Backward<kx::bf16, 96>(kx::Stream, const BackwardCall&);
template kx::LaunchStatus LaunchFa3Backward<kx::bf16, 128>(kx::Stream, const BackwardCall&);

}  // namespace strata::attention
