// CublasLtApi: the few calls of cuBLASLt that the GEMM provider makes, as an interface: the real library is
// fetched by dlopen (cublaslt_library.h), tests compute with the CPU (fake_cublaslt.h). Each call is the
// library's function of the same name and returns its cublasStatus_t as a number.
//
// The constants are those of cublasLt.h, cublas_api.h and library_types.h of CUDA 13;
// offload/device/cuda/headers_test.cc compares them with the headers where those are.
#ifndef KERNELS_CUBLASLT_CUBLASLT_API_H_
#define KERNELS_CUBLASLT_CUBLASLT_API_H_

#include <cstddef>
#include <cstdint>

namespace strata {

struct CublasLtHandle;      // a cublasLtHandle_t is a CublasLtHandle*, and so on
struct CublasLtDesc;        // cublasLtMatmulDesc_t
struct CublasLtLayout;      // cublasLtMatrixLayout_t
struct CublasLtPreference;  // cublasLtMatmulPreference_t

namespace cublaslt {

inline constexpr int kSuccess = 0;
inline constexpr int kNotInitialized = 1;
inline constexpr int kInvalidValue = 7;
inline constexpr int kExecutionFailed = 13;
inline constexpr int kNotSupported = 15;

// cudaDataType
inline constexpr int kR32F = 0, kR16F = 2, kR16BF = 14, kR8FE4M3 = 28, kR8FE5M2 = 29;
// cublasComputeType_t
inline constexpr int kCompute32F = 68;
// cublasOperation_t
inline constexpr int32_t kOpN = 0, kOpT = 1;
// cublasLtMatmulDescAttributes_t
inline constexpr int kDescTransA = 3, kDescTransB = 4, kDescEpilogue = 7, kDescBiasPointer = 8,
                     kDescAScalePointer = 17, kDescBScalePointer = 18, kDescFastAccum = 25,
                     kDescBiasDataType = 26;
// cublasLtEpilogue_t
inline constexpr uint32_t kEpilogueDefault = 1, kEpilogueBias = 4;
// cublasLtMatmulPreferenceAttributes_t
inline constexpr int kPrefMaxWorkspaceBytes = 1, kPrefReductionSchemeMask = 3, kPrefMinAlignmentA = 5,
                     kPrefMinAlignmentB = 6, kPrefMinAlignmentC = 7, kPrefMinAlignmentD = 8;
// cublasLtMatmulAlgoConfigAttributes_t
inline constexpr int kAlgoId = 0, kAlgoTile = 1, kAlgoSplitK = 2, kAlgoReductionScheme = 3, kAlgoStages = 6;
// cublasLtReductionScheme_t
inline constexpr uint32_t kReductionNone = 0;

// cublasLtMatmulAlgo_t: opaque, valid for one version of the library.
struct Algo {
  uint64_t data[8];
};
// cublasLtMatmulHeuristicResult_t
struct HeuristicResult {
  Algo algo;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

}  // namespace cublaslt

class CublasLtApi {
 public:
  virtual ~CublasLtApi() = default;

  virtual size_t GetVersion() = 0;  // 130000 is 13.0.0
  virtual int Create(CublasLtHandle** handle) = 0;
  virtual int Destroy(CublasLtHandle* handle) = 0;

  virtual int MatmulDescCreate(CublasLtDesc** desc, int compute_type, int scale_type) = 0;
  virtual int MatmulDescDestroy(CublasLtDesc* desc) = 0;
  virtual int MatmulDescSetAttribute(CublasLtDesc* desc, int attribute, const void* value, size_t bytes) = 0;

  // Column-major.
  virtual int MatrixLayoutCreate(CublasLtLayout** layout, int type, uint64_t rows, uint64_t columns,
                                 int64_t ld) = 0;
  virtual int MatrixLayoutDestroy(CublasLtLayout* layout) = 0;

  virtual int PreferenceCreate(CublasLtPreference** preference) = 0;
  virtual int PreferenceDestroy(CublasLtPreference* preference) = 0;
  virtual int PreferenceSetAttribute(CublasLtPreference* preference, int attribute, const void* value,
                                     size_t bytes) = 0;

  virtual int AlgoGetHeuristic(CublasLtHandle* handle, CublasLtDesc* desc, CublasLtLayout* a,
                               CublasLtLayout* b, CublasLtLayout* c, CublasLtLayout* d,
                               CublasLtPreference* preference, int requested,
                               cublaslt::HeuristicResult* results, int* returned) = 0;
  virtual int AlgoConfigGetAttribute(const cublaslt::Algo* algo, int attribute, void* value, size_t bytes,
                                     size_t* written) = 0;

  // D = alpha * op(A) op(B) + beta * C; `stream` is a cudaStream_t.
  virtual int Matmul(CublasLtHandle* handle, CublasLtDesc* desc, const void* alpha, const void* a,
                     CublasLtLayout* a_layout, const void* b, CublasLtLayout* b_layout, const void* beta,
                     const void* c, CublasLtLayout* c_layout, void* d, CublasLtLayout* d_layout,
                     const cublaslt::Algo* algo, void* workspace, size_t workspace_bytes, void* stream) = 0;
};

}  // namespace strata

#endif  // KERNELS_CUBLASLT_CUBLASLT_API_H_
