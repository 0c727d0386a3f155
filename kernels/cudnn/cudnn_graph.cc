#include "kernels/cudnn/cudnn_graph.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace strata {

using namespace cudnn;  // NOLINT: the constants

namespace {
constexpr int64_t kAlignment = 16;
}  // namespace

absl::Status CheckCudnn(CudnnApi& cudnn, int status, absl::string_view what) {
  if (status == kSuccess) return absl::OkStatus();
  char reason[1024] = {};
  cudnn.GetLastErrorString(reason, sizeof(reason));
  const std::string message = absl::StrCat("cuDNN, ", what, ": status ", status, ", ", reason);
  return status >= kNotSupported && status < kNotSupportedEnd ? absl::UnimplementedError(message)
                                                              : absl::InternalError(message);
}

absl::Status CudnnObject::Create(int type) {
  return CheckCudnn(*cudnn_, cudnn_->CreateDescriptor(type, &raw_),
                    absl::StrCat("descriptor of type ", type));
}

absl::Status CudnnObject::SetMany(int attribute, int type, int64_t count, const void* values) {
  return CheckCudnn(*cudnn_, cudnn_->SetAttribute(raw_, attribute, type, count, values),
                    absl::StrCat("attribute ", attribute));
}

absl::Status CudnnObject::Finalize() { return CheckCudnn(*cudnn_, cudnn_->Finalize(raw_), "finalizing"); }

CudnnObject* CudnnGraph::New(int type) {
  if (!status_.ok()) return nullptr;
  parts_.emplace_back(cudnn_);
  Keep(parts_.back().Create(type));
  return &parts_.back();
}

CudnnGraph::Tensor CudnnGraph::MakeTensor(int64_t id, int type, const Four& dims, const Four& strides,
                                          bool is_virtual, bool by_value) {
  CudnnObject* const tensor = New(kTensor);
  Set(tensor, kTensorId, kTypeInt64, id);
  Set(tensor, kTensorDataType, kTypeDataType, type);
  if (status_.ok()) Keep(tensor->SetMany(kTensorDimensions, kTypeInt64, 4, dims.data()));
  if (status_.ok()) Keep(tensor->SetMany(kTensorStrides, kTypeInt64, 4, strides.data()));
  Set(tensor, kTensorAlignment, kTypeInt64, kAlignment);
  Set(tensor, kTensorIsVirtual, kTypeBoolean, is_virtual);
  Set(tensor, kTensorIsByValue, kTypeBoolean, by_value);
  FinalizePart(tensor);
  return status_.ok() ? tensor->raw() : nullptr;
}

CudnnGraph::Tensor CudnnGraph::Bound(int64_t id, int type, const Four& dims, const Four& strides) {
  return MakeTensor(id, type, dims, strides, /*is_virtual=*/false, /*by_value=*/false);
}

CudnnGraph::Tensor CudnnGraph::Scalar(int64_t id, int type) {
  return MakeTensor(id, type, {1, 1, 1, 1}, {1, 1, 1, 1}, /*is_virtual=*/false, /*by_value=*/true);
}

CudnnGraph::Tensor CudnnGraph::Virtual(int type, const Four& dims) {
  return MakeTensor(next_virtual_++, type, dims, {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1},
                    /*is_virtual=*/true,
                    /*by_value=*/false);
}

void CudnnGraph::FinalizeOperation(CudnnObject* operation) {
  FinalizePart(operation);
  if (status_.ok()) operations_.push_back(operation->raw());
}

CudnnGraph::Tensor CudnnGraph::Matmul(Tensor a, Tensor b, Tensor c) {
  CudnnObject* const matmul = New(kMatmul);
  Set(matmul, kMatmulComputeType, kTypeDataType, kFloat);
  FinalizePart(matmul);
  CudnnObject* const operation = New(kOperationMatmul);
  Set(operation, kOpMatmulA, kTypeDescriptor, a);
  Set(operation, kOpMatmulB, kTypeDescriptor, b);
  Set(operation, kOpMatmulC, kTypeDescriptor, c);
  if (status_.ok()) Set(operation, kOpMatmulDescriptor, kTypeDescriptor, matmul->raw());
  FinalizeOperation(operation);
  return c;
}

CudnnGraph::Tensor CudnnGraph::Reduce(int op, Tensor x, Tensor y) {
  CudnnObject* const reduction = New(kReduction);
  Set(reduction, kReductionOperator, kTypeReductionOperator, op);
  Set(reduction, kReductionComputeType, kTypeDataType, kFloat);
  FinalizePart(reduction);
  CudnnObject* const operation = New(kOperationReduction);
  Set(operation, kOpReductionX, kTypeDescriptor, x);
  Set(operation, kOpReductionY, kTypeDescriptor, y);
  if (status_.ok()) Set(operation, kOpReductionDescriptor, kTypeDescriptor, reduction->raw());
  FinalizeOperation(operation);
  return y;
}

CudnnGraph::Tensor CudnnGraph::Reshape(Tensor x, int type, const Four& dims, const Four& strides) {
  const Tensor y = MakeTensor(next_virtual_++, type, dims, strides, /*is_virtual=*/true, /*by_value=*/false);
  CudnnObject* const operation = New(kOperationReshape);
  Set(operation, kOpReshapeX, kTypeDescriptor, x);
  Set(operation, kOpReshapeY, kTypeDescriptor, y);
  FinalizeOperation(operation);
  return y;
}

CudnnGraph::Tensor CudnnGraph::Pointwise(int mode, Tensor x, Tensor b, Tensor y,
                                         const PointwiseOptions& options) {
  CudnnObject* const pointwise = New(kPointwise);
  Set(pointwise, kPointwiseMode, kTypePointwiseMode, mode);
  Set(pointwise, kPointwiseMathPrecision, kTypeDataType, options.precision);
  if (options.axis >= 0) Set(pointwise, kPointwiseAxis, kTypeInt64, options.axis);
  FinalizePart(pointwise);
  CudnnObject* const operation = New(kOperationPointwise);
  if (status_.ok()) Set(operation, kOpPointwiseDescriptor, kTypeDescriptor, pointwise->raw());
  Set(operation, kOpPointwiseX, kTypeDescriptor, x);
  if (b != nullptr) Set(operation, kOpPointwiseB, kTypeDescriptor, b);
  if (options.select != nullptr) Set(operation, kOpPointwiseT, kTypeDescriptor, options.select);
  Set(operation, kOpPointwiseY, kTypeDescriptor, y);
  FinalizeOperation(operation);
  return y;
}

absl::Status CudnnGraph::Finalize() {
  STRATA_RETURN_IF_ERROR(status_);
  STRATA_RETURN_IF_ERROR(graph_.Create(kOperationGraph));
  STRATA_RETURN_IF_ERROR(graph_.SetMany(kGraphOperations, kTypeDescriptor,
                                        static_cast<int64_t>(operations_.size()), operations_.data()));
  return graph_.Finalize();
}

}  // namespace strata
