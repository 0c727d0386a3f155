#include "kernels/optimizer/cpu_state_ops.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/optimizer/accumulate.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/cast.h"
#include "kernels/optimizer/reduce.h"

namespace strata {
namespace {

absl::Status CheckSize(const char* op, int64_t n) {
  if (n >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", n, " elements"));
}

absl::Status CheckParams(const char* op, DType dtype) {
  if (dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": parameters are bf16, f16 or f32, not ", Name(dtype)));
}

class CpuStateOps final : public StateOps {
 public:
  CpuStateOps(int threads, Isa isa) : threads_(std::max(1, threads)), isa_(isa) {}

  absl::Status AdamW(Stream*, const AdamWStep& step) override {
    STRATA_RETURN_IF_ERROR(CheckSize("AdamW", step.n));
    STRATA_RETURN_IF_ERROR(CheckParams("AdamW", step.params_dtype));
    if (step.step < 1) {
      return absl::InvalidArgumentError(absl::StrCat("AdamW: steps count from 1, not ", step.step));
    }
    const AdamWScalars scalars = MakeAdamWScalars({.lr = step.lr,
                                                   .beta1 = step.beta1,
                                                   .beta2 = step.beta2,
                                                   .eps = step.eps,
                                                   .weight_decay = step.weight_decay},
                                                  step.step, step.grad_scale);
    AdamWOnIsa(isa_, scalars,
               {.n = step.n,
                .grad = step.grad,
                .master = step.master,
                .m = step.m,
                .v = step.v,
                .params = step.params,
                .params_dtype = step.params_dtype},
               threads_);
    return absl::OkStatus();
  }

  absl::Status CastParams(Stream*, const float* master, void* params, DType params_dtype,
                          int64_t n) override {
    STRATA_RETURN_IF_ERROR(CheckSize("CastParams", n));
    STRATA_RETURN_IF_ERROR(CheckParams("CastParams", params_dtype));
    CastParamsOnIsa(isa_, master, params, params_dtype, n, threads_);
    return absl::OkStatus();
  }

  absl::Status SumSquares(Stream*, const float* x, int64_t n, double* sum, int64_t* first_bad) override {
    STRATA_RETURN_IF_ERROR(CheckSize("SumSquares", n));
    const SumSquaresResult result = strata::SumSquares(x, n, threads_);
    *sum = result.sum;
    *first_bad = result.first_bad;
    return absl::OkStatus();
  }

  absl::Status Accumulate(Stream*, float* acc, const float* x, int64_t n) override {
    STRATA_RETURN_IF_ERROR(CheckSize("Accumulate", n));
    strata::Accumulate(acc, x, n, threads_);
    return absl::OkStatus();
  }

 private:
  const int threads_;
  const Isa isa_;
};

}  // namespace

std::unique_ptr<StateOps> MakeCpuStateOps(int threads, Isa isa) {
  return std::make_unique<CpuStateOps>(threads, isa);
}

}  // namespace strata
