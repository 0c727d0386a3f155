// Resource names and the short forms that people type.
#ifndef CLIENT_LIB_NAMES_H_
#define CLIENT_LIB_NAMES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// "austen-ab12" is projects/default/jobs/austen-ab12; a full name stays as it is. kInvalidArgument for
// anything that is neither.
absl::StatusOr<std::string> JobName(absl::string_view text);

// "austen-ab12/300" (or a full name) is projects/default/jobs/austen-ab12/checkpoints/300.
absl::StatusOr<std::string> CheckpointName(absl::string_view text);

// The last part of a name: austen-ab12.
std::string ShortName(absl::string_view name);

// 32 hex digits from the kernel's random source: an idempotency key that no other call has.
std::string NewRequestId();

}  // namespace strata

#endif  // CLIENT_LIB_NAMES_H_
