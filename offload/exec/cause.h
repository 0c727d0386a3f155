// Causes of failures, attached to a Status where its code alone does not tell them.
#ifndef OFFLOAD_EXEC_CAUSE_H_
#define OFFLOAD_EXEC_CAUSE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// Type of the payload that names the cause. The names are those of strata.v1.FailureCause, which this layer
// does not know: worker/trainer/failure_test.cc holds them together.
inline constexpr char kCausePayload[] = "strata/cause";

inline constexpr char kCauseUser[] = "USER_ERROR";
inline constexpr char kCauseNumeric[] = "NUMERIC";
inline constexpr char kCauseDeviceOom[] = "DEVICE_OOM";
inline constexpr char kCauseHostOom[] = "HOST_OOM";
inline constexpr char kCauseDeviceFault[] = "DEVICE_FAULT";
inline constexpr char kCauseNvmeFull[] = "NVME_FULL";
inline constexpr char kCauseNvmeIo[] = "NVME_IO_ERROR";
inline constexpr char kCauseCheckpoint[] = "CHECKPOINT_CORRUPT";

// Attaches the cause to an error (OK stays OK; a cause that is there already stays).
inline absl::Status WithCause(absl::Status status, absl::string_view cause) {
  if (!status.ok() && !status.GetPayload(kCausePayload).has_value()) {
    status.SetPayload(kCausePayload, absl::Cord(cause));
  }
  return status;
}

}  // namespace strata

#endif  // OFFLOAD_EXEC_CAUSE_H_
