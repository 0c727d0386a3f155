// How much workspace each op needs: pure functions of shapes, the same on every machine, so that a plan
// made anywhere holds on the worker that runs it. A backend checks what its libraries ask for against
// these and fails with a typed error instead of allocating behind the budget.
#ifndef KERNELS_WORKSPACE_H_
#define KERNELS_WORKSPACE_H_

#include <cstdint>

#include "kernels/dtype.h"

namespace strata {

int64_t GemmWorkspaceBytes(DType compute, int64_t m, int64_t n, int64_t k);
int64_t NormBackwardWorkspaceBytes(DType compute, int64_t rows, int64_t width);
int64_t AttentionForwardWorkspaceBytes(DType compute, int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                                       int64_t head_dim);
int64_t AttentionBackwardWorkspaceBytes(DType compute, int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                                        int64_t head_dim);
int64_t BiasBackwardWorkspaceBytes(DType compute, int64_t rows, int64_t n);
int64_t CrossEntropyWorkspaceBytes(DType compute, int64_t rows, int64_t vocab);

}  // namespace strata

#endif  // KERNELS_WORKSPACE_H_
