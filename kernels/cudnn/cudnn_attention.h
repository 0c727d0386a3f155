// Attention's forward pass by cuDNN: the second provider, beside the kernels of this project. The backward
// pass is not here: the dispatch (kernels/dispatch) leaves it to them.
//
// The operation is a graph of cuDNN's backend: S = scale * Q K^T, causal mask, softmax with its statistics, O
// = P V. An engine that recognises the pattern runs it as one kernel and never writes S to memory.
#ifndef KERNELS_CUDNN_CUDNN_ATTENTION_H_
#define KERNELS_CUDNN_CUDNN_ATTENTION_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "kernels/cudnn/cudnn_api.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace strata {

// What a plan depends on. Strides as in AttentionArgs.
struct CudnnAttentionShape {
  DType dtype = DType::kBF16;
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t ldq = 0, ldk = 0, ldv = 0, ldo = 0;

  auto operator<=>(const CudnnAttentionShape&) const = default;
};

// Asks the engines without a GPU: OK when one takes the graph on a device of compute capability `arch`
// (10 * major + minor; hand-written properties of an A100 or an H200), kUnimplemented when none does. Without
// a driver an engine stops where it would build its kernel, after it has accepted the graph: limits that it
// looks at later (head dimensions) are not seen.
absl::Status CheckCudnnSupport(CudnnApi& cudnn, int arch, const CudnnAttentionShape& shape);

class CudnnAttention {
 public:
  // `cudnn` outlives it. kFailedPrecondition when the library cannot start (no driver).
  static absl::StatusOr<std::unique_ptr<CudnnAttention>> Create(CudnnApi& cudnn);
  ~CudnnAttention();

  // As Ops::AttentionForward, `dtype` kBF16 or kF16. The first call of a shape builds its plan (up to
  // seconds). kUnimplemented: no engine takes it within the workspace; kInternal: the library failed.
  // Threads: any; one call at a time runs.
  absl::Status Forward(Stream* stream, DType dtype, const AttentionArgs& args) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Plan;
  CudnnAttention(CudnnApi& cudnn, CudnnHandle* handle);
  absl::StatusOr<const Plan*> PlanOf(const CudnnAttentionShape& shape) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  CudnnApi& cudnn_;
  CudnnHandle* const handle_;
  Mutex mu_;
  std::map<CudnnAttentionShape, std::unique_ptr<Plan>> plans_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata

#endif  // KERNELS_CUDNN_CUDNN_ATTENTION_H_
