// The Status of a launch.
#ifndef KERNELS_CUDA_LAUNCH_ERROR_H_
#define KERNELS_CUDA_LAUNCH_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/kx/launch_types.h"

namespace strata {

inline absl::Status ToStatus(const char* op, const kx::LaunchStatus& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(op, ": ", status.message, " (CUDA error ", status.code, ")"));
}

}  // namespace strata

#endif  // KERNELS_CUDA_LAUNCH_ERROR_H_
