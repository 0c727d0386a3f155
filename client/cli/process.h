// Runs another program to its end.
#ifndef CLIENT_CLI_PROCESS_H_
#define CLIENT_CLI_PROCESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace strata {

// argv[0] is the path of the program. Its stdout goes to `stdout_fd`; stdin and stderr are shared; signals
// are as a program expects them. Returns the exit code, 128 + N for an end by signal N. Safe with threads.
absl::StatusOr<int> RunProgram(const std::vector<std::string>& argv, int stdout_fd);

struct ProgramOutput {
  int exit_code = 0;  // as RunProgram's
  std::string text;   // all of its stdout
};
// kResourceExhausted for more text than `limit_bytes`.
absl::StatusOr<ProgramOutput> RunProgramForOutput(const std::vector<std::string>& argv, int64_t limit_bytes);

}  // namespace strata

#endif  // CLIENT_CLI_PROCESS_H_
