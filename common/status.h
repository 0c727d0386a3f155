// Status macros: every call site either handles an error or returns it with what it was doing.
#ifndef COMMON_STATUS_H_
#define COMMON_STATUS_H_

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace strata {

// The same code and payloads, with `context` in front of the message: "context: message".
absl::Status Annotate(const absl::Status& status, absl::string_view context);

// A typed Status from an errno value, "what: strerror (errno N)". ENOENT is kNotFound, EEXIST
// kAlreadyExists, EACCES/EPERM/EROFS kPermissionDenied, ENOSPC/EDQUOT/ENOMEM/EMFILE/ENFILE
// kResourceExhausted, EAGAIN/EINTR kUnavailable, EINVAL kInvalidArgument, EIO kDataLoss, else kInternal.
absl::Status ErrnoStatus(int error, absl::string_view what);

}  // namespace strata

#define STRATA_CONCAT_INNER_(a, b) a##b
#define STRATA_CONCAT_(a, b) STRATA_CONCAT_INNER_(a, b)

// STRATA_RETURN_IF_ERROR(expr) or STRATA_RETURN_IF_ERROR(expr, "restoring job ", job, " step ", step).
// The context parts are only formatted when there is an error.
#define STRATA_RETURN_IF_ERROR(expr, ...)                                                        \
  do {                                                                                           \
    absl::Status strata_status_ = (expr);                                                        \
    if (!strata_status_.ok())                                                                    \
      return ::strata::Annotate(strata_status_,                                                  \
                                ::absl::StrCat(absl::string_view() __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)

// STRATA_ASSIGN_OR_RETURN(auto x, MakeX(), "context ", parts...).
#define STRATA_ASSIGN_OR_RETURN(lhs, expr, ...)                                  \
  STRATA_ASSIGN_OR_RETURN_IMPL_(STRATA_CONCAT_(strata_statusor_, __LINE__), lhs, \
                                expr __VA_OPT__(, ) __VA_ARGS__)
#define STRATA_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr, ...)                                                   \
  auto tmp = (expr);                                                                                         \
  if (!tmp.ok())                                                                                             \
    return ::strata::Annotate(tmp.status(), ::absl::StrCat(absl::string_view() __VA_OPT__(, ) __VA_ARGS__)); \
  lhs = std::move(tmp).value()

#endif  // COMMON_STATUS_H_
