// CudnnApi: the few calls of cuDNN's backend that the attention provider makes, as an interface: the real
// library is fetched by dlopen (cudnn_library.h), tests interpret the graphs (fake_cudnn.h). Each call is the
// library's function of the same name and returns its cudnnStatus_t as a number; the constants are those of
// cudnn_graph_v9.h.
#ifndef KERNELS_CUDNN_CUDNN_API_H_
#define KERNELS_CUDNN_CUDNN_API_H_

#include <cstddef>
#include <cstdint>

namespace strata {

struct CudnnHandle;      // a cudnnHandle_t is a CudnnHandle*
struct CudnnDescriptor;  // a cudnnBackendDescriptor_t is a CudnnDescriptor*

namespace cudnn {

inline constexpr int kSuccess = 0, kNotInitialized = 1001, kBadParameter = 2000;
inline constexpr int kNotSupported = 3000;  // 3000 .. 3999: reasons of it
inline constexpr int kNotSupportedEnd = 4000;
// In the words of an engine that had no driver to build its kernel with.
inline constexpr char kNoDriver[] = "CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING";
// cudnnBackendDescriptorType_t
inline constexpr int kPointwise = 0, kEngineConfig = 3, kEngineHeuristics = 4, kExecutionPlan = 5,
                     kOperationPointwise = 13, kOperationGraph = 15, kVariantPack = 16, kTensor = 17,
                     kMatmul = 18, kOperationMatmul = 19, kReduction = 21, kOperationReduction = 22,
                     kOperationReshape = 31, kDeviceProperties = 38;
// cudnnBackendAttributeType_t
inline constexpr int kTypeHandle = 0, kTypeDataType = 1, kTypeBoolean = 2, kTypeInt64 = 3,
                     kTypeVoidPointer = 6, kTypeHeuristicsMode = 8, kTypePointwiseMode = 14,
                     kTypeDescriptor = 15, kTypeReductionOperator = 18, kTypeChar = 24;
// cudnnBackendAttributeName_t
inline constexpr int kPointwiseMode = 0, kPointwiseMathPrecision = 1, kPointwiseAxis = 9,
                     kHeuristicsMode = 200, kHeuristicsGraph = 201, kHeuristicsResults = 202,
                     kHeuristicsDevice = 204, kPlanEngineConfig = 401, kPlanWorkspaceBytes = 402,
                     kPlanDevice = 407, kOpPointwiseDescriptor = 750, kOpPointwiseX = 751,
                     kOpPointwiseB = 752, kOpPointwiseY = 753, kOpPointwiseT = 758, kGraphOperations = 801,
                     kTensorAlignment = 900, kTensorDataType = 901, kTensorDimensions = 902,
                     kTensorStrides = 903, kTensorId = 906, kTensorIsVirtual = 907, kTensorIsByValue = 908,
                     kPackIds = 1000, kPackPointers = 1001, kPackWorkspace = 1003, kMatmulComputeType = 1500,
                     kOpMatmulA = 1520, kOpMatmulB = 1521, kOpMatmulC = 1522, kOpMatmulDescriptor = 1523,
                     kReductionOperator = 1600, kReductionComputeType = 1601, kOpReductionX = 1610,
                     kOpReductionY = 1611, kOpReductionDescriptor = 1612, kOpReshapeX = 2200,
                     kOpReshapeY = 2201, kDeviceHandle = 2701, kDeviceJson = 2702;
// cudnnDataType_t
inline constexpr int kFloat = 0, kHalf = 2, kInt32 = 4, kBFloat16 = 9, kBoolean = 11;
// cudnnPointwiseMode_t
inline constexpr int kAdd = 0, kMul = 1, kDiv = 6, kSub = 9, kExp = 13, kLog = 15, kIdentity = 21,
                     kCompareGt = 302, kCompareGe = 303, kGenerateIndex = 501, kBinarySelect = 601;
// cudnnReduceTensorOp_t
inline constexpr int kReduceAdd = 0, kReduceMax = 3;
// cudnnBackendHeurMode_t
inline constexpr int kHeuristicsModeA = 3;

}  // namespace cudnn

class CudnnApi {
 public:
  virtual ~CudnnApi() = default;

  virtual size_t GetVersion() = 0;  // 91900 is 9.19.0
  virtual int Create(CudnnHandle** handle) = 0;
  virtual int Destroy(CudnnHandle* handle) = 0;
  virtual int SetStream(CudnnHandle* handle, void* stream) = 0;
  // The calling thread's last error, with its reason.
  virtual void GetLastErrorString(char* text, size_t bytes) = 0;

  virtual int CreateDescriptor(int type, CudnnDescriptor** descriptor) = 0;
  virtual int DestroyDescriptor(CudnnDescriptor* descriptor) = 0;
  virtual int SetAttribute(CudnnDescriptor* descriptor, int attribute, int type, int64_t count,
                           const void* values) = 0;
  virtual int GetAttribute(CudnnDescriptor* descriptor, int attribute, int type, int64_t requested,
                           int64_t* count, void* values) = 0;
  virtual int Finalize(CudnnDescriptor* descriptor) = 0;
  virtual int Execute(CudnnHandle* handle, CudnnDescriptor* plan, CudnnDescriptor* variant_pack) = 0;
};

}  // namespace strata

#endif  // KERNELS_CUDNN_CUDNN_API_H_
