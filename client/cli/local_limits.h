// What the worker of a local run offers to one job on this machine.
#ifndef CLIENT_CLI_LOCAL_LIMITS_H_
#define CLIENT_CLI_LOCAL_LIMITS_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/strata/v1/plan.pb.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata {

// The budgets of `spec`, and for each that is auto a share of what the machine has free: the rest is for the
// page cache, the trainer's own memory and everybody else. Scratch is counted on the file system of
// `nvme_path`, which need not exist yet.
absl::StatusOr<v1::ResourceRequest> LocalLimits(const v1::JobSpec& spec, const std::string& nvme_path);

}  // namespace strata

#endif  // CLIENT_CLI_LOCAL_LIMITS_H_
