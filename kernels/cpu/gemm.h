// Matrix products by oneDNN on plain layouts.
#ifndef KERNELS_CPU_GEMM_H_
#define KERNELS_CPU_GEMM_H_

#include <memory>

#include "absl/status/status.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace strata::cpu {

// One oneDNN primitive per shape and flags, made at first sight and kept. Its scratchpad is the caller's
// workspace: a primitive that asks for more than GemmWorkspaceBytes is made again for fewer threads, and one
// that does so even for a single thread is kInternal. For fp16, and for bf16 where oneDNN has no bf16 product
// on this CPU, blocks are converted to float in the workspace; with fp8 they are rounded at that. Results are
// deterministic for a given shape and number of threads. Used by one thread at a time.
class Gemm {
 public:
  // `kernels` must outlive this. `native_bf16` false forces the conversion to float.
  Gemm(DType compute, int threads, const KernelTable& kernels, bool native_bf16);
  ~Gemm();

  // `args` is validated.
  absl::Status Run(const GemmArgs& args);

 private:
  struct Key;
  struct KeyHash;
  struct Entry;
  class Cache;

  absl::Status RunPrimitive(DType type, const GemmArgs& args, int64_t scratch_limit, bool* unsupported);
  // Weight gradients: A^T in blocks, so that oneDNN only sees plain products.
  absl::Status RunTransposed(const GemmArgs& args, int64_t workspace_bytes, bool* unsupported);
  absl::Status RunConverted(const GemmArgs& args);

  const DType compute_;
  const int threads_;
  const KernelTable& kernels_;
  bool native_bf16_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace strata::cpu

#endif  // KERNELS_CPU_GEMM_H_
