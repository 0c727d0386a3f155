#include "client/cli/exit_code.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/lib/rpc_error.h"
#include "proto/job_spec/text.h"

namespace strata {
namespace {

// Whether `text` has `value` in it, as a word or a sentence of its own.
bool SaysAlready(absl::string_view text, absl::string_view value) {
  for (size_t at = text.find(value); at != absl::string_view::npos; at = text.find(value, at + 1)) {
    const size_t end = at + value.size();
    if ((at == 0 || !absl::ascii_isalnum(text[at - 1])) &&
        (end == text.size() || !absl::ascii_isalnum(text[end])))
      return true;
  }
  return false;
}

}  // namespace

ExitCode ExitCodeOf(const absl::Status& status) {
  const std::string reason = DetailsOf(status).reason;
  if (reason == "BAD_TRANSITION" || reason == "REQUEST_ID_REUSED" || reason == "STALE_ATTEMPT")
    return ExitCode::kConflict;
  // A part of the request that is no job: it came from the command line.
  if (reason == "INVALID_REQUEST") return ExitCode::kUsage;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return ExitCode::kAuth;
    case absl::StatusCode::kUnavailable:
      return ExitCode::kUnavailable;
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kTimeout;
    case absl::StatusCode::kCancelled:
      return ExitCode::kCancelled;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kResourceExhausted:
      return ExitCode::kRejected;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return ExitCode::kConflict;
    default:
      return ExitCode::kFailed;
  }
}

ExitCode ExitCodeOf(v1::Job::State state) {
  switch (state) {
    case v1::Job::FAILED:
      return ExitCode::kFailed;
    case v1::Job::CANCELLED:
      return ExitCode::kCancelled;
    default:
      return ExitCode::kOk;
  }
}

bool IsTerminal(v1::Job::State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

std::string RenderError(const absl::Status& status) {
  const ErrorDetails details = DetailsOf(status);
  std::string text = absl::StrCat("error: ", std::string(status.message()), "\n");
  for (const FieldViolation& violation : details.violations) {
    if (!SaysAlready(status.message(), violation.description))
      absl::StrAppend(&text, "  ", violation.field, ": ", violation.description, "\n");
  }
  for (const std::string& note : details.notes) absl::StrAppend(&text, "  ", note, "\n");
  if (!details.reason.empty()) absl::StrAppend(&text, "  reason: ", details.reason, "\n");
  for (const auto& [key, value] : details.metadata) {
    if (!SaysAlready(status.message(), value)) absl::StrAppend(&text, "  ", key, ": ", value, "\n");
  }
  return Printable(text, Newlines::kKept);
}

}  // namespace strata
