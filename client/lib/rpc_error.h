// What a refused call says beyond its code and message: google.rpc error details, carried from the transport
// inside absl::Status so that they survive every layer between.
#ifndef CLIENT_LIB_RPC_ERROR_H_
#define CLIENT_LIB_RPC_ERROR_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/job_spec/violation.h"

namespace strata {

struct ErrorDetails {
  std::string reason;                           // UPPER_SNAKE, stable; "" where the server gave none
  std::map<std::string, std::string> metadata;  // numbers and names behind the reason
  std::vector<FieldViolation> violations;       // of the request's spec, without places
  std::vector<std::string> notes;               // further violations (quotas, preconditions) for people
  absl::Duration retry_delay;                   // zero: none given
};

// A Status of a call that ended with `code` (a gRPC code, whose numbers absl shares), `message` and the
// bytes of the trailer grpc-status-details-bin. Bytes that are no google.rpc.Status are dropped.
absl::Status MakeRpcStatus(int code, absl::string_view message, absl::string_view details);

// The details that MakeRpcStatus put in; empty for any other status.
ErrorDetails DetailsOf(const absl::Status& status);

// Whether MakeRpcStatus was given details: what gRPC says itself has none, so the server has been reached.
bool IsOfServer(const absl::Status& status);

}  // namespace strata

#endif  // CLIENT_LIB_RPC_ERROR_H_
