#include "kernels/cublaslt/cublaslt_gemm.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/status.h"
#include "kernels/gemm_workspace.h"

namespace strata {

using namespace cublaslt;  // NOLINT: the constants

namespace {

constexpr int kAsked = 16;  // answers of the heuristics
constexpr uint32_t kAlignmentMax = 256;
constexpr int64_t kFp8Unit = 16;

int TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return kR16BF;
    case DType::kF16:
      return kR16F;
    default:
      return kR32F;
  }
}
int TypeOf(Fp8 type) { return type == Fp8::kE4M3 ? kR8FE4M3 : kR8FE5M2; }

const char* TypeName(int type) {
  switch (type) {
    case kR16BF:
      return "bf16";
    case kR16F:
      return "fp16";
    case kR8FE4M3:
      return "fp8 e4m3";
    case kR8FE5M2:
      return "fp8 e5m2";
    default:
      return "fp32";
  }
}

uint32_t AlignmentOf(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer) | kAlignmentMax;
  return static_cast<uint32_t>(address & -address);
}

const char* StatusName(int status) {
  switch (status) {
    case kNotInitialized:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case kInvalidValue:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case kExecutionFailed:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case kNotSupported:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "cuBLAS status";
  }
}

}  // namespace

// The library's objects of one call; they are host memory of a few hundred bytes.
struct CublasLtGemm::Descriptors {
  explicit Descriptors(CublasLtApi& api) : api(api) {}
  ~Descriptors() {
    if (desc != nullptr) (void)api.MatmulDescDestroy(desc);
    for (CublasLtLayout* layout : {a, b, d}) {
      if (layout != nullptr) (void)api.MatrixLayoutDestroy(layout);
    }
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  CublasLtApi& api;
  CublasLtDesc* desc = nullptr;
  CublasLtLayout* a = nullptr;
  CublasLtLayout* b = nullptr;
  CublasLtLayout* d = nullptr;
};

absl::StatusOr<std::unique_ptr<CublasLtGemm>> CublasLtGemm::Create(CublasLtApi& api, Log log) {
  CublasLtHandle* handle = nullptr;
  if (const int status = api.Create(&handle); status != kSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuBLASLt does not start: ", StatusName(status), " (", status, ")"));
  }
  return std::unique_ptr<CublasLtGemm>(new CublasLtGemm(api, handle, std::move(log)));
}

CublasLtGemm::~CublasLtGemm() { (void)api_.Destroy(handle_); }

absl::Status CublasLtGemm::Check(int status, const char* what) const {
  if (status == kSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": ", StatusName(status), " (", status, ")"));
}

std::string CublasLtGemm::Text(const Problem& problem) {
  const int64_t k = problem.op_b == kOpN ? problem.b.rows : problem.b.columns;
  return absl::StrCat(TypeName(problem.b.type), problem.a.type == problem.b.type ? "" : " and ",
                      problem.a.type == problem.b.type ? "" : TypeName(problem.a.type), " ",
                      problem.d.columns, " x ", problem.d.rows, " x ", k,
                      problem.op_b == kOpT ? ", a transposed" : "",
                      problem.op_a == kOpT ? ", b transposed" : "", ", to ", TypeName(problem.d.type),
                      problem.accumulate ? ", accumulated" : "", problem.bias ? ", + bias" : "");
}

absl::Status CublasLtGemm::Gemm(Stream* stream, DType compute, const GemmArgs& args) {
  const int type = TypeOf(compute);
  Problem problem;
  problem.a = {type, args.transpose_b ? args.k : args.n, args.transpose_b ? args.n : args.k, args.ldb,
               AlignmentOf(args.b)};
  problem.b = {type, args.transpose_a ? args.m : args.k, args.transpose_a ? args.k : args.m, args.lda,
               AlignmentOf(args.a)};
  problem.d = {args.c_is_acc ? kR32F : type, args.n, args.m, args.ldc, AlignmentOf(args.c)};
  problem.op_a = args.transpose_b ? kOpT : kOpN;
  problem.op_b = args.transpose_a ? kOpT : kOpN;
  problem.accumulate = args.accumulate;
  problem.bias = args.bias != nullptr;
  problem.bias_type = type;
  problem.workspace_bytes = std::min(
      args.workspace.bytes, GemmWorkspaceBytes(GemmLibrary::kCublasLt, compute, args.m, args.n, args.k));
  return Run(stream, problem,
             {.a = args.b, .b = args.a, .d = args.c, .bias = args.bias, .workspace = args.workspace.data});
}

absl::Status CublasLtGemm::Fp8Gemm(Stream* stream, const Fp8GemmArgs& args) {
  const auto wrong = [&](const char* what) {
    return absl::InvalidArgumentError(
        absl::StrCat("fp8 gemm of ", args.m, " x ", args.n, " x ", args.k, ": ", what));
  };
  if (args.m <= 0 || args.n <= 0 || args.k <= 0 || args.n % kFp8Unit != 0 || args.k % kFp8Unit != 0)
    return wrong("sizes are above 0, n and k multiples of 16");
  if (args.lda % kFp8Unit != 0 || args.ldb % kFp8Unit != 0 || args.ldc % kFp8Unit != 0 || args.lda < args.k ||
      args.ldb < args.k || args.ldc < args.n)
    return wrong("leading dimensions are multiples of 16 and at least a row");
  if (args.a_type == Fp8::kE5M2 && args.b_type == Fp8::kE5M2) return wrong("at most one side is e5m2");
  if (args.a_scale == nullptr || args.b_scale == nullptr) return wrong("both scales are needed");
  if (args.bias != nullptr && args.c_type == DType::kF32) return wrong("a bias comes with c of 16 bits");
  for (const void* pointer : {args.a, args.b, static_cast<const void*>(args.c)}) {
    if (AlignmentOf(pointer) < kFp8Unit) return wrong("matrices are aligned to 16 bytes");
  }
  Problem problem;
  problem.a = {TypeOf(args.b_type), args.k, args.n, args.ldb, AlignmentOf(args.b)};
  problem.b = {TypeOf(args.a_type), args.k, args.m, args.lda, AlignmentOf(args.a)};
  problem.d = {TypeOf(args.c_type), args.n, args.m, args.ldc, AlignmentOf(args.c)};
  problem.op_a = kOpT;
  problem.op_b = kOpN;
  problem.accumulate = args.accumulate;
  problem.bias = args.bias != nullptr;
  problem.bias_type = TypeOf(args.c_type);
  problem.fast_accumulation = args.fast_accumulation;
  problem.scaled = true;
  problem.workspace_bytes = args.workspace.bytes;
  return Run(stream, problem,
             {.a = args.b,
              .b = args.a,
              .d = args.c,
              .bias = args.bias,
              .a_scale = args.b_scale,
              .b_scale = args.a_scale,
              .workspace = args.workspace.data});
}

absl::Status CublasLtGemm::Describe(const Problem& problem, const Pointers& pointers,
                                    Descriptors& descriptors) {
  STRATA_RETURN_IF_ERROR(
      Check(api_.MatmulDescCreate(&descriptors.desc, kCompute32F, kR32F), "cublasLtMatmulDescCreate"));
  const auto set = [&](int attribute, const auto& value) {
    return Check(api_.MatmulDescSetAttribute(descriptors.desc, attribute, &value, sizeof(value)),
                 "cublasLtMatmulDescSetAttribute");
  };
  STRATA_RETURN_IF_ERROR(set(kDescTransA, problem.op_a));
  STRATA_RETURN_IF_ERROR(set(kDescTransB, problem.op_b));
  if (problem.bias) {
    STRATA_RETURN_IF_ERROR(set(kDescEpilogue, kEpilogueBias));
    STRATA_RETURN_IF_ERROR(set(kDescBiasPointer, pointers.bias));
    STRATA_RETURN_IF_ERROR(set(kDescBiasDataType, static_cast<int32_t>(problem.bias_type)));
  }
  if (problem.scaled) {
    STRATA_RETURN_IF_ERROR(set(kDescAScalePointer, pointers.a_scale));
    STRATA_RETURN_IF_ERROR(set(kDescBScalePointer, pointers.b_scale));
    STRATA_RETURN_IF_ERROR(set(kDescFastAccum, static_cast<int8_t>(problem.fast_accumulation)));
  }
  for (const auto& [layout, matrix] :
       {std::pair(&descriptors.a, &problem.a), std::pair(&descriptors.b, &problem.b),
        std::pair(&descriptors.d, &problem.d)}) {
    STRATA_RETURN_IF_ERROR(
        Check(api_.MatrixLayoutCreate(layout, matrix->type, static_cast<uint64_t>(matrix->rows),
                                      static_cast<uint64_t>(matrix->columns), matrix->ld),
              "cublasLtMatrixLayoutCreate"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Algo> CublasLtGemm::Choose(const Problem& problem, const Descriptors& descriptors) {
  {
    MutexLock lock(mu_);
    if (const auto found = chosen_.find(problem); found != chosen_.end()) return found->second.algo;
  }
  CublasLtPreference* preference = nullptr;
  STRATA_RETURN_IF_ERROR(Check(api_.PreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"));
  const std::unique_ptr<CublasLtPreference, std::function<void(CublasLtPreference*)>> owner(
      preference, [this](CublasLtPreference* p) { (void)api_.PreferenceDestroy(p); });
  const auto set = [&](int attribute, const auto& value) {
    return Check(api_.PreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  STRATA_RETURN_IF_ERROR(set(kPrefMaxWorkspaceBytes, static_cast<uint64_t>(problem.workspace_bytes)));
  STRATA_RETURN_IF_ERROR(set(kPrefReductionSchemeMask, kReductionNone));
  STRATA_RETURN_IF_ERROR(set(kPrefMinAlignmentA, problem.a.alignment));
  STRATA_RETURN_IF_ERROR(set(kPrefMinAlignmentB, problem.b.alignment));
  STRATA_RETURN_IF_ERROR(set(kPrefMinAlignmentC, problem.d.alignment));
  STRATA_RETURN_IF_ERROR(set(kPrefMinAlignmentD, problem.d.alignment));
  HeuristicResult results[kAsked];
  int returned = 0;
  const int status =
      api_.AlgoGetHeuristic(handle_, descriptors.desc, descriptors.a, descriptors.b, descriptors.d,
                            descriptors.d, preference, kAsked, results, &returned);
  if (status != kSuccess && status != kNotSupported) return Check(status, "cublasLtMatmulAlgoGetHeuristic");
  if (status == kNotSupported) returned = 0;
  for (const HeuristicResult& result : std::span(results, static_cast<size_t>(returned))) {
    if (result.state != kSuccess || result.workspace_bytes > static_cast<size_t>(problem.workspace_bytes))
      continue;
    const auto config = [&](int attribute) {
      uint32_t value = 0;
      size_t written = 0;
      const int got = api_.AlgoConfigGetAttribute(&result.algo, attribute, &value, sizeof(value), &written);
      return got == kSuccess ? std::optional(value) : std::nullopt;
    };
    // An algorithm that does not say is taken for one that may.
    if (config(kAlgoSplitK).value_or(2) > 1 || config(kAlgoReductionScheme).value_or(1) != kReductionNone)
      continue;
    std::string text =
        absl::StrCat("algorithm ", config(kAlgoId).value_or(0), " tile ", config(kAlgoTile).value_or(0),
                     " stages ", config(kAlgoStages).value_or(0), ", ",
                     FormatBytes(static_cast<int64_t>(result.workspace_bytes)), " of workspace");
    const std::string line = absl::StrCat("gemm of ", Text(problem), ": ", text);
    bool is_new;
    {
      MutexLock lock(mu_);
      is_new = chosen_.emplace(problem, Chosen{result.algo, std::move(text)}).second &&
               logged_.insert(line).second;
    }
    if (log_ && is_new) log_(line);
    return result.algo;
  }
  return absl::UnimplementedError(
      absl::StrCat("cuBLASLt ", api_.GetVersion(), " has no deterministic algorithm for ", Text(problem),
                   " with ", problem.workspace_bytes, " bytes of workspace (it offered ", returned, ")"));
}

absl::Status CublasLtGemm::Run(Stream* stream, const Problem& problem, const Pointers& pointers) {
  Descriptors descriptors(api_);
  STRATA_RETURN_IF_ERROR(Describe(problem, pointers, descriptors), Text(problem));
  STRATA_ASSIGN_OR_RETURN(const Algo algo, Choose(problem, descriptors));
  const float alpha = 1, beta = problem.accumulate ? 1 : 0;
  return Check(api_.Matmul(handle_, descriptors.desc, &alpha, pointers.a, descriptors.a, pointers.b,
                           descriptors.b, &beta, pointers.d, descriptors.d, pointers.d, descriptors.d, &algo,
                           pointers.workspace, static_cast<size_t>(problem.workspace_bytes), stream),
               absl::StrCat("cublasLtMatmul of ", Text(problem)).c_str());
}

std::vector<GemmChoice> CublasLtGemm::Choices() const {
  MutexLock lock(mu_);
  std::vector<GemmChoice> choices;
  for (const auto& [problem, chosen] : chosen_) choices.push_back({Text(problem), chosen.text});
  return choices;
}

}  // namespace strata
