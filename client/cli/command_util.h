// What commands share: errors to stderr, data to stdout, a client from the global flags.
#ifndef CLIENT_CLI_COMMAND_UTIL_H_
#define CLIENT_CLI_COMMAND_UTIL_H_

#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "client/cli/commands.h"
#include "client/lib/client.h"

namespace strata {

// Prints the error to stderr; its exit code.
ExitCode Fail(const absl::Status& status);

// Writes `text` to stdout at once. False when nobody reads it any more.
bool PrintOut(const std::string& text);
void PrintError(const std::string& text);

// `retry` false: an unreachable server is told at once.
std::unique_ptr<Client> Connect(const Globals& globals, std::stop_token stop = {}, bool retry = true);

// Whether this address is on this machine.
bool IsLoopback(const std::string& address);

// The end of a watched job as the exit code, with the job in `globals.format` on stdout (a table becomes the
// text that JobText gives; JSON lines are rows only, so nothing).
ExitCode ReportEnd(const Globals& globals, const v1::Job& job);

}  // namespace strata

#endif  // CLIENT_CLI_COMMAND_UTIL_H_
