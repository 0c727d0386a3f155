// The launchers of single kernels: declared for launch.cc, instantiated in inst/*.cu by whichever compiler.
#ifndef KERNELS_ATTENTION_KERNEL_TABLE_H_
#define KERNELS_ATTENTION_KERNEL_TABLE_H_

#include "kernels/attention/launch.h"

namespace strata::attention {

// T: kx::bf16 or kx::f16. kHeadDim: the head dimension the kernel was compiled for, call.shape.head_dim or
// more. The call has been checked.
template <class T, int kHeadDim>
kx::LaunchStatus LaunchFa2Forward(kx::Stream stream, const ForwardCall& call);
template <class T, int kHeadDim>
kx::LaunchStatus LaunchFa2Backward(kx::Stream stream, const BackwardCall& call);
template <class T, int kHeadDim>
kx::LaunchStatus LaunchFa3Forward(kx::Stream stream, const ForwardCall& call);
template <class T, int kHeadDim>
kx::LaunchStatus LaunchFa3Backward(kx::Stream stream, const BackwardCall& call);
// Quantises Q, K and V into the workspace, then multiplies.
template <class T, int kHeadDim>
kx::LaunchStatus LaunchFp8Forward(kx::Stream stream, const ForwardCall& call);
template <class T>
kx::LaunchStatus LaunchDelta(kx::Stream stream, const BackwardCall& call);

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_KERNEL_TABLE_H_
