#include "kernels/optimizer/cpu_state_ops.h"

#include <algorithm>
#include <cstddef>

#include "common/crc32c.h"
#include "common/status.h"
#include "kernels/checksum/pieces.h"
#include "kernels/optimizer/accumulate.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/adamw8.h"
#include "kernels/optimizer/cast.h"
#include "kernels/optimizer/check.h"
#include "kernels/optimizer/reduce.h"

namespace strata {
namespace {

class CpuStateOps final : public StateOps {
 public:
  CpuStateOps(int threads, Isa isa) : threads_(std::max(1, threads)), isa_(isa) {}

  absl::Status AdamW(Stream*, const AdamWStep& step) override {
    STRATA_RETURN_IF_ERROR(CheckAdamWStep("AdamW", step));
    AdamWOnIsa(isa_, ScalarsOf(step), RangeOf(step), threads_);
    return absl::OkStatus();
  }

  absl::Status AdamW8(Stream*, const AdamWStep& step, const Code8Moments& moments) override {
    STRATA_RETURN_IF_ERROR(CheckAdamWStep("AdamW8", step));
    AdamW8OnIsa(isa_, ScalarsOf(step), RangeOf(step, moments), threads_);
    return absl::OkStatus();
  }

  absl::Status CastParams(Stream*, const float* master, void* params, DType params_dtype,
                          int64_t n) override {
    STRATA_RETURN_IF_ERROR(CheckElements("CastParams", n));
    STRATA_RETURN_IF_ERROR(CheckParamsDType("CastParams", params_dtype));
    CastParamsOnIsa(isa_, master, params, params_dtype, n, threads_);
    return absl::OkStatus();
  }

  absl::Status SumSquares(Stream*, const float* x, int64_t n, double* sum, int64_t* first_bad) override {
    STRATA_RETURN_IF_ERROR(CheckElements("SumSquares", n));
    const SumSquaresResult result = strata::SumSquares(x, n, threads_);
    *sum = result.sum;
    *first_bad = result.first_bad;
    return absl::OkStatus();
  }

  absl::Status Accumulate(Stream*, float* acc, const float* x, int64_t n) override {
    STRATA_RETURN_IF_ERROR(CheckElements("Accumulate", n));
    strata::Accumulate(acc, x, n, threads_);
    return absl::OkStatus();
  }

  absl::Status Checksums(Stream*, const void* data, int64_t bytes, uint32_t* crcs) override {
    STRATA_RETURN_IF_ERROR(CheckChecksumRange("Checksums", data, bytes));
    for (int64_t at = 0; at < bytes; at += kChecksumPieceBytes) {
      *crcs++ = Crc32c(static_cast<const std::byte*>(data) + at,
                       static_cast<size_t>(std::min(kChecksumPieceBytes, bytes - at)));
    }
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
