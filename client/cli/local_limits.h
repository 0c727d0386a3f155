// What the worker of a local run offers to one job on this machine.
#ifndef CLIENT_CLI_LOCAL_LIMITS_H_
#define CLIENT_CLI_LOCAL_LIMITS_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/strata/v1/machine.pb.h"
#include "proto/strata/v1/plan.pb.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata {

// The budgets of `spec`, and for each that is auto a share of what the machine has free: the rest is for the
// page cache, the trainer's own memory and everybody else. Scratch is counted on the file system of
// `nvme_path`, which need not exist yet.
absl::StatusOr<v1::ResourceRequest> LocalLimits(const v1::JobSpec& spec, const std::string& nvme_path);

// What the machine of a file offers.
v1::ResourceRequest LimitsOf(const v1::MachineFile& machine);

// How fast this machine is: measured the first time (which takes a second or two, and is said), then kept in
// the user's cache folder. NVMe is measured there too. Empty, with a note on stderr, when that fails: then a
// plan's times are a guess.
v1::MachineProfile LocalSpeeds();

}  // namespace strata

#endif  // CLIENT_CLI_LOCAL_LIMITS_H_
