// The serial kernels of the CPU backend, compiled once per instruction set and element type. CpuOps cuts
// the work of an op into pieces whose bounds depend on the shape only, and runs them on its threads; a
// kernel does one piece and knows nothing of threads. All pointers are to T (float, BFloat16 or Float16)
// unless they say float or double.
#ifndef KERNELS_CPU_KERNEL_TABLE_H_
#define KERNELS_CPU_KERNEL_TABLE_H_

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace strata::cpu {

// Bytes of scratch the attention kernels need per thread: tiles that stay in the L2 cache.
struct AttentionScratch {
  int64_t forward_bytes = 0;
  int64_t backward_bytes = 0;
};

struct KernelTable {
  const char* name;

  // Rows [begin, end), with or without a residual.
  void (*norm_forward)(const NormArgs& args, int64_t begin, int64_t end);
  // Rows [begin, end); the sums over them of dweight and dbias (float [width]) are overwritten.
  void (*norm_backward)(const NormBackwardArgs& args, int64_t begin, int64_t end, float* dweight,
                        float* dbias);
  // Rows [begin, end); `table` is float [seq][2][head_dim / 2]: cosines, then sines.
  void (*rope)(const RopeArgs& args, const float* table, int64_t begin, int64_t end);

  void (*gelu_forward)(GeluKind kind, int64_t n, const void* x, void* y);
  void (*gelu_backward)(GeluKind kind, int64_t n, const void* x, const void* dy, void* dx);
  void (*swiglu_forward)(int64_t rows, int64_t ffn, const void* x, void* y);
  void (*swiglu_backward)(int64_t rows, int64_t ffn, const void* x, const void* dy, void* dx);
  void (*add)(int64_t n, const void* a, const void* b, void* out);
  // Elements [begin, end).
  void (*dropout)(const DropoutArgs& args, int64_t begin, int64_t end);

  // out (float [n]) = the sum of `rows` rows, in row order.
  void (*sum_rows)(int64_t rows, int64_t n, const void* x, int64_t ld, float* out);
  // out[i] = the sum over `blocks` of x[block * ld + i] for i < n, by a pairwise tree; x is float and is
  // clobbered.
  void (*sum_tree)(int64_t blocks, int64_t n, float* x, int64_t ld, float* out);

  // Rows [begin, end) of the output.
  void (*embedding_forward)(int64_t begin, int64_t end, int64_t seq, int64_t width, const int32_t* tokens,
                            const void* wte, const void* wpe, void* out);
  // Columns [begin, end) of the gradients, which the caller has zeroed.
  void (*embedding_backward)(int64_t rows, int64_t seq, int64_t width, const int32_t* tokens,
                             const void* dout, float* dwte, float* dwpe, int64_t begin, int64_t end);

  // Rows [begin, end); row_loss[r] is the loss of row r, 0 when masked.
  void (*cross_entropy)(const CrossEntropyArgs& args, int64_t begin, int64_t end, double* row_loss);

  // Rows of T to rows of float and, with the same leading dimensions meaning, back: c (T, or float when
  // c_is_acc) = sum + (old c if accumulate) + (bias if given).
  void (*to_float)(int64_t rows, int64_t n, const void* x, int64_t ld, float* out, int64_t ld_out);
  // Bits of the largest magnitude as a float; and to_float with elements rounded as those of a matrix whose
  // scale is 2^exponent.
  uint32_t (*largest_bits)(int64_t rows, int64_t n, const void* x, int64_t ld);
  void (*to_fp8)(Fp8 type, int exponent, int64_t rows, int64_t n, const void* x, int64_t ld, float* out,
                 int64_t ld_out);
  void (*gemm_epilogue)(int64_t rows, int64_t n, const float* sum, int64_t ld, const void* bias,
                        bool accumulate, bool c_is_acc, void* c, int64_t ldc);

  // out[c * ld_out + r] = x[r * ld + c] of bf16; ld_out is even.
  void (*transpose_bf16)(int64_t rows, int64_t cols, const void* x, int64_t ld, void* out, int64_t ld_out);

  // Attention; see attention.inc for the algorithm and the layout of the workspace.
  AttentionScratch (*attention_scratch)(int64_t head_dim);
  // Packs key tile `tile` of (sequence `batch`, kv head) into the workspace.
  void (*attention_pack)(const AttentionArgs& args, bool backward, int64_t batch, int64_t kv_head,
                         int64_t tile);
  // One tile of queries of one head.
  void (*attention_forward)(const AttentionArgs& args, int64_t batch, int64_t head, int64_t tile,
                            void* scratch);
  // One split of one kv head: dq of its queries, and this split's sums of dk and dv.
  void (*attention_backward)(const AttentionBackwardArgs& args, int64_t batch, int64_t kv_head, int64_t split,
                             void* scratch);
  // Adds the splits of one key tile and writes dk and dv.
  void (*attention_reduce)(const AttentionBackwardArgs& args, int64_t batch, int64_t kv_head, int64_t tile);
};

// The table of the best kernels not above `isa` for `compute` (kF32, kBF16 or kF16).
const KernelTable& KernelsFor(DType compute, CpuIsa isa);

// One per instruction set, each in its own translation unit.
namespace base {
const KernelTable& Table(DType compute, bool amx);
}
namespace avx2 {
const KernelTable& Table(DType compute, bool amx);
}
namespace avx512 {
const KernelTable& Table(DType compute, bool amx);
}
namespace avx512bf16 {
const KernelTable& Table(DType compute, bool amx);
}

}  // namespace strata::cpu

#endif  // KERNELS_CPU_KERNEL_TABLE_H_
