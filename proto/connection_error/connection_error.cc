#include "proto/connection_error/connection_error.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

// What the kernel said, " (Connection refused)", where gRPC's chain of reasons ends in it; else "", for the
// rest is about gRPC itself.
std::string KernelsReason(absl::string_view message) {
  for (const int code :
       {ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT, ENOENT, EACCES, ECONNRESET, EPIPE}) {
    const std::string reason = std::strerror(code);
    if (absl::EndsWith(message, reason)) return absl::StrCat(" (", reason, ")");
  }
  return "";
}

}  // namespace

std::string ExplainNoAnswer(absl::StatusCode code, absl::string_view message, absl::string_view address,
                            absl::string_view flags) {
  if (code == absl::StatusCode::kDeadlineExceeded) {
    return absl::StrCat("the coordinator at ", address,
                        " has not answered in time: it or the way to it is slow, try again");
  }
  const std::string lower = absl::AsciiStrToLower(message);
  if (absl::StrContains(lower, "dns resolution failed")) {
    return absl::StrCat("no address is known for the host of ", address, ": correct ", flags);
  }
  if (absl::StrContains(lower, "failed to connect")) {
    return absl::StrCat("nobody answers at ", address, KernelsReason(message),
                        ": start strata_server there, or name the coordinator's address with ", flags);
  }
  return absl::StrCat("the connection to the coordinator at ", address, " broke", KernelsReason(message),
                      ": it may be starting again, try again");
}

}  // namespace strata
