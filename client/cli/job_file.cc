#include "client/cli/job_file.h"

#include <climits>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "client/lib/rpc_error.h"
#include "proto/job_spec/validate.h"
#include "proto/job_spec/yaml.h"

namespace strata {
namespace {

void PrintError(const std::string& text) { std::fputs(text.c_str(), stderr); }

}  // namespace

std::variant<LoadedJob, ExitCode> LoadJob(const std::string& path) {
  absl::StatusOr<JobFile> file = LoadJobFile(path);
  if (!file.ok()) {
    PrintError(RenderError(file.status()));
    return ExitCode::kUsage;
  }
  LoadedJob job = {.path = path, .spec = std::move(file->spec), .source = std::move(file->source)};
  if (!file->violations.empty()) {
    PrintViolations(job, std::move(file->violations));
    return ExitCode::kUsage;
  }
  std::vector<FieldViolation> violations = Validate(job.spec);
  if (!violations.empty()) {
    PrintViolations(job, std::move(violations));
    return ExitCode::kRejected;
  }
  ApplyDefaults(job.spec);
  char real[PATH_MAX];
  if (realpath(path.c_str(), real) == nullptr) {
    PrintError(absl::StrCat("error: ", path, ": cannot be resolved to an absolute path\n"));
    return ExitCode::kUsage;
  }
  const std::string absolute = real;
  const std::string folder = absolute.substr(0, absolute.rfind('/'));
  ResolvePaths(folder.empty() ? "/" : folder, job.spec);
  return job;
}

ExitCode FailJob(const LoadedJob& job, const absl::Status& status) {
  ErrorDetails details = DetailsOf(status);
  if (details.reason != "INVALID_SPEC" || details.violations.empty()) {
    PrintError(RenderError(status));
  } else {
    PrintViolations(job, std::move(details.violations));
  }
  return ExitCodeOf(status);
}

ExitCode FailPlan(const LoadedJob& job, const absl::Status& status) {
  if (absl::IsInternal(status)) {
    PrintError(RenderError(status));
    return ExitCodeOf(status);
  }
  PrintViolations(job, {ViolationOf(status.message())});
  return ExitCode::kRejected;
}

bool PrintViolations(const LoadedJob& job, std::vector<FieldViolation> violations) {
  // A violation of the command line (--nvme-path) has no place in the file.
  for (FieldViolation& violation : violations) {
    std::vector<FieldViolation> one = {std::move(violation)};
    const bool flag = one[0].field.rfind("--", 0) == 0;
    if (!flag) job.source.Locate(one);
    PrintError("error: " + FormatViolations(flag ? "" : job.path, one));
  }
  return !violations.empty();
}

}  // namespace strata
