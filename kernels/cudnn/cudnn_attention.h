// Attention by cuDNN, forward and backward: the second provider, beside the kernels of this project. The
// graphs are in attention_graph.h.
#ifndef KERNELS_CUDNN_CUDNN_ATTENTION_H_
#define KERNELS_CUDNN_CUDNN_ATTENTION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "kernels/cudnn/attention_graph.h"
#include "kernels/cudnn/cudnn_api.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace strata {

// Asks the library without a GPU: OK when an engine takes the graph on a device of compute capability `arch`
// (10 * major + minor; hand-written properties of an A100 or an H200), kUnimplemented with the library's
// reason when none does. An engine accepts a graph when it has built its kernel, for which it loads the
// driver's libcuda.so.1; the toolkit's stub of that will do. Without either it stops there, after it has
// known the graph by its pattern: the answer is then OK, and limits that it looks at later (head dimensions)
// are not seen.
absl::Status CheckCudnnSupport(CudnnApi& cudnn, int arch, const CudnnAttentionShape& shape);

// What AttentionArgs do not say; as in CudnnAttentionShape.
struct CudnnAttentionOptions {
  int64_t window = 0;
  bool deterministic = true;
};

class CudnnAttention {
 public:
  // `cudnn` outlives it. kFailedPrecondition when the library cannot start (no driver).
  static absl::StatusOr<std::unique_ptr<CudnnAttention>> Create(CudnnApi& cudnn);
  ~CudnnAttention();

  // As Ops::AttentionForward and AttentionBackward, `dtype` kBF16 or kF16. The first call of a shape builds
  // its plan (up to seconds). kUnimplemented: no engine takes it within the workspace; kInternal: the library
  // failed. Threads: any; one call at a time runs.
  absl::Status Forward(Stream* stream, DType dtype, const AttentionArgs& args,
                       const CudnnAttentionOptions& options = {}) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Backward(Stream* stream, DType dtype, const AttentionBackwardArgs& args,
                        const CudnnAttentionOptions& options = {}) ABSL_LOCKS_EXCLUDED(mu_);

  // What Backward asks of args.forward.workspace, which is not looked at; builds the plan.
  absl::StatusOr<int64_t> BackwardWorkspaceBytes(DType dtype, const AttentionBackwardArgs& args,
                                                 const CudnnAttentionOptions& options = {})
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Plan;
  using Bindings = std::vector<std::pair<int64_t, const void*>>;

  CudnnAttention(CudnnApi& cudnn, CudnnHandle* handle);
  absl::StatusOr<const Plan*> PlanOf(const CudnnAttentionShape& shape) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Scalars and the scratch, which comes first in the workspace, are added to what is bound.
  absl::Status Run(Stream* stream, const CudnnAttentionShape& shape, const AttentionArgs& args,
                   Bindings bound) ABSL_LOCKS_EXCLUDED(mu_);

  CudnnApi& cudnn_;
  CudnnHandle* const handle_;
  Mutex mu_;
  std::map<CudnnAttentionShape, std::unique_ptr<Plan>> plans_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata

#endif  // KERNELS_CUDNN_CUDNN_ATTENTION_H_
