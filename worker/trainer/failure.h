// Failures of a training run as the coordinator wants them: a cause beside the message.
#ifndef WORKER_TRAINER_FAILURE_H_
#define WORKER_TRAINER_FAILURE_H_

#include "absl/status/status.h"
#include "proto/strata/v1/jobs.pb.h"

namespace strata {

// Attaches the cause to an error (OK stays OK; a cause that is there already stays).
absl::Status WithCause(absl::Status status, v1::FailureCause cause);

// The attached cause, or what the code alone tells.
v1::FailureCause CauseOf(const absl::Status& status);

}  // namespace strata

#endif  // WORKER_TRAINER_FAILURE_H_
