#include "kernels/optimizer/check.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/checksum/pieces.h"

namespace strata {

absl::Status CheckElements(const char* op, int64_t n) {
  if (n >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", n, " elements"));
}

absl::Status CheckParamsDType(const char* op, DType dtype) {
  if (dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": parameters are bf16, f16 or f32, not ", Name(dtype)));
}

absl::Status CheckAdamWStep(const char* op, const AdamWStep& step) {
  STRATA_RETURN_IF_ERROR(CheckElements(op, step.n));
  STRATA_RETURN_IF_ERROR(CheckParamsDType(op, step.params_dtype));
  if (step.step >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": steps count from 1, not ", step.step));
}

absl::Status CheckChecksumRange(const char* op, const void* data, int64_t bytes) {
  if (bytes >= 0 && bytes % kChecksumBlockBytes == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": ", bytes, " bytes at ", absl::Hex(reinterpret_cast<uintptr_t>(data)),
                   ", not whole blocks of ", kChecksumBlockBytes, " at a multiple of 16"));
}

AdamWScalars ScalarsOf(const AdamWStep& step) {
  return MakeAdamWScalars({.lr = step.lr,
                           .beta1 = step.beta1,
                           .beta2 = step.beta2,
                           .eps = step.eps,
                           .weight_decay = step.weight_decay},
                          step.step, step.grad_scale);
}

AdamWRange RangeOf(const AdamWStep& step) {
  return {.n = step.n,
          .grad = step.grad,
          .master = step.master,
          .m = step.m,
          .v = step.v,
          .params = step.params,
          .params_dtype = step.params_dtype};
}

AdamW8Range RangeOf(const AdamWStep& step, const Code8Moments& moments) {
  return {.n = step.n,
          .grad = step.grad,
          .master = step.master,
          .m = moments.m,
          .m_scale = moments.m_scale,
          .v = moments.v,
          .v_scale = moments.v_scale,
          .params = step.params,
          .params_dtype = step.params_dtype};
}

}  // namespace strata
