#include "worker/trainer/failure.h"

#include <string>
#include <utility>

#include "offload/exec/cause.h"

namespace strata {

absl::Status WithCause(absl::Status status, v1::FailureCause cause) {
  return WithCause(std::move(status), absl::string_view(v1::FailureCause_Name(cause)));
}

v1::FailureCause CauseOf(const absl::Status& status) {
  v1::FailureCause cause;
  if (const auto payload = status.GetPayload(kCausePayload);
      payload.has_value() && v1::FailureCause_Parse(std::string(*payload), &cause)) {
    return cause;
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return v1::USER_ERROR;
    case absl::StatusCode::kDataLoss:
      return v1::NVME_IO_ERROR;
    case absl::StatusCode::kResourceExhausted:
      return v1::NVME_FULL;
    default:
      return v1::TRAINER_CRASHED;
  }
}

}  // namespace strata
