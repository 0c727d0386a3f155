#include "worker/model/block_math.h"

#include "common/status.h"

namespace strata {

absl::Status BlockMath::LinearForward(const Linear& linear, int64_t rows, ConstMatrixView x,
                                      const void* params, MatrixView y) {
  GemmArgs gemm;
  gemm.m = rows;
  gemm.n = linear.out;
  gemm.k = linear.in;
  gemm.a = x.data;
  gemm.lda = x.ld;
  gemm.b = Value(params, linear.weight);
  gemm.ldb = linear.out_in ? linear.in : linear.out;
  gemm.transpose_b = linear.out_in;
  gemm.c = y.data;
  gemm.ldc = y.ld;
  if (linear.bias >= 0) gemm.bias = Value(params, linear.bias);
  gemm.workspace = workspace_;
  gemm.fp8 = fp8_;
  return ops_.Gemm(stream_, gemm);
}

absl::Status BlockMath::LinearInputGradient(const Linear& linear, int64_t rows, ConstMatrixView dy,
                                            const void* params, MatrixView dx, bool accumulate) {
  GemmArgs gemm;
  gemm.m = rows;
  gemm.n = linear.in;
  gemm.k = linear.out;
  gemm.a = dy.data;
  gemm.lda = dy.ld;
  gemm.b = Value(params, linear.weight);
  gemm.ldb = linear.out_in ? linear.in : linear.out;
  gemm.transpose_b = !linear.out_in;
  gemm.c = dx.data;
  gemm.ldc = dx.ld;
  gemm.accumulate = accumulate;
  gemm.workspace = workspace_;
  gemm.fp8 = fp8_;
  gemm.a_type = Fp8::kE5M2;
  return ops_.Gemm(stream_, gemm);
}

absl::Status BlockMath::LinearParameterGradients(const Linear& linear, int64_t rows, ConstMatrixView x,
                                                 ConstMatrixView dy, void* grads, bool accumulate) {
  GemmArgs gemm;
  gemm.m = linear.out_in ? linear.out : linear.in;
  gemm.n = linear.out_in ? linear.in : linear.out;
  gemm.k = rows;
  const ConstMatrixView& a = linear.out_in ? dy : x;
  const ConstMatrixView& b = linear.out_in ? x : dy;
  gemm.a = a.data;
  gemm.lda = a.ld;
  gemm.transpose_a = true;
  gemm.b = b.data;
  gemm.ldb = b.ld;
  gemm.c = Acc(grads, linear.weight);
  gemm.ldc = gemm.n;
  gemm.c_is_acc = true;
  gemm.accumulate = accumulate;
  gemm.workspace = workspace_;
  gemm.fp8 = fp8_;
  (linear.out_in ? gemm.a_type : gemm.b_type) = Fp8::kE5M2;
  STRATA_RETURN_IF_ERROR(ops_.Gemm(stream_, gemm));
  if (linear.bias < 0) return absl::OkStatus();
  return ops_.BiasBackward(stream_, rows, linear.out, dy.data, dy.ld, Acc(grads, linear.bias), workspace_);
}

NormArgs BlockMath::MakeNormArgs(const Norm& norm, int64_t rows, const void* x, const void* params, void* y,
                                 void* mean, void* rstd) const {
  NormArgs args;
  args.kind = norm.kind;
  args.rows = rows;
  args.width = norm.width;
  args.eps = norm.eps;
  args.x = x;
  args.weight = Value(params, norm.weight);
  if (norm.bias >= 0) args.bias = Value(params, norm.bias);
  args.y = y;
  args.mean = mean;
  args.rstd = rstd;
  return args;
}

absl::Status BlockMath::NormForward(const Norm& norm, int64_t rows, const void* x, const void* params,
                                    void* y, void* mean, void* rstd) {
  return ops_.NormForward(stream_, MakeNormArgs(norm, rows, x, params, y, mean, rstd));
}

absl::Status BlockMath::AddNormForward(const Norm& norm, int64_t rows, const void* x, void* sum,
                                       const void* params, void* y, void* mean, void* rstd) {
  NormArgs args = MakeNormArgs(norm, rows, x, params, y, mean, rstd);
  args.residual = args.sum = sum;
  return ops_.NormForward(stream_, args);
}

absl::Status BlockMath::NormBackward(const Norm& norm, int64_t rows, const void* x, const void* params,
                                     const void* mean, const void* rstd, const void* dy, void* dx,
                                     void* grads) {
  NormBackwardArgs args;
  args.kind = norm.kind;
  args.rows = rows;
  args.width = norm.width;
  args.x = x;
  args.weight = Value(params, norm.weight);
  args.dy = dy;
  args.mean = mean;
  args.rstd = rstd;
  args.dx = dx;
  args.dweight = Acc(grads, norm.weight);
  if (norm.bias >= 0) args.dbias = Acc(grads, norm.bias);
  args.workspace = workspace_;
  return ops_.NormBackward(stream_, args);
}

Norm MakeNorm(const ModelConfig& config, const ParamUnit& unit, int index) {
  const bool layer_norm = config.architecture == Architecture::kGpt2;
  Norm norm;
  norm.kind = layer_norm ? NormKind::kLayerNorm : NormKind::kRmsNorm;
  norm.width = config.hidden;
  norm.eps = config.norm_eps;
  norm.weight = unit.tensors[index].offset;
  if (layer_norm) norm.bias = unit.tensors[index + 1].offset;
  return norm;
}

absl::Status ZeroPadding(Ops& ops, Stream* stream, const ParamUnit& unit, void* grads) {
  const int64_t size = SizeOf(ops.acc_dtype());
  for (size_t i = 0; i < unit.tensors.size(); ++i) {
    const int64_t begin = unit.tensors[i].offset + unit.tensors[i].elements;
    const int64_t end = i + 1 < unit.tensors.size() ? unit.tensors[i + 1].offset : unit.elements;
    if (begin == end) continue;
    STRATA_RETURN_IF_ERROR(ops.Zero(stream, static_cast<char*>(grads) + begin * size, (end - begin) * size),
                           "zeroing the padding after ", unit.tensors[i].name);
  }
  return absl::OkStatus();
}

}  // namespace strata
