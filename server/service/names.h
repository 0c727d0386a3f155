// Resource names and page tokens, all judged as input from strangers.
#ifndef SERVER_SERVICE_NAMES_H_
#define SERVER_SERVICE_NAMES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata::server {

// [a-z0-9] at both ends, [a-z0-9-] between, at most `size_max` characters.
bool IsId(absl::string_view id, size_t size_max);

// "" is projects/default.
absl::StatusOr<std::string> ParseParent(absl::string_view parent);
// projects/{p}/jobs/{j}; a bare {j} is short for projects/default/jobs/{j}.
absl::StatusOr<std::string> ParseJobName(absl::string_view name);
// projects/{p}/jobs/{j}/checkpoints/{step}
struct CheckpointName {
  std::string job;
  int64_t step = 0;
};
absl::StatusOr<CheckpointName> ParseCheckpointName(absl::string_view name);
std::string MakeCheckpointName(absl::string_view job, int64_t step);

// A cursor bound to the list it belongs to: another `list` refuses it.
std::string MakePageToken(absl::string_view list, int64_t cursor);
// `first` for "".
absl::StatusOr<int64_t> ParsePageToken(absl::string_view list, absl::string_view token, int64_t first);
// 0: `standard`; above `max`: `max`; negative is refused.
absl::StatusOr<int32_t> PageSize(int32_t wanted, int32_t standard, int32_t max);

// SHA-256, 32 bytes.
std::string Sha256(absl::string_view data);

}  // namespace strata::server

#endif  // SERVER_SERVICE_NAMES_H_
