// Attention of the CUDA backend: the dispatch's choice, carried out by the kernels of kernels/attention or by
// cuDNN.
#ifndef KERNELS_DISPATCH_CUDA_ATTENTION_H_
#define KERNELS_DISPATCH_CUDA_ATTENTION_H_

#include "kernels/cuda/attention_backend.h"
#include "kernels/cudnn/cudnn_attention.h"
#include "kernels/dispatch/attention_dispatch.h"

namespace strata {

class CudaAttention : public AttentionBackend {
 public:
  // `arch`: 10 * major + minor of the device's compute capability. `cudnn` outlives it; where it is null, the
  // options say why.
  CudaAttention(int arch, AttentionDispatchOptions options, CudnnAttention* cudnn = nullptr)
      : arch_(arch), dispatch_(std::move(options)), cudnn_(cudnn) {}

  absl::Status Forward(Stream* stream, DType compute, const AttentionArgs& args) override;
  absl::Status Backward(Stream* stream, DType compute, const AttentionBackwardArgs& args) override;

  const AttentionDispatch& dispatch() const { return dispatch_; }

 private:
  const int arch_;
  AttentionDispatch dispatch_;
  CudnnAttention* const cudnn_;
};

}  // namespace strata

#endif  // KERNELS_DISPATCH_CUDA_ATTENTION_H_
