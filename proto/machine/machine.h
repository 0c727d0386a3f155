// Machine profiles as messages and files: between the engine's struct (offload/plan/machine_profile.h), the
// wire and machine files.
#ifndef PROTO_MACHINE_MACHINE_H_
#define PROTO_MACHINE_MACHINE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "offload/plan/machine_profile.h"
#include "proto/strata/v1/machine.pb.h"

namespace strata {

// kInvalidArgument names the field of a value that no machine has.
absl::Status CheckMachine(const v1::MachineProfile& profile);
// Absent fields as machine.proto says. An empty message, or one that CheckMachine refuses, is the defaults: a
// peer's numbers never stop a plan.
MachineProfile FromProto(const v1::MachineProfile& profile);
v1::MachineProfile ToProto(const MachineProfile& profile);

// Stands for the speeds of a machine that was not measured: those of `guess`, whose source then says so.
v1::MachineProfile GuessedSpeeds(MachineProfile guess, absl::string_view why_not_measured);

// YAML along the message MachineFile. kInvalidArgument: each problem with its line and field.
absl::StatusOr<v1::MachineFile> ParseMachineFile(absl::string_view text);
absl::StatusOr<v1::MachineFile> LoadMachineFile(const std::string& path);

}  // namespace strata

#endif  // PROTO_MACHINE_MACHINE_H_
