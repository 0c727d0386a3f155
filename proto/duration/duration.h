// google.protobuf.Duration and absl::Duration.
#ifndef PROTO_DURATION_DURATION_H_
#define PROTO_DURATION_DURATION_H_

#include <google/protobuf/duration.pb.h>

#include "absl/time/time.h"

namespace strata {

google::protobuf::Duration ToProto(absl::Duration duration);
// A peer's numbers, whatever they are: at most ten years either way.
absl::Duration FromProto(const google::protobuf::Duration& duration);

}  // namespace strata

#endif  // PROTO_DURATION_DURATION_H_
