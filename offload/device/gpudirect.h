// What a machine has of GPUDirect Storage: the way between NVMe and a GPU's memory that does not pass the
// host's.
#ifndef OFFLOAD_DEVICE_GPUDIRECT_H_
#define OFFLOAD_DEVICE_GPUDIRECT_H_

#include <string>

#include "absl/status/statusor.h"
#include "offload/device/cufile_api.h"

namespace strata {

// "nvidia-fs 2.19", say, or kFailedPrecondition in one line: the call that failed with its number, what that
// means and the remedy. Opens the driver, asks and closes it.
absl::StatusOr<std::string> CheckGpuDirect(CufileApi& api);

// "cuFileDriverOpen: cuFile error 5010, nvidia-fs is not loaded, or does not answer".
std::string CufileErrorText(const char* call, const cufile::Error& error);

}  // namespace strata

#endif  // OFFLOAD_DEVICE_GPUDIRECT_H_
