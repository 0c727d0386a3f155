#include "kernels/validate.h"

#include <string>

#include "common/status.h"
#include "kernels/workspace.h"

namespace strata {
namespace {

template <typename... Parts>
absl::Status Invalid(const std::string& shape, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(shape, ": ", parts...));
}

absl::Status CheckWorkspace(const std::string& shape, const Workspace& workspace, int64_t needed) {
  if (workspace.bytes < needed || (needed > 0 && workspace.data == nullptr)) {
    return Invalid(shape, "workspace of ", workspace.bytes, " bytes, needs ", needed);
  }
  if (reinterpret_cast<uintptr_t>(workspace.data) % 64 != 0) {
    return Invalid(shape, "workspace is not aligned to 64 bytes");
  }
  return absl::OkStatus();
}

std::string Describe(const GemmArgs& a) {
  return absl::StrCat("gemm m=", a.m, " n=", a.n, " k=", a.k, " lda=", a.lda, a.transpose_a ? "^T" : "",
                      " ldb=", a.ldb, a.transpose_b ? "^T" : "", " ldc=", a.ldc);
}

std::string Describe(const AttentionArgs& a) {
  return absl::StrCat("attention batch=", a.batch, " seq=", a.seq, " heads=", a.heads,
                      " kv_heads=", a.kv_heads, " head_dim=", a.head_dim, " ldq=", a.ldq, " ldk=", a.ldk,
                      " ldv=", a.ldv, " ldo=", a.ldo);
}

absl::Status CheckFp8(DType compute, const GemmArgs& a, const std::string& shape) {
  // The reference has it in float64 too, so that there is a truth.
  if (compute != DType::kBF16 && compute != DType::kF64) {
    return Invalid(shape, "fp8 is for operands in bf16, these are ", Name(compute));
  }
  if (a.a_type == Fp8::kE5M2 && a.b_type == Fp8::kE5M2)
    return Invalid(shape, "fp8: at most one operand is e5m2");
  for (const int64_t size : {a.m, a.n, a.k, a.lda, a.ldb, a.ldc}) {
    if (size % kFp8Unit != 0) return Invalid(shape, "fp8: all sizes must be multiples of ", kFp8Unit);
  }
  for (const void* pointer : {a.a, a.b, static_cast<const void*>(a.c)}) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0)
      return Invalid(shape, "fp8: matrices are aligned to 16 bytes");
  }
  return CheckWorkspace(shape, a.workspace, Fp8GemmWorkspaceBytes(a.m, a.n, a.k));
}

absl::Status CheckAttentionShape(const AttentionArgs& a) {
  const std::string shape = Describe(a);
  if (a.batch < 1 || a.seq < 1 || a.heads < 1 || a.kv_heads < 1 || a.head_dim < 1) {
    return Invalid(shape, "every dimension must be at least 1");
  }
  if (a.heads % a.kv_heads != 0) return Invalid(shape, "heads must be a multiple of kv_heads");
  if (a.head_dim > kHeadDimMax) return Invalid(shape, "head_dim is at most ", kHeadDimMax);
  if (!(a.scale > 0)) return Invalid(shape, "scale must be positive, is ", a.scale);
  const int64_t width = a.heads * a.head_dim, kv_width = a.kv_heads * a.head_dim;
  if (a.ldq < width || a.ldo < width || a.ldk < kv_width || a.ldv < kv_width) {
    return Invalid(shape, "a leading dimension is smaller than its row");
  }
  if (!a.q || !a.k || !a.v || !a.out || !a.lse) return Invalid(shape, "a pointer is null");
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(DType compute, const GemmArgs& a) {
  const std::string shape = Describe(a);
  if (a.m < 1 || a.n < 1 || a.k < 1) return Invalid(shape, "every dimension must be at least 1");
  if (a.lda < (a.transpose_a ? a.m : a.k) || a.ldb < (a.transpose_b ? a.k : a.n) || a.ldc < a.n) {
    return Invalid(shape, "a leading dimension is smaller than its row");
  }
  if (!a.a || !a.b || !a.c) return Invalid(shape, "a pointer is null");
  if (a.c_is_acc && a.bias) return Invalid(shape, "c_is_acc goes without bias: add it to a C of its type");
  if (a.fp8) return CheckFp8(compute, a, shape);
  return CheckWorkspace(shape, a.workspace, GemmWorkspaceBytes(compute, a.m, a.n, a.k));
}

absl::Status Validate(DType compute, const NormArgs& a) {
  const std::string shape = absl::StrCat("norm rows=", a.rows, " width=", a.width);
  if (a.rows < 1 || a.width < 1) return Invalid(shape, "every dimension must be at least 1");
  const bool layer_norm = a.kind == NormKind::kLayerNorm;
  if (!a.x || !a.weight || !a.y || !a.rstd || (layer_norm && (!a.bias || !a.mean))) {
    return Invalid(shape, "a pointer is null");
  }
  if (!a.residual != !a.sum) return Invalid(shape, "residual and sum come together, one is null");
  return absl::OkStatus();
}

absl::Status Validate(DType compute, const NormBackwardArgs& a) {
  const std::string shape = absl::StrCat("norm backward rows=", a.rows, " width=", a.width);
  if (a.rows < 1 || a.width < 1) return Invalid(shape, "every dimension must be at least 1");
  const bool layer_norm = a.kind == NormKind::kLayerNorm;
  if (!a.x || !a.weight || !a.dy || !a.rstd || !a.dx || !a.dweight || (layer_norm && (!a.mean || !a.dbias))) {
    return Invalid(shape, "a pointer is null");
  }
  return CheckWorkspace(shape, a.workspace, NormBackwardWorkspaceBytes(compute, a.rows, a.width));
}

absl::Status Validate(const DropoutArgs& a) {
  const std::string shape = absl::StrCat("dropout n=", a.n, " first=", a.first, " drop=", a.drop);
  if (a.n < 1 || a.first < 0) return Invalid(shape, "n must be at least 1, first at least 0");
  if (!(a.drop >= 0 && a.drop < 1)) return Invalid(shape, "drop must be at least 0 and below 1");
  if (!a.x || !a.out) return Invalid(shape, "a pointer is null");
  return absl::OkStatus();
}

absl::Status Validate(DType compute, const RopeArgs& a) {
  const std::string shape = absl::StrCat("rope rows=", a.rows, " seq=", a.seq, " heads=", a.heads,
                                         " head_dim=", a.head_dim, " ld=", a.ld);
  if (a.rows < 1 || a.seq < 1 || a.heads < 1 || a.head_dim < 1) {
    return Invalid(shape, "every dimension must be at least 1");
  }
  if (a.head_dim % 2 != 0) return Invalid(shape, "head_dim must be even");
  if (a.head_dim > kHeadDimMax) return Invalid(shape, "head_dim is at most ", kHeadDimMax);
  if (a.ld < a.heads * a.head_dim) return Invalid(shape, "the leading dimension is smaller than its row");
  if (!(a.theta > 0)) return Invalid(shape, "theta must be positive, is ", a.theta);
  if (!a.x) return Invalid(shape, "a pointer is null");
  return absl::OkStatus();
}

absl::Status Validate(DType compute, const AttentionArgs& a) {
  STRATA_RETURN_IF_ERROR(CheckAttentionShape(a));
  return CheckWorkspace(
      Describe(a), a.workspace,
      AttentionForwardWorkspaceBytes(compute, a.batch, a.seq, a.heads, a.kv_heads, a.head_dim));
}

absl::Status Validate(DType compute, const AttentionBackwardArgs& args) {
  const AttentionArgs& a = args.forward;
  STRATA_RETURN_IF_ERROR(CheckAttentionShape(a));
  const std::string shape = absl::StrCat(Describe(a), " lddo=", args.lddo, " lddq=", args.lddq,
                                         " lddk=", args.lddk, " lddv=", args.lddv);
  const int64_t width = a.heads * a.head_dim, kv_width = a.kv_heads * a.head_dim;
  if (args.lddo < width || args.lddq < width || args.lddk < kv_width || args.lddv < kv_width) {
    return Invalid(shape, "a leading dimension is smaller than its row");
  }
  if (!args.dout || !args.dq || !args.dk || !args.dv) return Invalid(shape, "a pointer is null");
  return CheckWorkspace(
      shape, a.workspace,
      AttentionBackwardWorkspaceBytes(compute, a.batch, a.seq, a.heads, a.kv_heads, a.head_dim));
}

absl::Status Validate(DType compute, const CrossEntropyArgs& a) {
  const std::string shape = absl::StrCat("cross entropy rows=", a.rows, " vocab=", a.vocab);
  if (a.rows < 1 || a.vocab < 1) return Invalid(shape, "every dimension must be at least 1");
  if (!a.logits || !a.targets || !a.loss) return Invalid(shape, "a pointer is null");
  return CheckWorkspace(shape, a.workspace, CrossEntropyWorkspaceBytes(compute, a.rows, a.vocab));
}

absl::Status ValidateBiasBackward(DType compute, int64_t rows, int64_t n, int64_t ldy,
                                  const Workspace& workspace) {
  const std::string shape = absl::StrCat("bias backward rows=", rows, " n=", n, " ldy=", ldy);
  if (rows < 1 || n < 1) return Invalid(shape, "every dimension must be at least 1");
  if (ldy < n) return Invalid(shape, "the leading dimension is smaller than its row");
  return CheckWorkspace(shape, workspace, BiasBackwardWorkspaceBytes(compute, rows, n));
}

absl::Status ValidatePositive(const char* op, std::initializer_list<int64_t> dims) {
  for (const int64_t dim : dims) {
    if (dim >= 1) continue;
    return absl::InvalidArgumentError(absl::StrCat(op, ": every dimension must be at least 1, one is ", dim));
  }
  return absl::OkStatus();
}

}  // namespace strata
