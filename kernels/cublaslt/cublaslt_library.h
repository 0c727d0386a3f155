// The cuBLASLt of this machine. Loading it takes 0.4 s and hundreds of MiB of address space, so it happens
// when a GPU is going to be used and not before.
#ifndef KERNELS_CUBLASLT_CUBLASLT_LIBRARY_H_
#define KERNELS_CUBLASLT_CUBLASLT_LIBRARY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cublaslt/cublaslt_api.h"

namespace strata {

// Loads the first of `names` that there is; it stays loaded. kFailedPrecondition names what is missing (the
// library or a symbol of it) and the remedy, in one line. Every call gives the same object.
absl::StatusOr<CublasLtApi*> LoadCublasLt(const std::vector<std::string>& names = {"libcublasLt.so.13"});

}  // namespace strata

#endif  // KERNELS_CUBLASLT_CUBLASLT_LIBRARY_H_
