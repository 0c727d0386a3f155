// What commands share: errors to stderr, data to stdout, a client from the global flags.
#ifndef CLIENT_CLI_COMMAND_UTIL_H_
#define CLIENT_CLI_COMMAND_UTIL_H_

#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/commands.h"
#include "client/lib/client.h"

namespace strata {

// Prints the error to stderr; its exit code.
ExitCode Fail(const absl::Status& status);

// Writes `text` to stdout at once. False when nobody reads it any more.
bool PrintOut(const std::string& text);
void PrintError(const std::string& text);

// The only job whose full name begins with `name`; "": there is none. kNotFound names several.
absl::StatusOr<std::string> JobThatBeginsWith(Client& client, const std::string& name);

// `retry` false: an unreachable server is told at once.
std::unique_ptr<Client> Connect(const Globals& globals, std::stop_token stop = {}, bool retry = true);

// `call(name)`, which asks for the job of that full name. Where there is none, of the only job whose name
// begins so; where several do, kNotFound that names them.
template <typename Call>
auto OnJob(Client& client, const std::string& name, const Call& call) -> decltype(call(name)) {
  auto result = call(name);
  if (!absl::IsNotFound(result.status())) return result;
  const absl::StatusOr<std::string> other = JobThatBeginsWith(client, name);
  if (!other.ok()) return other.status();
  if (other->empty()) return result;
  return call(*other);
}

// Whether this address is on this machine.
bool IsLoopback(const std::string& address);

// The end of a watched job as the exit code, with the job in `globals.format` on stdout (a table becomes the
// text that JobText gives; JSON lines are rows only, so nothing).
ExitCode ReportEnd(const Globals& globals, const v1::Job& job);

}  // namespace strata

#endif  // CLIENT_CLI_COMMAND_UTIL_H_
