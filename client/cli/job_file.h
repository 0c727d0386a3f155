// Loads a job file for a command: read, checked, with defaults and absolute paths, or told why not.
#ifndef CLIENT_CLI_JOB_FILE_H_
#define CLIENT_CLI_JOB_FILE_H_

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/exit_code.h"
#include "proto/job_spec/violation.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata {

struct LoadedJob {
  std::string path;  // as given
  v1::JobSpec spec;  // valid, defaults applied, paths absolute
  SourceMap source;
};

// On failure prints to stderr and returns the exit code: kUsage for a file that cannot be read or is no job
// file, kRejected for values that make no sense.
std::variant<LoadedJob, ExitCode> LoadJob(const std::string& path);

// Prints why the server, or with a status of PlanJob the planner here, refuses the job: what is wrong with
// fields of the file with its place, anything else as it is told. The exit code.
ExitCode FailJob(const LoadedJob& job, const absl::Status& status);
ExitCode FailPlan(const LoadedJob& job, const absl::Status& status);

// Prints each violation with its place in the file to stderr. Whether there is one.
bool PrintViolations(const LoadedJob& job, std::vector<FieldViolation> violations);

}  // namespace strata

#endif  // CLIENT_CLI_JOB_FILE_H_
