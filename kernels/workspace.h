// How much workspace each op needs: pure functions of shapes, the same on every machine, so that a plan
// made anywhere holds on the worker that runs it. A backend checks what its libraries ask for against
// these and fails with a typed error instead of allocating behind the budget. Every result is a multiple
// of 64.
#ifndef KERNELS_WORKSPACE_H_
#define KERNELS_WORKSPACE_H_

#include <cstdint>

#include "kernels/dtype.h"

namespace strata {

int64_t GemmWorkspaceBytes(DType compute, int64_t m, int64_t n, int64_t k);
int64_t Fp8GemmWorkspaceBytes(int64_t m, int64_t n, int64_t k);
int64_t NormBackwardWorkspaceBytes(DType compute, int64_t rows, int64_t width);
int64_t AttentionForwardWorkspaceBytes(DType compute, int64_t batch, int64_t seq, int64_t heads,
                                       int64_t kv_heads, int64_t head_dim);
int64_t AttentionBackwardWorkspaceBytes(DType compute, int64_t batch, int64_t seq, int64_t heads,
                                        int64_t kv_heads, int64_t head_dim);
int64_t BiasBackwardWorkspaceBytes(DType compute, int64_t rows, int64_t n);
int64_t CrossEntropyWorkspaceBytes(DType compute, int64_t rows, int64_t vocab);

// What the formulas and the kernels must agree on.

// Parts of the workspace of a product in fp8: codes of A and B, their scales, what finding those takes; then
// what the product itself gets.
constexpr int64_t kFp8PartAlign = 256;
constexpr int64_t kFp8SmallParts = 3;  // of at most kFp8SmallBytes
constexpr int64_t kFp8SmallBytes = 1024;

// Sums over rows are taken in blocks of this many rows, each block in row order, and the blocks added by a
// pairwise tree. At most 64 blocks.
int64_t ReductionBlockRows(int64_t rows);
int64_t ReductionBlocks(int64_t rows);

// Attention works on tiles of this many queries and keys; a head's dimension is padded to the unit.
constexpr int64_t kAttentionTile = 64;
constexpr int64_t kAttentionDimUnit = 32;
// Attention backward of one (sequence, kv head) is cut into this many independent parts, each with its own
// sums of dK and dV: enough work for 16 threads where there are few heads, a function of the shape only.
int64_t AttentionBackwardSplits(int64_t batch, int64_t seq, int64_t kv_heads);

}  // namespace strata

#endif  // KERNELS_WORKSPACE_H_
