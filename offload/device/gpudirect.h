// What a machine has of GPUDirect Storage: the way between NVMe and a GPU's memory that does not pass the
// host's.
#ifndef OFFLOAD_DEVICE_GPUDIRECT_H_
#define OFFLOAD_DEVICE_GPUDIRECT_H_

#include <string>

#include "offload/device/cufile_api.h"

namespace strata {

// One line: "nvidia-fs 2.19 could carry it", or the call that failed with its number, what that means and
// the remedy. Opens the driver, asks and closes it.
std::string DescribeGpuDirect(CufileApi& api);

}  // namespace strata

#endif  // OFFLOAD_DEVICE_GPUDIRECT_H_
