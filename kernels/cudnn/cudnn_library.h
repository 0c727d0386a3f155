// The cuDNN of this machine.
#ifndef KERNELS_CUDNN_CUDNN_LIBRARY_H_
#define KERNELS_CUDNN_CUDNN_LIBRARY_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cudnn/cudnn_api.h"

namespace strata {

// Loads it; it stays loaded. kFailedPrecondition names what is missing (the library, a symbol, a version
// before 9.8, which brought device properties) and the remedy, in one line. Every call gives the same object.
absl::StatusOr<CudnnApi*> LoadCudnn(const std::string& name = "libcudnn.so.9");

}  // namespace strata

#endif  // KERNELS_CUDNN_CUDNN_LIBRARY_H_
