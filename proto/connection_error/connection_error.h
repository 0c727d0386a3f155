// What gRPC says of a connection that failed, in words that tell a person what to do.
#ifndef PROTO_CONNECTION_ERROR_CONNECTION_ERROR_H_
#define PROTO_CONNECTION_ERROR_CONNECTION_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// Of a call to the coordinator at `address` that ended UNAVAILABLE or DEADLINE_EXCEEDED with gRPC's own
// `message`, so without an answer: what was tried, why it failed, and the remedy. `flags` is where the
// address is from, as "--server or STRATA_SERVER".
std::string ExplainNoAnswer(absl::StatusCode code, absl::string_view message, absl::string_view address,
                            absl::string_view flags);

}  // namespace strata

#endif  // PROTO_CONNECTION_ERROR_CONNECTION_ERROR_H_
