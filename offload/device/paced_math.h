// Math that takes time on a FakeCuda and computes nothing: a GPU of given speeds, for tests of what measures
// them.
#ifndef OFFLOAD_DEVICE_PACED_MATH_H_
#define OFFLOAD_DEVICE_PACED_MATH_H_

#include <memory>

#include "kernels/ops.h"
#include "kernels/state_ops.h"
#include "offload/device/fake_cuda.h"

namespace strata {

struct FakeSpeeds {
  double flops = 1e12;  // of matrix products, in fp32 a quarter of it
  double attention_flops = 5e11;
  double bytes_per_second = 1e11;  // of everything else: each operand read or written once
  double launch_seconds = 0;       // that every kernel takes beside that
};

// `cuda` outlives them.
std::unique_ptr<Ops> PacedOps(FakeCuda& cuda, DType compute, const FakeSpeeds& speeds);
std::unique_ptr<StateOps> PacedStateOps(FakeCuda& cuda, const FakeSpeeds& speeds);

}  // namespace strata

#endif  // OFFLOAD_DEVICE_PACED_MATH_H_
