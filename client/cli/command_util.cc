#include "client/cli/command_util.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/views.h"
#include "client/lib/names.h"

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
  if (globals.timeout_seconds > 0) options.confirm_for = absl::Seconds(globals.timeout_seconds);
  if (!retry) options.retry_for = absl::ZeroDuration();
  options.on_retry = [](const absl::Status& status) {
    if (absl::IsDeadlineExceeded(status)) PrintError("the server has not answered yet; asking again\n");
  };
  return std::make_unique<Client>(std::move(options));
}

absl::StatusOr<std::string> JobThatBeginsWith(Client& client, const std::string& name) {
  constexpr size_t kNamedMax = 5;
  const absl::StatusOr<std::vector<v1::Job>> jobs = client.ListJobs("", 0);
  if (!jobs.ok()) return jobs.status();
  std::vector<std::string> found;
  for (const v1::Job& job : *jobs) {
    if (absl::StartsWith(job.name(), name)) found.push_back(job.name());
  }
  if (found.size() < 2) return found.empty() ? std::string() : found[0];
  std::vector<std::string> named;
  for (size_t i = 0; i < std::min(found.size(), kNamedMax); ++i) named.push_back(ShortName(found[i]));
  return absl::NotFoundError(absl::StrCat("no job is named ", ShortName(name), "; the names of ",
                                          found.size(), " begin so: ", absl::StrJoin(named, ", "),
                                          found.size() > kNamedMax ? ", ..." : "",
                                          ": write more of the one that is meant"));
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
