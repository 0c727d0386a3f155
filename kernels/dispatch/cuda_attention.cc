#include "kernels/dispatch/cuda_attention.h"

#include <limits>
#include <string>

#include "common/status.h"
#include "kernels/attention/launch.h"

namespace strata {
namespace {

AttentionProblem ProblemOf(int arch, DType compute, const AttentionArgs& args, bool backward) {
  return {.arch = arch,
          .dtype = compute,
          .backward = backward,
          .head_dim = static_cast<int>(args.head_dim),
          .heads = static_cast<int>(args.heads),
          .kv_heads = static_cast<int>(args.kv_heads)};
}

// Causal, all sequences of one length.
absl::StatusOr<attention::ForwardCall> CallOf(const AttentionArgs& args) {
  const int64_t rows = args.batch * args.seq;
  if (rows > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("attention: ", args.batch, " sequences of ", args.seq,
                                                   " are more rows than an int32 counts"));
  }
  attention::ForwardCall call;
  call.shape.batch = static_cast<int32_t>(args.batch);
  call.shape.heads = static_cast<int32_t>(args.heads);
  call.shape.kv_heads = static_cast<int32_t>(args.kv_heads);
  call.shape.head_dim = static_cast<int32_t>(args.head_dim);
  call.shape.seq_q = call.shape.seq_k = static_cast<int32_t>(args.seq);
  call.shape.total_q = call.shape.total_k = static_cast<int32_t>(rows);
  call.shape.right = 0;
  call.shape.scale = static_cast<float>(args.scale);
  call.q = args.q;
  call.k = args.k;
  call.v = args.v;
  call.out = args.out;
  call.lse = static_cast<float*>(args.lse);
  call.ldq = args.ldq;
  call.ldk = args.ldk;
  call.ldv = args.ldv;
  call.ldo = args.ldo;
  call.workspace = args.workspace.data;
  call.workspace_bytes = args.workspace.bytes;
  return call;
}

attention::Family FamilyOf(AttentionProvider provider) {
  switch (provider) {
    case AttentionProvider::kFa3Fp8:
      return attention::Family::kFa3Fp8;
    case AttentionProvider::kFa3:
      return attention::Family::kFa3;
    default:
      return attention::Family::kFa2;
  }
}

// What a kernel refuses by its checks is the caller's to change, all else is the device's.
absl::Status ToStatus(const kx::LaunchStatus& status) {
  if (status.ok()) return absl::OkStatus();
  if (status.code == attention::kInvalidCall) return absl::InvalidArgumentError(status.message);
  return absl::InternalError(absl::StrCat("attention: ", status.message, " (CUDA error ", status.code, ")"));
}

}  // namespace

absl::Status CudaAttention::Forward(Stream* stream, DType compute, const AttentionArgs& args) {
  STRATA_ASSIGN_OR_RETURN(const AttentionProvider provider,
                          dispatch_.Choose(ProblemOf(arch_, compute, args, /*backward=*/false)));
  if (provider == AttentionProvider::kCudnn) return cudnn_->Forward(stream, compute, args);
  STRATA_ASSIGN_OR_RETURN(const attention::ForwardCall call, CallOf(args));
  return ToStatus(attention::Forward(stream, FamilyOf(provider), compute, call));
}

absl::Status CudaAttention::Backward(Stream* stream, DType compute, const AttentionBackwardArgs& args) {
  const AttentionArgs& forward = args.forward;
  STRATA_ASSIGN_OR_RETURN(const AttentionProvider provider,
                          dispatch_.Choose(ProblemOf(arch_, compute, forward, /*backward=*/true)));
  // Its deterministic form, as Ops promises: the workspace it asks for can be more than a plan has.
  if (provider == AttentionProvider::kCudnn) return cudnn_->Backward(stream, compute, args);
  attention::BackwardCall call;
  STRATA_ASSIGN_OR_RETURN(call.forward, CallOf(forward));
  const int64_t delta_bytes =
      forward.batch * forward.heads * forward.seq * static_cast<int64_t>(sizeof(float));
  if (forward.workspace.bytes < delta_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("attention backward: workspace of ",
                                                   forward.workspace.bytes, " bytes, needs ", delta_bytes));
  }
  call.delta = static_cast<float*>(forward.workspace.data);
  call.dout = args.dout;
  call.dq = args.dq;
  call.dk = args.dk;
  call.dv = args.dv;
  call.lddo = args.lddo;
  call.lddq = args.lddq;
  call.lddk = args.lddk;
  call.lddv = args.lddv;
  return ToStatus(attention::Backward(stream, FamilyOf(provider), compute, call));
}

}  // namespace strata
