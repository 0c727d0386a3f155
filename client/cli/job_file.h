// Loads a job file for a command: read, checked, with defaults and absolute paths, or told why not.
#ifndef CLIENT_CLI_JOB_FILE_H_
#define CLIENT_CLI_JOB_FILE_H_

#include <string>
#include <variant>
#include <vector>

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

// Prints each violation with its place in the file to stderr.
void PrintViolations(const LoadedJob& job, std::vector<FieldViolation> violations);

}  // namespace strata

#endif  // CLIENT_CLI_JOB_FILE_H_
