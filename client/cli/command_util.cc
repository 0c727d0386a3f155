#include "client/cli/command_util.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/views.h"

namespace strata {

ExitCode Fail(const absl::Status& status) {
  PrintError(RenderError(status));
  return ExitCodeOf(status);
}

bool PrintOut(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

void PrintError(const std::string& text) { std::fputs(text.c_str(), stderr); }

std::unique_ptr<Client> Connect(const Globals& globals, std::stop_token stop, bool retry) {
  ClientOptions options;
  options.address = globals.server;
  options.stop = std::move(stop);
  if (!retry) options.retry_for = absl::ZeroDuration();
  return std::make_unique<Client>(std::move(options));
}

bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "127.") || absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]") || absl::StartsWith(address, "unix:");
}

ExitCode ReportEnd(const Globals& globals, const v1::Job& job) {
  if (globals.format != Format::kJsonl)
    PrintOut(Render(globals.format, {ToJson(job)}, true, [&] { return JobText(job); }));
  return ExitCodeOf(job.status().state());
}

}  // namespace strata
