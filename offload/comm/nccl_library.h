// The NCCL of this machine.
#ifndef OFFLOAD_COMM_NCCL_LIBRARY_H_
#define OFFLOAD_COMM_NCCL_LIBRARY_H_

#include <string>

#include "absl/status/statusor.h"
#include "offload/comm/nccl_api.h"

namespace strata {

// Loads it; it stays loaded. kFailedPrecondition names what is missing (the library or a symbol of it) and
// the remedy, in one line. Every call gives the same object.
absl::StatusOr<NcclApi*> LoadNccl(const std::string& name = "libnccl.so.2");

}  // namespace strata

#endif  // OFFLOAD_COMM_NCCL_LIBRARY_H_
