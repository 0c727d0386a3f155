// Finds the other programs of Strata: next to this one as they are installed, or as Bazel lays them out.
#ifndef CLIENT_CLI_BINARIES_H_
#define CLIENT_CLI_BINARIES_H_

#include <string>

#include "absl/status/statusor.h"

namespace strata {

enum class Program { kServer, kWorker, kTrainer };

// An executable file: in `bin_dir` if that is not empty, else beside this program's own file
// (strata-server), or in the sibling folder where Bazel builds it (../server/strata_server). kNotFound names
// the places that were looked at.
absl::StatusOr<std::string> FindProgram(Program program, const std::string& bin_dir);

// The folder of this program's own file.
absl::StatusOr<std::string> OwnFolder();

}  // namespace strata

#endif  // CLIENT_CLI_BINARIES_H_
