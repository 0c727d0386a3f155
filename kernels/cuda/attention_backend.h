// AttentionBackend: who computes attention for CudaOps (kernels/dispatch/cuda_attention.h).
#ifndef KERNELS_CUDA_ATTENTION_BACKEND_H_
#define KERNELS_CUDA_ATTENTION_BACKEND_H_

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace strata {

class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  // As Ops::AttentionForward and AttentionBackward: enqueued on `stream`, the same bits for the same
  // arguments, which have passed Validate (kernels/validate.h). kUnimplemented: no kernel takes this type or
  // shape. Threads: one at a time per stream.
  virtual absl::Status Forward(Stream* stream, DType compute, const AttentionArgs& args) = 0;
  virtual absl::Status Backward(Stream* stream, DType compute, const AttentionBackwardArgs& args) = 0;
};

}  // namespace strata

#endif  // KERNELS_CUDA_ATTENTION_BACKEND_H_
