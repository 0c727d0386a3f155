// GEMMs by cuBLASLt.
//
// Row-major C[m, n] = A B is column-major C^T[n, m] = B^T A^T: cuBLASLt gets B first, and nothing is copied.
//
// Determinism: the library's heuristics are asked once per shape, with split-K's reductions forbidden (their
// partial sums would be added by atomics or in an order of the library's choice); of its answers the first
// that really has one part along k is taken, and every later call of that shape uses it. So the same
// arguments give the same bits on one GPU model and one version of the library. Choices() is what was taken.
//
// Nothing is allocated: the workspace is the caller's, and limits what the heuristics may choose. No more of
// it is offered than GemmWorkspaceBytes (gemm_workspace.h) of this library for the shape, so that a choice
// does not depend on what else the caller needed memory for; the caller of a job lends that much.
#ifndef KERNELS_CUBLASLT_CUBLASLT_GEMM_H_
#define KERNELS_CUBLASLT_CUBLASLT_GEMM_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "kernels/cublaslt/cublaslt_api.h"
#include "kernels/cuda/gemm_provider.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace strata {

// What was chosen for a shape.
struct GemmChoice {
  std::string shape;      // "bf16 4096 x 12288 x 4096, b transposed, + bias"
  std::string algorithm;  // "algorithm 66 tile 20 stages 8, 32 MiB of workspace"
};

class CublasLtGemm : public GemmProvider {
 public:
  // A line for each choice that is new in its words (shapes that differ in alignment alone often share them).
  // Called by the thread of the GEMM.
  using Log = std::function<void(const std::string&)>;

  // `api` outlives it. kFailedPrecondition when the library cannot start (no driver).
  static absl::StatusOr<std::unique_ptr<CublasLtGemm>> Create(CublasLtApi& api, Log log = nullptr);
  ~CublasLtGemm() override;

  // As Ops::Gemm; `compute` is kF32, kBF16 or kF16. kUnimplemented: cuBLASLt has no algorithm for it that is
  // deterministic and fits the workspace; kInternal: the library failed. Threads: any.
  absl::Status Gemm(Stream* stream, DType compute, const GemmArgs& args) override;
  absl::Status Fp8Gemm(Stream* stream, const Fp8GemmArgs& args) override;

  std::vector<GemmChoice> Choices() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A matrix as cuBLASLt sees it, column-major.
  struct Matrix {
    int type = 0;
    int64_t rows = 0, columns = 0, ld = 0;
    uint32_t alignment = 0;  // bytes, up to 256

    auto operator<=>(const Matrix&) const = default;
  };
  // All that the choice depends on.
  struct Problem {
    Matrix a, b, d;
    int32_t op_a = 0, op_b = 0;
    bool accumulate = false, bias = false, fast_accumulation = false, scaled = false;
    int bias_type = 0;
    int64_t workspace_bytes = 0;

    auto operator<=>(const Problem&) const = default;
  };
  struct Pointers {
    const void* a = nullptr;
    const void* b = nullptr;
    void* d = nullptr;
    const void* bias = nullptr;
    const float* a_scale = nullptr;
    const float* b_scale = nullptr;
    void* workspace = nullptr;
  };
  struct Descriptors;
  struct Chosen {
    cublaslt::Algo algo;
    std::string text;
  };

  CublasLtGemm(CublasLtApi& api, CublasLtHandle* handle, Log log)
      : api_(api), handle_(handle), log_(std::move(log)) {}
  absl::Status Check(int status, const char* what) const;
  absl::Status Run(Stream* stream, const Problem& problem, const Pointers& pointers);
  absl::Status Describe(const Problem& problem, const Pointers& pointers, Descriptors& descriptors);
  absl::StatusOr<cublaslt::Algo> Choose(const Problem& problem, const Descriptors& descriptors)
      ABSL_LOCKS_EXCLUDED(mu_);
  static std::string Text(const Problem& problem);

  CublasLtApi& api_;
  CublasLtHandle* const handle_;
  const Log log_;
  mutable Mutex mu_;
  std::map<Problem, Chosen> chosen_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> logged_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata

#endif  // KERNELS_CUBLASLT_CUBLASLT_GEMM_H_
