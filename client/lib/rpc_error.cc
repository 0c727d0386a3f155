#include "client/lib/rpc_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "proto/google/rpc/error_details.pb.h"

namespace strata {
namespace {

constexpr char kPayloadUrl[] = "type.googleapis.com/google.rpc.Status";
constexpr int kGrpcCodeMax = 16;

void AddDetail(const google::protobuf::Any& any, ErrorDetails& details) {
  google::rpc::ErrorInfo info;
  google::rpc::BadRequest bad_request;
  google::rpc::RetryInfo retry;
  google::rpc::QuotaFailure quota;
  google::rpc::PreconditionFailure precondition;
  if (any.UnpackTo(&info)) {
    details.reason = info.reason();
    for (const auto& [key, value] : info.metadata()) details.metadata.emplace(key, value);
  } else if (any.UnpackTo(&bad_request)) {
    for (const auto& violation : bad_request.field_violations()) {
      details.violations.push_back({.field = violation.field(), .description = violation.description()});
    }
  } else if (any.UnpackTo(&retry)) {
    details.retry_delay =
        absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
  } else if (any.UnpackTo(&quota)) {
    for (const auto& violation : quota.violations()) {
      details.notes.push_back(absl::StrCat(violation.subject(), ": ", violation.description()));
    }
  } else if (any.UnpackTo(&precondition)) {
    for (const auto& violation : precondition.violations()) {
      details.notes.push_back(absl::StrCat(violation.subject(), ": ", violation.description()));
    }
  }
}

}  // namespace

absl::Status MakeRpcStatus(int code, absl::string_view message, absl::string_view details) {
  if (code == 0) return absl::OkStatus();
  const auto known =
      code > 0 && code <= kGrpcCodeMax ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
  absl::Status status(known, message);
  google::rpc::Status parsed;
  if (!details.empty() && parsed.ParseFromArray(details.data(), static_cast<int>(details.size()))) {
    status.SetPayload(kPayloadUrl, absl::Cord(details));
  }
  return status;
}

ErrorDetails DetailsOf(const absl::Status& status) {
  ErrorDetails details;
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayloadUrl);
  google::rpc::Status parsed;
  if (!payload.has_value() || !parsed.ParseFromString(std::string(*payload))) return details;
  for (const google::protobuf::Any& any : parsed.details()) AddDetail(any, details);
  return details;
}

bool IsOfServer(const absl::Status& status) { return status.GetPayload(kPayloadUrl).has_value(); }

}  // namespace strata
