// DirectStorage: GPUDirect Storage (cuFile) between files and one range of a GPU's memory.
#ifndef OFFLOAD_DEVICE_DIRECT_STORAGE_H_
#define OFFLOAD_DEVICE_DIRECT_STORAGE_H_

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "offload/device/cuda_api.h"
#include "offload/device/cufile_api.h"
#include "offload/io/io_engine.h"

namespace strata {

// Threads: one at a time; its engines share it from any.
class DirectStorage {
 public:
  virtual ~DirectStorage() = default;

  // An engine of blocking cuFile calls in threads. RegisterFile is not optional here: requests on a file that
  // was not registered fail. RegisterBuffer takes the range of Open, and nothing else. Errors name path,
  // offset and cuFile's number; those of the drive have the cause NVME_IO_ERROR, those of the GPU
  // DEVICE_FAULT. Gone before the storage.
  virtual absl::StatusOr<std::unique_ptr<IoEngine>> CreateEngine() = 0;
};

// Opens cuFile's driver and registers `memory`, one allocation on the device, with it. The arguments outlive
// the result. kFailedPrecondition, here and of RegisterFile, with the remedy and the cause USER_ERROR.
absl::StatusOr<std::unique_ptr<DirectStorage>> OpenDirectStorage(CufileApi& cufile, CudaApi& cuda,
                                                                 std::span<std::byte> memory);

}  // namespace strata

#endif  // OFFLOAD_DEVICE_DIRECT_STORAGE_H_
