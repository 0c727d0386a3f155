// Errors of the service contract: a Status whose payloads are the google.rpc details, so that the transport
// only has to copy them into the trailer. Every one carries ErrorInfo with domain "strata".
#ifndef SERVER_SERVICE_ERRORS_H_
#define SERVER_SERVICE_ERRORS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace strata::server {

// The first bytes of `text`, at most `size_max`, without cutting a UTF-8 character in two.
std::string TruncateUtf8(absl::string_view text, size_t size_max);

using ErrorMetadata = std::map<std::string, std::string>;

absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                       const ErrorMetadata& metadata = {});
// The same error with RetryInfo.
absl::Status WithRetry(absl::Status status, absl::Duration delay);

struct SpecProblem {
  std::string field;
  std::string description;
};
// INVALID_SPEC with BadRequest; the message names the first problems.
absl::Status InvalidSpec(const std::vector<SpecProblem>& problems);
// INVALID_ARGUMENT for one field of the request itself (not of the job file).
absl::Status InvalidField(absl::string_view field, absl::string_view description);
absl::Status NotFound(absl::string_view what, absl::string_view name);
absl::Status StorageDegraded(absl::string_view why);
absl::Status ServerDraining();

// The reason of the ErrorInfo in `status`; "" when there is none.
std::string ReasonOf(const absl::Status& status);

}  // namespace strata::server

#endif  // SERVER_SERVICE_ERRORS_H_
