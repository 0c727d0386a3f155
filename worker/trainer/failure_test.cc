#include "worker/trainer/failure.h"

#include <utility>

#include "gtest/gtest.h"
#include "offload/exec/cause.h"

namespace strata {
namespace {

TEST(FailureTest, TheEnginesCausesAreTheCoordinators) {
  for (const auto& [name, cause] :
       {std::pair(kCauseUser, v1::USER_ERROR), std::pair(kCauseNumeric, v1::NUMERIC),
        std::pair(kCauseDeviceOom, v1::DEVICE_OOM), std::pair(kCauseDeviceFault, v1::DEVICE_FAULT),
        std::pair(kCauseHostOom, v1::HOST_OOM), std::pair(kCauseNvmeFull, v1::NVME_FULL),
        std::pair(kCauseNvmeIo, v1::NVME_IO_ERROR), std::pair(kCauseCheckpoint, v1::CHECKPOINT_CORRUPT)}) {
    EXPECT_EQ(CauseOf(WithCause(absl::UnknownError("x"), name)), cause) << name;
  }
}

TEST(FailureTest, TheFirstCauseStaysAndSuccessHasNone) {
  const absl::Status first = WithCause(absl::DataLossError("x"), v1::CHECKPOINT_CORRUPT);
  EXPECT_EQ(CauseOf(WithCause(first, v1::NVME_IO_ERROR)), v1::CHECKPOINT_CORRUPT);
  EXPECT_EQ(WithCause(absl::OkStatus(), v1::NVME_IO_ERROR), absl::OkStatus());
}

}  // namespace
}  // namespace strata
