// The cuFile of this machine.
#ifndef OFFLOAD_DEVICE_CUFILE_LIBRARY_H_
#define OFFLOAD_DEVICE_CUFILE_LIBRARY_H_

#include <string>

#include "absl/status/statusor.h"
#include "offload/device/cufile_api.h"

namespace strata {

// Loads it; it stays loaded. kFailedPrecondition names what is missing (the library, a symbol) and the
// remedy, in one line. Every call gives the same object.
absl::StatusOr<CufileApi*> LoadCufile(const std::string& name = "libcufile.so.0");

}  // namespace strata

#endif  // OFFLOAD_DEVICE_CUFILE_LIBRARY_H_
