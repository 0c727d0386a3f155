// How much workspace the matrix products of a device are lent: as kernels/workspace.h, and by who multiplies
// there.
#ifndef KERNELS_GEMM_WORKSPACE_H_
#define KERNELS_GEMM_WORKSPACE_H_

#include <cstdint>

#include "kernels/dtype.h"

namespace strata {

enum class GemmLibrary : uint8_t { kCpu, kCublasLt };

// kCpu: GemmWorkspaceBytes of kernels/workspace.h, the least that anyone is lent. A multiple of 64; the same
// for a shape on every card, since plans and the choice of an algorithm depend on it.
int64_t GemmWorkspaceBytes(GemmLibrary library, DType compute, int64_t m, int64_t n, int64_t k);

}  // namespace strata

#endif  // KERNELS_GEMM_WORKSPACE_H_
