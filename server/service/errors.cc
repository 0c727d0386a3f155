#include "server/service/errors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "proto/google/rpc/error_details.pb.h"

namespace strata::server {
namespace {

constexpr absl::string_view kErrorInfoUrl = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr absl::string_view kRetryInfoUrl = "type.googleapis.com/google.rpc.RetryInfo";
constexpr absl::string_view kBadRequestUrl = "type.googleapis.com/google.rpc.BadRequest";

// Details travel in one trailer, and clients refuse more than 8 KiB of metadata.
constexpr size_t kViolationsMax = 10;
constexpr size_t kDescriptionMax = 300;
constexpr size_t kValueMax = 200;

}  // namespace

std::string TruncateUtf8(absl::string_view text, size_t size_max) {
  if (text.size() <= size_max) return std::string(text);
  while (size_max > 0 && (text[size_max] & 0xc0) == 0x80) --size_max;
  return std::string(text.substr(0, size_max));
}

absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                       const ErrorMetadata& metadata) {
  absl::Status status(code, message);
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain("strata");
  for (const auto& [key, value] : metadata) (*info.mutable_metadata())[key] = TruncateUtf8(value, kValueMax);
  status.SetPayload(kErrorInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

absl::Status WithRetry(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo retry;
  const int64_t nanos = absl::ToInt64Nanoseconds(delay);
  retry.mutable_retry_delay()->set_seconds(nanos / 1'000'000'000);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  status.SetPayload(kRetryInfoUrl, absl::Cord(retry.SerializeAsString()));
  return status;
}

absl::Status InvalidSpec(const std::vector<SpecProblem>& problems) {
  std::string message = "the job is not valid";
  google::rpc::BadRequest bad;
  for (size_t i = 0; i < std::min(problems.size(), kViolationsMax); ++i) {
    const std::string description = TruncateUtf8(problems[i].description, kDescriptionMax);
    absl::StrAppend(&message, i == 0 ? ": " : "; ", problems[i].field, ": ", description);
    auto* violation = bad.add_field_violations();
    violation->set_field(TruncateUtf8(problems[i].field, kDescriptionMax));
    violation->set_description(description);
  }
  if (problems.size() > kViolationsMax)
    absl::StrAppend(&message, "; and ", problems.size() - kViolationsMax, " more");
  absl::Status status = MakeError(absl::StatusCode::kInvalidArgument, "INVALID_SPEC", message);
  status.SetPayload(kBadRequestUrl, absl::Cord(bad.SerializeAsString()));
  return status;
}

absl::Status InvalidField(absl::string_view field, absl::string_view description) {
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(std::string(description));
  absl::Status status = MakeError(absl::StatusCode::kInvalidArgument, "INVALID_REQUEST",
                                  absl::StrCat(field, ": ", description), {{"field", std::string(field)}});
  status.SetPayload(kBadRequestUrl, absl::Cord(bad.SerializeAsString()));
  return status;
}

absl::Status NotFound(absl::string_view what, absl::string_view name) {
  return MakeError(absl::StatusCode::kNotFound, "NOT_FOUND",
                   absl::StrCat(what, " ", TruncateUtf8(name, kValueMax), " does not exist"),
                   {{"name", std::string(name)}});
}

absl::Status StorageDegraded(absl::string_view why) {
  return WithRetry(
      MakeError(absl::StatusCode::kUnavailable, "STORAGE_DEGRADED",
                absl::StrCat("the coordinator cannot write to its storage; reads and training go on: ", why)),
      absl::Seconds(2));
}

absl::Status ServerDraining() {
  return WithRetry(MakeError(absl::StatusCode::kUnavailable, "SERVER_DRAINING",
                             "the coordinator is shutting down; try again"),
                   absl::Seconds(1));
}

std::string ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kErrorInfoUrl);
  google::rpc::ErrorInfo info;
  if (!payload || !info.ParseFromString(std::string(*payload))) return "";
  return info.reason();
}

}  // namespace strata::server
