// What every block of a model is made of: typed addresses in a unit, linear layers, and norms, in terms of
// Ops.
#ifndef WORKER_MODEL_BLOCK_MATH_H_
#define WORKER_MODEL_BLOCK_MATH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "offload/model/model_layout.h"
#include "offload/model/saved_layout.h"

namespace strata {

// y[rows, out] = x[rows, in] W (+ bias): where W and bias lie in their unit, in elements.
struct Linear {
  int64_t in = 0, out = 0;
  bool out_in = false;  // W is stored [out, in] (Llama); else [in, out] (GPT-2)
  int64_t weight = 0;
  int64_t bias = -1;  // -1: none
};

struct Norm {
  NormKind kind = NormKind::kRmsNorm;
  int64_t width = 0;
  double eps = 0;
  int64_t weight = 0;
  int64_t bias = -1;  // LayerNorm only
};

// A matrix of compute type in device memory; `ld` in elements.
struct MatrixView {
  void* data = nullptr;
  int64_t ld = 0;
};
struct ConstMatrixView {
  const void* data = nullptr;
  int64_t ld = 0;

  ConstMatrixView(const void* data, int64_t ld) : data(data), ld(ld) {}
  ConstMatrixView(MatrixView view) : data(view.data), ld(view.ld) {}  // NOLINT: a view of const is a view
};

inline void* At(void* area, const BufferRange& range) { return static_cast<char*>(area) + range.offset; }
inline const void* At(const void* area, const BufferRange& range) {
  return static_cast<const char*>(area) + range.offset;
}

// Ops bound to a layout's types and to one call's stream and op workspace. Lives for one operation of a
// block.
class BlockMath {
 public:
  // `fp8`: linear layers round what they multiply to fp8: activations and weights to E4M3, gradients to E5M2.
  BlockMath(Ops& ops, Stream* stream, Workspace op_workspace, bool fp8 = false)
      : ops_(ops),
        stream_(stream),
        workspace_(op_workspace),
        fp8_(fp8),
        value_bytes_(SizeOf(ops.compute_dtype())),
        acc_bytes_(SizeOf(ops.acc_dtype())) {}

  Ops& ops() { return ops_; }
  Stream* stream() { return stream_; }
  Workspace workspace() { return workspace_; }

  // Element `index` of a buffer of compute type, or of accumulation type.
  const void* Value(const void* base, int64_t index) const {
    return static_cast<const char*>(base) + index * value_bytes_;
  }
  void* Value(void* base, int64_t index) const { return static_cast<char*>(base) + index * value_bytes_; }
  void* Acc(void* base, int64_t index) const { return static_cast<char*>(base) + index * acc_bytes_; }
  // Columns from `column` on.
  MatrixView Columns(MatrixView m, int64_t column) const { return {Value(m.data, column), m.ld}; }
  ConstMatrixView Columns(ConstMatrixView m, int64_t column) const { return {Value(m.data, column), m.ld}; }

  // y = x W + bias.
  absl::Status LinearForward(const Linear& linear, int64_t rows, ConstMatrixView x, const void* params,
                             MatrixView y);
  // dx = dy W^T, or dx += dy W^T.
  absl::Status LinearInputGradient(const Linear& linear, int64_t rows, ConstMatrixView dy, const void* params,
                                   MatrixView dx, bool accumulate);
  // dW = x^T dy, or += ; dbias = column sums of dy (overwritten).
  absl::Status LinearParameterGradients(const Linear& linear, int64_t rows, ConstMatrixView x,
                                        ConstMatrixView dy, void* grads, bool accumulate);

  // x, y: [rows, width] without gaps. mean and rstd: acc [rows].
  absl::Status NormForward(const Norm& norm, int64_t rows, const void* x, const void* params, void* y,
                           void* mean, void* rstd);
  // sum += x, and the norm of sum.
  absl::Status AddNormForward(const Norm& norm, int64_t rows, const void* x, void* sum, const void* params,
                              void* y, void* mean, void* rstd);
  // dx += the gradient through the norm; the parameters' gradients are overwritten.
  absl::Status NormBackward(const Norm& norm, int64_t rows, const void* x, const void* params,
                            const void* mean, const void* rstd, const void* dy, void* dx, void* grads);

 private:
  NormArgs MakeNormArgs(const Norm& norm, int64_t rows, const void* x, const void* params, void* y,
                        void* mean, void* rstd) const;

  Ops& ops_;
  Stream* stream_;
  Workspace workspace_;
  bool fp8_;
  int64_t value_bytes_;
  int64_t acc_bytes_;
};

// The norm whose weight is tensor `index` of the unit and whose bias (LayerNorm) follows it.
Norm MakeNorm(const ModelConfig& config, const ParamUnit& unit, int index);

// Writes zeros to the elements between and after the tensors of a unit's gradient buffer.
absl::Status ZeroPadding(Ops& ops, Stream* stream, const ParamUnit& unit, void* grads);

}  // namespace strata

#endif  // WORKER_MODEL_BLOCK_MATH_H_
