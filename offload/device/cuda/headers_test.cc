// The numbers that are written down by hand, against the libraries' own headers where those are.
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define STRATA_HAS_CUBLASLT 1
#endif
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#define STRATA_HAS_CUDNN 1
#endif
#if __has_include(<nccl.h>)
#include <nccl.h>
#define STRATA_HAS_NCCL 1
#endif

#if __has_include(<cufile.h>)
#include <cufile.h>
#define STRATA_HAS_CUFILE 1
#endif

#include <cstddef>

#include "gtest/gtest.h"
#include "kernels/cublaslt/cublaslt_api.h"
#include "kernels/cudnn/cudnn_api.h"
#include "offload/comm/nccl_api.h"
#include "offload/device/cufile_api.h"

namespace strata {
namespace {

template <typename A, typename B>
void Same(A ours, B theirs, const char* what) {
  EXPECT_EQ(static_cast<long long>(ours), static_cast<long long>(theirs)) << what;
}
#define SAME(ours, theirs) Same(ours, theirs, #theirs)

TEST(HeadersTest, CublasLt) {
#ifdef STRATA_HAS_CUBLASLT
  namespace our = cublaslt;
  SAME(our::kSuccess, CUBLAS_STATUS_SUCCESS);
  SAME(our::kNotInitialized, CUBLAS_STATUS_NOT_INITIALIZED);
  SAME(our::kInvalidValue, CUBLAS_STATUS_INVALID_VALUE);
  SAME(our::kExecutionFailed, CUBLAS_STATUS_EXECUTION_FAILED);
  SAME(our::kNotSupported, CUBLAS_STATUS_NOT_SUPPORTED);
  SAME(our::kR32F, CUDA_R_32F);
  SAME(our::kR16F, CUDA_R_16F);
  SAME(our::kR16BF, CUDA_R_16BF);
  SAME(our::kR8FE4M3, CUDA_R_8F_E4M3);
  SAME(our::kR8FE5M2, CUDA_R_8F_E5M2);
  SAME(our::kCompute32F, CUBLAS_COMPUTE_32F);
  SAME(our::kOpN, CUBLAS_OP_N);
  SAME(our::kOpT, CUBLAS_OP_T);
  SAME(our::kDescTransA, CUBLASLT_MATMUL_DESC_TRANSA);
  SAME(our::kDescTransB, CUBLASLT_MATMUL_DESC_TRANSB);
  SAME(our::kDescEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE);
  SAME(our::kDescBiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  SAME(our::kDescBiasDataType, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
  SAME(our::kDescAScalePointer, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
  SAME(our::kDescBScalePointer, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
  SAME(our::kDescFastAccum, CUBLASLT_MATMUL_DESC_FAST_ACCUM);
  SAME(our::kEpilogueDefault, CUBLASLT_EPILOGUE_DEFAULT);
  SAME(our::kEpilogueBias, CUBLASLT_EPILOGUE_BIAS);
  SAME(our::kPrefMaxWorkspaceBytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  SAME(our::kPrefReductionSchemeMask, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
  SAME(our::kPrefMinAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
  SAME(our::kPrefMinAlignmentB, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
  SAME(our::kPrefMinAlignmentC, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
  SAME(our::kPrefMinAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
  SAME(our::kAlgoId, CUBLASLT_ALGO_CONFIG_ID);
  SAME(our::kAlgoTile, CUBLASLT_ALGO_CONFIG_TILE_ID);
  SAME(our::kAlgoSplitK, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  SAME(our::kAlgoReductionScheme, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  SAME(our::kAlgoStages, CUBLASLT_ALGO_CONFIG_STAGES_ID);
  SAME(our::kReductionNone, CUBLASLT_REDUCTION_SCHEME_NONE);
  SAME(sizeof(our::Algo), sizeof(cublasLtMatmulAlgo_t));
  SAME(sizeof(our::HeuristicResult), sizeof(cublasLtMatmulHeuristicResult_t));
  SAME(offsetof(our::HeuristicResult, workspace_bytes),
       offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
  SAME(offsetof(our::HeuristicResult, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
#else
  GTEST_SKIP() << "no cublasLt.h";
#endif
}

TEST(HeadersTest, Cudnn) {
#ifdef STRATA_HAS_CUDNN
  namespace our = cudnn;
  SAME(our::kSuccess, CUDNN_STATUS_SUCCESS);
  SAME(our::kNotInitialized, CUDNN_STATUS_NOT_INITIALIZED);
  SAME(our::kBadParameter, CUDNN_STATUS_BAD_PARAM);
  SAME(our::kNotSupported, CUDNN_STATUS_NOT_SUPPORTED);
  SAME(our::kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  SAME(our::kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  SAME(our::kEngineHeuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  SAME(our::kExecutionPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  SAME(our::kOperationPointwise, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  SAME(our::kOperationGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  SAME(our::kVariantPack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  SAME(our::kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  SAME(our::kMatmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  SAME(our::kOperationMatmul, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  SAME(our::kReduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  SAME(our::kOperationReduction, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  SAME(our::kOperationReshape, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  SAME(our::kDeviceProperties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  SAME(our::kTypeHandle, CUDNN_TYPE_HANDLE);
  SAME(our::kTypeDataType, CUDNN_TYPE_DATA_TYPE);
  SAME(our::kTypeBoolean, CUDNN_TYPE_BOOLEAN);
  SAME(our::kTypeInt64, CUDNN_TYPE_INT64);
  SAME(our::kTypeVoidPointer, CUDNN_TYPE_VOID_PTR);
  SAME(our::kTypeHeuristicsMode, CUDNN_TYPE_HEUR_MODE);
  SAME(our::kTypePointwiseMode, CUDNN_TYPE_POINTWISE_MODE);
  SAME(our::kTypeDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
  SAME(our::kTypeReductionOperator, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
  SAME(our::kTypeChar, CUDNN_TYPE_CHAR);
  SAME(our::kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE);
  SAME(our::kPointwiseMathPrecision, CUDNN_ATTR_POINTWISE_MATH_PREC);
  SAME(our::kPointwiseAxis, CUDNN_ATTR_POINTWISE_AXIS);
  SAME(our::kHeuristicsMode, CUDNN_ATTR_ENGINEHEUR_MODE);
  SAME(our::kHeuristicsGraph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  SAME(our::kHeuristicsResults, CUDNN_ATTR_ENGINEHEUR_RESULTS);
  SAME(our::kHeuristicsDevice, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  SAME(our::kPlanEngineConfig, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  SAME(our::kPlanWorkspaceBytes, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  SAME(our::kPlanDevice, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
  SAME(our::kOpPointwiseDescriptor, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  SAME(our::kOpPointwiseX, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
  SAME(our::kOpPointwiseB, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  SAME(our::kOpPointwiseY, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  SAME(our::kOpPointwiseT, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
  SAME(our::kGraphOperations, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  SAME(our::kTensorAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  SAME(our::kTensorDataType, CUDNN_ATTR_TENSOR_DATA_TYPE);
  SAME(our::kTensorDimensions, CUDNN_ATTR_TENSOR_DIMENSIONS);
  SAME(our::kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES);
  SAME(our::kTensorId, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  SAME(our::kTensorIsVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  SAME(our::kTensorIsByValue, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  SAME(our::kPackIds, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  SAME(our::kPackPointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  SAME(our::kPackWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  SAME(our::kMatmulComputeType, CUDNN_ATTR_MATMUL_COMP_TYPE);
  SAME(our::kOpMatmulA, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
  SAME(our::kOpMatmulB, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
  SAME(our::kOpMatmulC, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
  SAME(our::kOpMatmulDescriptor, CUDNN_ATTR_OPERATION_MATMUL_DESC);
  SAME(our::kReductionOperator, CUDNN_ATTR_REDUCTION_OPERATOR);
  SAME(our::kReductionComputeType, CUDNN_ATTR_REDUCTION_COMP_TYPE);
  SAME(our::kOpReductionX, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
  SAME(our::kOpReductionY, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
  SAME(our::kOpReductionDescriptor, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
  SAME(our::kOpReshapeX, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
  SAME(our::kOpReshapeY, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
  SAME(our::kDeviceHandle, CUDNN_ATTR_DEVICEPROP_HANDLE);
  SAME(our::kDeviceJson, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
  SAME(our::kFloat, CUDNN_DATA_FLOAT);
  SAME(our::kHalf, CUDNN_DATA_HALF);
  SAME(our::kInt32, CUDNN_DATA_INT32);
  SAME(our::kBFloat16, CUDNN_DATA_BFLOAT16);
  SAME(our::kBoolean, CUDNN_DATA_BOOLEAN);
  SAME(our::kAdd, CUDNN_POINTWISE_ADD);
  SAME(our::kMul, CUDNN_POINTWISE_MUL);
  SAME(our::kDiv, CUDNN_POINTWISE_DIV);
  SAME(our::kSub, CUDNN_POINTWISE_SUB);
  SAME(our::kExp, CUDNN_POINTWISE_EXP);
  SAME(our::kLog, CUDNN_POINTWISE_LOG);
  SAME(our::kIdentity, CUDNN_POINTWISE_IDENTITY);
  SAME(our::kCompareGt, CUDNN_POINTWISE_CMP_GT);
  SAME(our::kCompareGe, CUDNN_POINTWISE_CMP_GE);
  SAME(our::kGenerateIndex, CUDNN_POINTWISE_GEN_INDEX);
  SAME(our::kBinarySelect, CUDNN_POINTWISE_BINARY_SELECT);
  SAME(our::kReduceAdd, CUDNN_REDUCE_TENSOR_ADD);
  SAME(our::kReduceMax, CUDNN_REDUCE_TENSOR_MAX);
  SAME(our::kHeuristicsModeA, CUDNN_HEUR_MODE_A);
#else
  GTEST_SKIP() << "no cudnn.h";
#endif
}

TEST(HeadersTest, Nccl) {
#ifdef STRATA_HAS_NCCL
  namespace our = nccl;
  SAME(our::kSuccess, ncclSuccess);
  SAME(our::kUnhandledCudaError, ncclUnhandledCudaError);
  SAME(our::kSystemError, ncclSystemError);
  SAME(our::kInternalError, ncclInternalError);
  SAME(our::kInvalidArgument, ncclInvalidArgument);
  SAME(our::kInvalidUsage, ncclInvalidUsage);
  SAME(our::kRemoteError, ncclRemoteError);
  SAME(our::kInProgress, ncclInProgress);
  SAME(our::kFloat16, ncclFloat16);
  SAME(our::kFloat32, ncclFloat32);
  SAME(our::kFloat64, ncclFloat64);
  SAME(our::kBfloat16, ncclBfloat16);
  SAME(our::kSum, ncclSum);
  SAME(sizeof(our::UniqueId), sizeof(ncclUniqueId));
  SAME(offsetof(our::Config, magic), offsetof(ncclConfig_t, magic));
  SAME(offsetof(our::Config, version), offsetof(ncclConfig_t, version));
  SAME(offsetof(our::Config, blocking), offsetof(ncclConfig_t, blocking));
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  SAME(our::Config().magic, theirs.magic);
  SAME(our::Config().version, NCCL_VERSION(2, 14, 0));
#else
  GTEST_SKIP() << "no nccl.h";
#endif
}

TEST(HeadersTest, Cufile) {
#ifdef STRATA_HAS_CUFILE
  // kIoError, kInvalidContext and kP2pSupported are of cuFile 1.20: headers from before do not have them.
  namespace our = cufile;
  SAME(our::kSuccess, CU_FILE_SUCCESS);
  SAME(our::kVersionMismatch, CU_FILE_DRIVER_VERSION_MISMATCH);
  SAME(our::kPlatformNotSupported, CU_FILE_PLATFORM_NOT_SUPPORTED);
  SAME(our::kFileNotSupported, CU_FILE_IO_NOT_SUPPORTED);
  SAME(our::kDeviceNotSupported, CU_FILE_DEVICE_NOT_SUPPORTED);
  SAME(our::kNvfsDriverError, CU_FILE_NVFS_DRIVER_ERROR);
  SAME(our::kCudaDriverError, CU_FILE_CUDA_DRIVER_ERROR);
  SAME(our::kPointerInvalid, CU_FILE_CUDA_POINTER_INVALID);
  SAME(our::kContextMismatch, CU_FILE_CUDA_CONTEXT_MISMATCH);
  SAME(our::kFileTypeInvalid, CU_FILE_INVALID_FILE_TYPE);
  SAME(our::kNotDirect, CU_FILE_DIO_NOT_SET);
  SAME(our::kPermissionDenied, CU_FILE_PERMISSION_DENIED);
  SAME(our::kHandleAlreadyRegistered, CU_FILE_HANDLE_ALREADY_REGISTERED);
  SAME(our::kPinningFailed, CU_FILE_GPU_MEMORY_PINNING_FAILED);
  SAME(our::kNvmeSupported, CU_FILE_NVME_SUPPORTED);
  SAME(our::kHandleTypeFd, CU_FILE_HANDLE_TYPE_OPAQUE_FD);
  SAME(sizeof(our::Error), sizeof(CUfileError_t));
  SAME(sizeof(our::Description), sizeof(CUfileDescr_t));
  SAME(offsetof(our::Description, handle), offsetof(CUfileDescr_t, handle));
  SAME(offsetof(our::Description, file_system), offsetof(CUfileDescr_t, fs_ops));
#else
  GTEST_SKIP() << "no cufile.h";
#endif
}

}  // namespace
}  // namespace strata
