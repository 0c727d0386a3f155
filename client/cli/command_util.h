// What commands share: errors to stderr, data to stdout, a client from the global flags.
#ifndef CLIENT_CLI_COMMAND_UTIL_H_
#define CLIENT_CLI_COMMAND_UTIL_H_

#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/lib/client.h"
#include "client/lib/names.h"

namespace strata {

// Prints the error to stderr; its exit code.
ExitCode Fail(const absl::Status& status);

// Writes `text` to stdout at once. False when nobody reads it any more.
bool PrintOut(const std::string& text);
void PrintError(const std::string& text);

// The only job whose full name begins with `name`; "": there is none. kNotFound names several; another error
// is that of the list.
absl::StatusOr<std::string> JobThatBeginsWith(Client& client, const std::string& name);

// `retry` false: an unreachable server is told at once.
std::unique_ptr<Client> Connect(const Globals& globals, std::stop_token stop = {}, bool retry = true);

// `call(name)`, which asks for the job of that full name. Where there is none, of the only job whose name
// begins so; where several do, kNotFound that names them. No job's name ends in a dash, so where `name` does
// it is a beginning.
template <typename Call>
auto OnJob(Client& client, const std::string& name, const Call& call) -> decltype(call(name)) {
  using Result = decltype(call(name));
  const bool whole = !absl::EndsWith(name, "-");
  const Result result =
      whole ? call(name)
            : Result(absl::NotFoundError(absl::StrCat("no job's name begins with ", ShortName(name))));
  if (!absl::IsNotFound(result.status())) return result;
  const absl::StatusOr<std::string> other = JobThatBeginsWith(client, name);
  if (other.ok()) return other->empty() ? result : call(*other);
  // Where the list cannot be had, the first answer stands if there was one.
  return whole && !absl::IsNotFound(other.status()) ? result : Result(other.status());
}

// Whether this address is on this machine.
bool IsLoopback(const std::string& address);

// The end of a watched job as the exit code, with the job in `globals.format` on stdout (a table becomes the
// text that JobText gives; JSON lines are rows only, so nothing).
ExitCode ReportEnd(const Globals& globals, const v1::Job& job);

}  // namespace strata

#endif  // CLIENT_CLI_COMMAND_UTIL_H_
