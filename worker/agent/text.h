// Bytes of other programs made fit for protobuf's string fields.
#ifndef WORKER_AGENT_TEXT_H_
#define WORKER_AGENT_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace strata {

// Every byte that is not part of valid UTF-8 (RFC 3629: no surrogates, no overlong forms) becomes '?'.
// Needed because one bad byte in a string field makes the whole message unreadable for the receiver.
std::string ToValidUtf8(absl::string_view bytes);

}  // namespace strata

#endif  // WORKER_AGENT_TEXT_H_
