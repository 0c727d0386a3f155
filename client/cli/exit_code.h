// Exit codes of the CLI (documented in `strata --help`; stable) and how errors are told to people.
#ifndef CLIENT_CLI_EXIT_CODE_H_
#define CLIENT_CLI_EXIT_CODE_H_

#include <string>

#include "absl/status/status.h"
#include "proto/strata/v1/jobs.pb.h"

namespace strata {

enum class ExitCode {
  kOk = 0,
  kFailed = 1,  // the job failed; or an error that fits no other code
  kUsage = 2,   // a command line, job file or machine file that is none: unreadable, unknown, not of its kind
  kNotFound = 3,
  kAuth = 4,
  kUnavailable = 5,
  kTimeout = 6,
  kCancelled = 7,
  kRejected = 8,  // understood, and can never work as it is or here, or not now for lack of room
  kConflict = 9,  // another state or owner of the same thing
};

// kOk for an ok status.
ExitCode ExitCodeOf(const absl::Status& status);

// Of a terminal state; kOk for any other.
ExitCode ExitCodeOf(v1::Job::State state);

bool IsTerminal(v1::Job::State state);

// "error: message", then one indented line per field violation, note and number that came with it.
std::string RenderError(const absl::Status& status);

}  // namespace strata

#endif  // CLIENT_CLI_EXIT_CODE_H_
