// Ops and StateOps of a CPU backend as work of a CUDA stream: each call enqueues the inner backend's call by
// cudaLaunchHostFunc and returns. The math of a FakeCuda, whose device memory the host can touch.
#ifndef OFFLOAD_DEVICE_HOST_MATH_H_
#define OFFLOAD_DEVICE_HOST_MATH_H_

#include <memory>

#include "kernels/ops.h"
#include "kernels/state_ops.h"
#include "offload/device/fake_cuda.h"

namespace strata {

// `cuda` outlives the results. What StateOps calls access is declared to `cuda`; for Ops that is the caller's
// part, which knows the buffers.
std::unique_ptr<Ops> EnqueuedOps(FakeCuda& cuda, std::unique_ptr<Ops> inner);
std::unique_ptr<StateOps> EnqueuedStateOps(FakeCuda& cuda, std::unique_ptr<StateOps> inner);

// `inner`, announcing what host threads access to `cuda` for as long as they do.
std::unique_ptr<StateOps> AnnouncedStateOps(FakeCuda& cuda, std::unique_ptr<StateOps> inner);

}  // namespace strata

#endif  // OFFLOAD_DEVICE_HOST_MATH_H_
