#include "kernels/cuda/cuda_state_ops.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/checked.h"
#include "common/mutex.h"
#include "common/status.h"
#include "kernels/checksum/launch.h"
#include "kernels/cuda/launch_error.h"
#include "kernels/optimizer/check.h"
#include "kernels/state/launch.h"

namespace strata {
namespace {

constexpr int64_t kStreamScratchBytes = RoundUp<int64_t>(gpu::kSumSquaresScratchBytes, 64);

class CudaStateOps final : public StateOps {
 public:
  explicit CudaStateOps(Workspace scratch) : scratch_(scratch) {}

  absl::Status AdamW(Stream* stream, const AdamWStep& step) override {
    STRATA_RETURN_IF_ERROR(CheckAdamWStep("AdamW", step));
    return ToStatus("AdamW", gpu::AdamW(stream, ScalarsOf(step), RangeOf(step)));
  }

  absl::Status AdamW8(Stream* stream, const AdamWStep& step, const Code8Moments& moments) override {
    STRATA_RETURN_IF_ERROR(CheckAdamWStep("AdamW8", step));
    return ToStatus("AdamW8", gpu::AdamW8(stream, ScalarsOf(step), RangeOf(step, moments)));
  }

  absl::Status CastParams(Stream* stream, const float* master, void* params, DType params_dtype,
                          int64_t n) override {
    STRATA_RETURN_IF_ERROR(CheckElements("CastParams", n));
    STRATA_RETURN_IF_ERROR(CheckParamsDType("CastParams", params_dtype));
    return ToStatus("CastParams", gpu::CastParams(stream, master, params, params_dtype, n));
  }

  absl::Status SumSquares(Stream* stream, const float* x, int64_t n, double* sum,
                          int64_t* first_bad) override {
    STRATA_RETURN_IF_ERROR(CheckElements("SumSquares", n));
    STRATA_ASSIGN_OR_RETURN(void* const scratch, ScratchOf(stream));
    return ToStatus("SumSquares", gpu::SumSquares(stream, x, n, sum, first_bad, scratch));
  }

  absl::Status Accumulate(Stream* stream, float* acc, const float* x, int64_t n) override {
    STRATA_RETURN_IF_ERROR(CheckElements("Accumulate", n));
    return ToStatus("Accumulate", gpu::Accumulate(stream, acc, x, n));
  }

  absl::Status Checksums(Stream* stream, const void* data, int64_t bytes, uint32_t* crcs) override {
    STRATA_RETURN_IF_ERROR(CheckChecksumRange("Checksums", data, bytes));
    return ToStatus("Checksums", gpu::Checksums(stream, data, bytes, crcs));
  }

 private:
  // Work on one stream is in order, so its calls may share memory; those of two streams may not.
  absl::StatusOr<void*> ScratchOf(Stream* stream) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    const auto found = std::find(streams_.begin(), streams_.end(), stream);
    const int64_t index = found - streams_.begin();
    if (found == streams_.end()) {
      if (index == kCudaStateStreamsMax) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "SumSquares: used on more than ", kCudaStateStreamsMax, " streams; raise kCudaStateStreamsMax"));
      }
      streams_.push_back(stream);
    }
    return static_cast<char*>(scratch_.data) + index * kStreamScratchBytes;
  }

  const Workspace scratch_;
  Mutex mu_;
  std::vector<Stream*> streams_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

int64_t CudaStateScratchBytes() { return kCudaStateStreamsMax * kStreamScratchBytes; }

std::unique_ptr<StateOps> MakeCudaStateOps(Workspace scratch) {
  STRATA_CHECK(scratch.bytes >= CudaStateScratchBytes());
  return std::make_unique<CudaStateOps>(scratch);
}

}  // namespace strata
